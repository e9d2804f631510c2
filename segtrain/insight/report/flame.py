"""Flame graphs of the Python stacks that ``segtrain profile stacks`` has sampled: which functions
the time goes to.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from segtrain.base.files import open_file
from segtrain.base.json_text import read_json, sound
from segtrain.base.stacks import FOLDER, USER
from segtrain.base.terminal import counted
from segtrain.base.units import percent
from segtrain.insight.report.html import details, esc, table

LEAST = 0.004  # share of a graph's time; smaller frames are too narrow to read, and are left out
ROW = 19  # pixels
MOST_BYTES = 64 << 20  # of all files together
# Functions in which a thread only waits, and files of the standard library in which threads only
# wait.
_WAITS = ("_end_with", "_watch")
_WAITING_FILES = (
    "threading.py",
    "socket.py",
    "selectors.py",
    "queue.py",
    "subprocess.py",
    "multiprocessing/connection.py",
)
_PLACE = re.compile(r"(.*) \((.*):(\d+)\)")
_NAME = re.compile(r"rank-(\d+)(?:-worker-(\d+))?")
# The frames that lead to this function are the same in all runs.
_LOOP = "run (segtrain/training/loop.py:"
# between a module and its caller
_CALLS = ("Module._wrapped_call_impl (torch/", "Module._call_impl (torch/")


@dataclass(frozen=True)
class Stack:
    """Seconds that a thread of a process spent in one stack. ``frames``: its functions, the
    outermost first.
    """

    process: str
    thread: str
    frames: tuple[str, ...]
    seconds: float

    @property
    def waits(self) -> bool:
        match = _PLACE.fullmatch(self.frames[-1])
        return match is not None and (
            match[2] in _WAITING_FILES or match[1].split(".")[-1] in _WAITS
        )


@dataclass
class Frame:
    """A box of a flame graph. ``inner``: the frames that it called; ``seconds`` includes their
    time.
    """

    label: str
    seconds: float = 0.0
    inner: dict[str, Frame] = field(default_factory=dict)

    def add(self, frames: tuple[str, ...], seconds: float) -> None:
        frame = self
        frame.seconds += seconds
        for label in frames:
            frame = frame.inner.setdefault(label, Frame(label))
            frame.seconds += seconds


def read(run: Path) -> list[Stack]:
    """The stacks of all processes, without invalid lines."""
    stacks, left = [], MOST_BYTES
    for path in sorted((run / FOLDER).glob("rank-*.txt")):
        try:
            with open_file(path, left) as file:
                text = file.read().decode(errors="replace")
            left -= len(text)
        except OSError:
            continue
        for line in text.splitlines():
            frames, _, milliseconds = line.rpartition(" ")
            process, *rest = frames.split(";")
            if len(rest) >= 2 and milliseconds.isdigit():
                inner = tuple(frame for frame in rest[1:-1] if not frame.startswith(_CALLS))
                stacks.append(Stack(process, rest[0], (*inner, rest[-1]), int(milliseconds) / 1000))
    return stacks


def section(run: Path) -> str:
    """The flame graphs; empty if no stacks were sampled."""
    stacks = read(run)
    if not stacks:
        return ""
    return f"<p class=quiet>{_about(run, stacks)}</p>" + "".join(
        _graph(f"stacks{index}", title, chosen)
        for index, (title, chosen) in enumerate(_groups(stacks))
        if chosen
    )


def _about(run: Path, stacks: list[Stack]) -> str:
    facts = [sound(read_json(path), {}) for path in sorted((run / FOLDER).glob("rank-*.json"))]
    seconds = max((process.get("seconds", 0.0) for process in facts), default=0.0)
    samples = sum(process.get("samples", 0) for process in facts)
    return (
        f"{samples:,} samples of {_processes(stacks, 'process')} in {seconds:g} s, by "
        "<code>segtrain profile stacks</code>. The width of a function is the wall time in it "
        "and in what it "
        "called; frames above it were called by it. Click one to zoom, click the lowest one to "
        "zoom out. "
        '<span class="flame-key"><i class="own"></i>segtrain <i class="torch"></i>torch <i '
        'class="lib"></i>other '
        'libraries <i class="user"></i>your code <i class="idle"></i>waits</span>'
    )


def _groups(stacks: list[Stack]) -> Iterator[tuple[str, list[Stack]]]:
    """Title and stacks of each graph. A graph has the stacks of all ranks, because all ranks do the
    same.
    """
    parts: dict[str, list[Stack]] = {"loop": [], "process": [], "thread": [], "other": []}
    for stack in stacks:
        part, frames = _part(stack), stack.frames
        if part == "loop":
            begin = next(
                (index for index, label in enumerate(frames) if label.startswith(_LOOP)), 0
            )
            stack = replace(stack, frames=frames[begin:])
        parts[part].append(stack)
    yield f"The loop of {_processes(parts['loop'], 'rank')}", parts["loop"]
    if parts["process"]:
        yield f"Data workers: {_processes(parts['process'], 'process')}", parts["process"]
    else:
        threads = {(stack.process, stack.thread) for stack in parts["thread"]}
        yield f"Data workers: {counted(len(threads), 'thread')}", parts["thread"]
    yield (
        "Other threads, where they do not wait",
        [stack for stack in parts["other"] if not stack.waits],
    )


def _part(stack: Stack) -> str:
    match = _NAME.fullmatch(stack.process)
    in_worker = match is not None and match[2] is not None
    if stack.thread == "MainThread":
        return "process" if in_worker else "loop"
    return "thread" if not in_worker and stack.thread.startswith("segtrain-data") else "other"


def _processes(stacks: list[Stack], noun: str) -> str:
    return counted(len({stack.process for stack in stacks}), noun)


def _graph(key: str, title: str, stacks: list[Stack]) -> str:
    root = Frame("all")
    for stack in stacks:
        root.add(stack.frames, stack.seconds)
    # innermost frames of threads that wait
    idle = {stack.frames[-1] for stack in stacks if stack.waits}
    drawn = list(_frames(root, 0.0, 1.0, 0, root.seconds, idle))
    depth = 1 + max(level for level, *_ in drawn)
    own = defaultdict[str, float](float)  # seconds in each function itself, not in what it called
    for stack in stacks:
        own[stack.frames[-1]] += stack.seconds
    hot = sorted(own.items(), key=lambda item: -item[1])[:40]
    cells = "".join(html for _, html in drawn)
    rows = [(label, percent(seconds / root.seconds), f"{seconds:.2f} s") for label, seconds in hot]
    numbers = table(("function", "share", "time"), rows)
    return (
        f'<figure id="{key}"><figcaption><b>{esc(title)}</b></figcaption>'
        f'<div class="flame" tabindex="0" role="img" aria-label="{esc(title)}" '
        f'style="height:{depth * ROW}px">'
        f"{cells}</div>"
        f"{details('as a table: functions by their own time', numbers)}</figure>"
    )


def _frames(
    frame: Frame, left: float, width: float, level: int, total: float, idle: set[str]
) -> Iterator[tuple[int, str]]:
    """(level, HTML) of a frame and of all frames inside it. ``left`` and ``width`` are shares of
    the graph's width.
    """
    name, _, code = frame.label.partition(" (")
    kind = "idle" if frame.label in idle and not frame.inner else _kind(code)
    tooltip = f"{frame.label}: {percent(frame.seconds / total)}, {frame.seconds:.2f} s"
    yield (
        level,
        f'<i class="{kind}" data-x="{left:.5f}" data-w="{width:.5f}" title="{esc(tooltip)}" '
        f'style="left:{100 * left:.3f}%;width:{100 * width:.3f}%;bottom:{level * ROW}px">'
        f"{esc(name)}</i>",
    )
    for inner in sorted(frame.inner.values(), key=lambda child: -child.seconds):
        share = inner.seconds / total
        if share >= LEAST:
            yield from _frames(inner, left, share, level + 1, total, idle)
        left += share


def _kind(code: str) -> str:
    """Whose code a frame is: own (segtrain), torch, lib (another library), or user."""
    kinds = {"segtrain/": "own", "torch/": "torch", "torchvision/": "torch", USER: "user"}
    return next((kind for start, kind in kinds.items() if code.startswith(start)), "lib")

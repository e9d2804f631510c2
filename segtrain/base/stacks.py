"""Samples the Python stacks of this process from a thread, which needs no tracing rights and costs
nothing when off.

The sampling thread needs the GIL, so a sample may come late. Each sample therefore counts for the
time since the one before it. Threads that wait or compute in C appear at the Python line that made
the call: the result is wall time.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from segtrain.base.files import writing
from segtrain.base.json_text import read_json, write_json

FOLDER, CONTROL = "stacks", "control.json"  # in a run folder
MOST_S, MOST_HZ = 600.0, 1000.0
USER = "./"  # before the files of the user
DEPTH = 200  # keep this many frames of a stack, the innermost ones
_LIBRARIES = re.compile(r".*/(?:site-packages|dist-packages)/")
_STANDARD = re.compile(r".*/lib/python3[^/]*/")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

Stacks = dict[tuple[str, ...], float]  # (thread, outermost function, ..., innermost) -> seconds


@dataclass(frozen=True)
class StackRequest:
    """A request to sample stacks. ``asked``: the Unix time of the request, which identifies it."""

    asked: float
    seconds: float
    hz: float


def read_order(run: str | Path) -> StackRequest | None:
    """The request in a run folder. None if there is no valid one."""
    try:
        known = read_json(Path(run, FOLDER, CONTROL))
        order = StackRequest(float(known["asked"]), float(known["seconds"]), float(known["hz"]))
    except (ValueError, KeyError, TypeError):
        return None
    return order if 0 < order.seconds <= MOST_S and 0 < order.hz <= MOST_HZ else None


class StackSampler:
    """Samples for ``order.seconds``, then writes RUN/stacks/NAME.txt and NAME.json. ``stop`` ends
    this early.
    """

    def __init__(self, run: str | Path, name: str, order: StackRequest, **facts: Any) -> None:
        self._folder, self._name, self._order, self._facts = Path(run, FOLDER), name, order, facts
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="segtrain-stacks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _work(self) -> None:
        stacks, count, seconds = sample(self._order.seconds, self._order.hz, self._stop)
        facts = {
            "asked": self._order.asked,
            "seconds": round(seconds, 3),
            "samples": count,
            "pid": os.getpid(),
        }
        try:
            write(self._folder, self._name, stacks, {**facts, **self._facts})
        except OSError as error:
            problem = f"cannot write {self._folder / self._name}.txt ({error.strerror})"
            print(f"warning: {problem}; training continues", file=sys.stderr)


def sample(seconds: float, hz: float, stop: threading.Event) -> tuple[Stacks, int, float]:
    """Stacks of all other threads with their seconds, the number of samples, and the duration."""
    found: Stacks = {}
    labels, own = dict[CodeType, str](), threading.get_ident()
    begun = last = time.perf_counter()
    count = 0
    while last - begun < seconds and not stop.wait(
        max(0.0, begun + (count + 1) / hz - time.perf_counter())
    ):
        now = time.perf_counter()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != own:
                key = (names.get(ident, "a thread of a library"), *stack(frame, labels))
                found[key] = found.get(key, 0.0) + now - last
        last, count = now, max(count + 1, int((now - begun) * hz))  # missed samples are skipped
    return found, count, last - begun


def stack(frame: FrameType | None, labels: dict[CodeType, str]) -> tuple[str, ...]:
    """The functions of a stack, outermost first. ``labels`` caches their names."""
    found: list[str] = []
    while frame is not None and len(found) < DEPTH:
        code = frame.f_code
        if code not in labels:
            labels[code] = label(code)
        found.append(labels[code])
        frame = frame.f_back
    return tuple(reversed(found))


def label(code: CodeType) -> str:
    """``gradients (segtrain/training/step.py:88)``: the function, its file, the line of its
    ``def``.
    """
    file = code.co_filename
    if file.startswith(_PACKAGE + os.sep):
        file = f"segtrain/{os.path.relpath(file, _PACKAGE)}"
    elif _LIBRARIES.match(file) or _STANDARD.match(file):
        file = _STANDARD.sub("", _LIBRARIES.sub("", file))
    else:
        file = USER + os.sep.join(file.split(os.sep)[-2:])
    return plain(f"{getattr(code, 'co_qualname', code.co_name)} ({file}:{code.co_firstlineno})")


def plain(text: str) -> str:
    """``text`` without the characters that separate frames and lines in a collapsed file."""
    return "".join(char if char.isprintable() else " " for char in text).replace(";", ":")


def write(folder: Path, name: str, stacks: Stacks, facts: dict[str, Any]) -> None:
    """Write collapsed stacks (one per line, with milliseconds) for speedscope and flamegraph.pl,
    and ``facts`` as JSON.

    Each file appears complete or not at all. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        f"{plain(name)};{';'.join(map(plain, frames))} {milliseconds}\n"
        for frames, seconds in sorted(stacks.items())
        if (milliseconds := round(1000 * seconds))
    ]
    with writing(folder / f"{name}.txt") as stream:
        stream.write("".join(lines).encode())
    write_json(folder / f"{name}.json", facts)

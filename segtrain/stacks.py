"""Samples of the Python stacks of this process, taken by a thread of its own: no rights to trace are needed, and off it costs nothing.

A thread holds Python's lock while it looks, so a sample may come late. Each one therefore counts for the time since the one before it.
Threads that compute in C or wait are seen at the line that called: it is wall time.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from segtrain.files import writing

FOLDER, CONTROL = "stacks", "control.json"  # of a run folder
MOST_S, MOST_HZ = 600.0, 1000.0
DEPTH = 200  # frames of a stack, the innermost
_LIBRARIES = re.compile(r".*/(?:site-packages|dist-packages)/")
_STANDARD = re.compile(r".*/lib/python3[^/]*/")
_PACKAGE = os.path.dirname(os.path.abspath(__file__))

Stacks = dict[tuple[str, ...], float]  # (thread, outermost function, ..., innermost) -> seconds


@dataclass(frozen=True)
class StackRequest:
    """``asked``: Unix time, the name of the request."""

    asked: float
    seconds: float
    hz: float


def read_order(run: str | Path) -> StackRequest | None:
    """The request that lies in a run folder; None where there is none that makes sense."""
    try:
        known = json.loads(Path(run, FOLDER, CONTROL).read_text(encoding="utf-8"))
        order = StackRequest(float(known["asked"]), float(known["seconds"]), float(known["hz"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return order if 0 < order.seconds <= MOST_S and 0 < order.hz <= MOST_HZ else None


class StackSampler:
    """Samples for ``order.seconds`` from now on, then writes RUN/stacks/NAME.txt and NAME.json. ``stop`` ends it earlier."""

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
        facts = {"asked": self._order.asked, "seconds": round(seconds, 3), "samples": count, "pid": os.getpid()}
        try:
            write(self._folder, self._name, stacks, {**facts, **self._facts})
        except OSError as error:
            print(
                f"warning: no stacks {self._folder / self._name}.txt: {error.strerror}; training goes on",
                file=sys.stderr,
            )


def sample(seconds: float, hz: float, stop: threading.Event) -> tuple[Stacks, int, float]:
    """Stacks of all threads but this one, with seconds; how many samples; for how long."""
    found: Stacks = {}
    labels, own = dict[CodeType, str](), threading.get_ident()
    begun = last = time.perf_counter()
    count = 0
    while last - begun < seconds and not stop.wait(max(0.0, begun + (count + 1) / hz - time.perf_counter())):
        now = time.perf_counter()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != own:
                key = (names.get(ident, "a thread of a library"), *stack(frame, labels))
                found[key] = found.get(key, 0.0) + now - last
        last, count = now, max(count + 1, int((now - begun) * hz))  # samples that were missed are not made up for
    return found, count, last - begun


def stack(frame: FrameType | None, labels: dict[CodeType, str]) -> tuple[str, ...]:
    """The functions of a stack, outermost first; ``labels`` remembers their names."""
    found: list[str] = []
    while frame is not None and len(found) < DEPTH:
        code = frame.f_code
        if code not in labels:
            labels[code] = label(code)
        found.append(labels[code])
        frame = frame.f_back
    return tuple(reversed(found))


def label(code: CodeType) -> str:
    """``gradients (segtrain/train/step.py:88)``: the function, its file as one imports it, the line of its ``def``."""
    file = code.co_filename
    if file.startswith(_PACKAGE + os.sep):
        file = f"segtrain/{os.path.relpath(file, _PACKAGE)}"
    elif _LIBRARIES.match(file) or _STANDARD.match(file):
        file = _STANDARD.sub("", _LIBRARIES.sub("", file))
    else:
        file = os.sep.join(file.split(os.sep)[-2:])
    return plain(f"{getattr(code, 'co_qualname', code.co_name)} ({file}:{code.co_firstlineno})")


def plain(text: str) -> str:
    """Without what separates frames and lines in a collapsed file."""
    return "".join(char if char.isprintable() else " " for char in text).replace(";", ":")


def write(folder: Path, name: str, stacks: Stacks, facts: dict[str, Any]) -> None:
    """Collapsed stacks, one a line with its milliseconds, as speedscope and flamegraph.pl read them; then what they are of.

    Each file whole or not at all. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        f"{plain(name)};{';'.join(map(plain, frames))} {milliseconds}\n"
        for frames, seconds in sorted(stacks.items())
        if (milliseconds := round(1000 * seconds))
    ]
    for suffix, text in ((".txt", "".join(lines)), (".json", json.dumps(facts) + "\n")):
        with writing(folder / f"{name}{suffix}") as stream:
            stream.write(text.encode())

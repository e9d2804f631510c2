"""What each rank and its workers did in each second of a run: one JSON line per window of steps.

RUN/spans/rank-00000.jsonl, one file a rank. A process begins with a line of its own, also after a resume:

``begin`` (1: this form), ``ts`` (Unix time), ``rank``, ``host``, ``local_rank``, ``world_size``, ``local_world_size``, ``device``,
``cores`` (that this process may use), ``batch_size`` (of a step, all ranks), ``accumulate``, ``bytes_gradient`` (that this rank
shares in each step), ``crowded`` (null, or where there are more compute threads than cores: ``threads`` that would be best, and how
many times as long a pass takes now: ``forward``, ``backward``)

Then a line a window, which ends with the first step after a second, or with the run. All numbers are of this rank and this window:

``ts``          Unix time of its beginning
``seconds``     how long it was; ``phases`` {name: seconds} add up to it
``first``, ``last``    its steps, 1-based, both included; ``images`` of these steps
``phases``      ``wait`` for the batch; ``device``: copies and floats; ``forward``, without ``sync``; ``sync``: in the collective of
                the loss totals and votes, where a rank waits for slower ones; ``backward``, without ``gradient_sync``: what
                sharing gradients took after this rank's last one was ready; ``update``; ``log``; ``eval``; ``checkpoint``;
                ``other``. Absent: zero. With CUDA it is the device's time (device_clock.py): a wait behind which it still works
                counts as that work
``slowest_ms``  of one step, without ``log``, ``eval`` and ``checkpoint``
``cpu_s``       of this process, its threads included, worker processes left out; ``threads`` of torch
``other_cpu_s``  of the loop's own thread, in the phase ``other``; ``cpu_wait_s``: in which it could have run and had no core, without
                those of ``wait``; ``other_cpu_wait_s``: those of ``other`` (absent: nobody counts them)
``shared``      absent, or of the last step that torch's DDP has timed (ten at first, then each hundredth): ``seconds`` in which
                gradients were on their way, ``hidden`` of them behind the backward pass
``workers``     ``count``, ``kind``; ``samples`` made; ``seconds`` {``read``, ``decode``, ``augment``, ``assemble``} summed over them
                (wall); ``cpu_s`` for them; ``cpu_wait_s`` of the wall time they could have run and had no core; ``bytes`` read from storage; ``process_cpu_s``: of worker
                processes with all their threads (absent: workers are threads); ``reads``: of single reads how many, and the sums of
                bytes squared (``bytes2``) and of bytes times seconds (``bytes_s``); ``queue``: steps that lay ready when one was
                asked for, mean (absent: none was asked for)

A reader takes the fields it knows. A line that is torn by the end of the process is skipped.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from segtrain import json_text
from segtrain.errors import DataError
from segtrain.observe.clock import Clock
from segtrain.observe.journal import plain, say_on_stderr

FOLDER = "spans"  # of a run folder
WINDOW_S = 1.0
RECENT = 16  # windows that stay at hand
TAIL = 32768  # bytes, in which as many windows end
FORM = 1
NUMBERS = ("ts", "seconds", "first", "last")  # that a window must have to be one
_FORM: dict[str, Any] = {
    **dict.fromkeys(("host", "device"), str),
    **{"phases": {}, "shared": {}, "crowded": {}},
    "workers": {"kind": str, "seconds": {}, "reads": {}},
}  # of a line, but for its numbers
_OLD_NAMES = {"late_s": "cpu_wait_s", "other_late_s": "other_cpu_wait_s"}
NO_STEP = ("log", "eval", "checkpoint")  # phases that are no part of a step


@dataclass(frozen=True)
class Begin:
    """Facts of a process that begins to train."""

    rank: int
    host: str
    local_rank: int
    world_size: int
    local_world_size: int
    device: str
    cores: int
    batch_size: int
    accumulate: int
    bytes_gradient: int
    crowded: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Work:
    """What the workers of a rank have done since its beginning, and how many there are now. ``asked``: for steps; ``ready``: summed."""

    count: int = 0
    kind: str = "thread"
    samples: int = 0
    read: float = 0.0
    decode: float = 0.0
    augment: float = 0.0
    assemble: float = 0.0
    cpu_s: float = 0.0
    bytes: int = 0
    reads: int = 0
    bytes2: float = 0.0
    bytes_s: float = 0.0
    cpu_wait_s: float = 0.0
    asked: int = 0
    ready: int = 0
    process_cpu_s: float = 0.0

    def since(self, before: Work) -> dict[str, Any]:
        def more(name: str) -> Any:
            return getattr(self, name) - getattr(before, name)

        seconds = {name: round(more(name), 6) for name in ("read", "decode", "augment", "assemble")}
        done = {"count": self.count, "kind": self.kind, "samples": more("samples"), "seconds": seconds}
        done |= {"cpu_s": round(more("cpu_s"), 6), "cpu_wait_s": round(more("cpu_wait_s"), 6), "bytes": more("bytes")}
        done |= {"process_cpu_s": round(more("process_cpu_s"), 6)} if self.kind == "process" else {}
        done["reads"] = {"count": more("reads"), "bytes2": more("bytes2"), "bytes_s": round(more("bytes_s"), 3)}
        return done | ({"queue": round(more("ready") / more("asked"), 3)} if more("asked") else {})


def file_of(run: Path, rank: int) -> Path:
    return run / FOLDER / f"rank-{rank:05d}.jsonl"


class Spans:
    """Writes the windows of one rank. ``first``: steps done before. A full disk or a folder without rights stops no training.

    ``work`` tells what the workers have done so far. The clock is one that nobody else marks.
    """

    def __init__(
        self,
        path: Path,
        begin: Begin,
        clock: Clock,
        work: Callable[[], Work],
        *,
        first: int = 0,
        images: int,
        threads: int,
        shared: Callable[[], Mapping[str, float] | None] = lambda: None,
        say: Callable[[str], None] = say_on_stderr,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._clock, self._work, self._say, self._now = path, clock, work, say, now
        self._begin, self._images, self._threads, self._shared = begin, images, threads, shared
        self._step, self._steps, self._slowest = first, 0, 0.0
        self._phases: dict[str, float] = {}
        self._since = clock.pending[1]
        self._lost = False
        self._file = self._open()
        self._ts, self._cpu, self._rest, self._before = now(), time.process_time(), clock.rest_cpu, work()
        self._cpu_wait, self._rest_cpu_wait = clock.cpu_wait, clock.rest_cpu_wait
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._first = {"begin": FORM, "ts": round(self._ts, 4), **asdict(begin)}
        self._write(self._first)

    def step(self) -> bool:
        """A step is over. True when a window ended with it: ``recent`` has changed."""
        at = self._clock.mark()
        if at - self._since < WINDOW_S:
            return False
        self._since = at
        return self._collect()

    def _collect(self) -> bool:
        """Make a window of all steps that can be told by now; False where there is none."""
        for lap in self._clock.laps():
            self._add(lap)
        if self._steps:
            self._end_window()
            return True
        return False

    @property
    def recent(self) -> Records:
        """The last windows."""
        return Records(self._begin.rank, (self._first,), tuple(self._recent))

    def _add(self, lap: dict[str, float]) -> None:
        self._steps += 1
        for phase, seconds in lap.items():
            self._phases[phase] = self._phases.get(phase, 0.0) + seconds
        self._slowest = max(self._slowest, sum(s for phase, s in lap.items() if phase not in NO_STEP))

    def _end_window(self) -> None:
        ts, cpu, rest, work = self._now(), time.process_time(), self._clock.rest_cpu, self._work()
        cpu_wait, was = self._clock.cpu_wait, self._cpu_wait
        rest_cpu_wait, rest_was = self._clock.rest_cpu_wait, self._rest_cpu_wait
        phases = {phase: round(seconds, 6) for phase, seconds in self._phases.items()}
        window = plain(
            {
                "ts": round(self._ts, 4),
                "seconds": round(sum(phases.values()), 6),
                "rank": self._begin.rank,
                "host": self._begin.host,
                "first": self._step + 1,
                "last": self._step + self._steps,
                "images": self._steps * self._images,
                "phases": phases,
                "slowest_ms": round(1000 * self._slowest, 3),
                "cpu_s": round(cpu - self._cpu, 6),
                "other_cpu_s": round(rest - self._rest, 6),
                **({} if cpu_wait is None or was is None else {"cpu_wait_s": round(max(0.0, cpu_wait - was), 6)}),
                **(
                    {}
                    if rest_cpu_wait is None or rest_was is None
                    else {"other_cpu_wait_s": round(max(0.0, rest_cpu_wait - rest_was), 6)}
                ),
                "threads": self._threads,
                **({"shared": shared} if (shared := self._shared()) else {}),
                "workers": work.since(self._before),
            }
        )
        self._recent.append(window)
        self._write(window)
        self._step, self._steps, self._slowest, self._phases = self._step + self._steps, 0, 0.0, {}
        self._ts, self._cpu, self._rest, self._before, self._cpu_wait = ts, cpu, rest, work, cpu_wait
        self._rest_cpu_wait = rest_cpu_wait

    def close(self) -> None:
        """The steps that are left make a last window."""
        self._clock.finish()
        self._collect()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> int:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            if os.fstat(file).st_size:
                os.write(file, b"\n")  # what a killed process has left torn ends here; readers skip empty lines
            return file
        except OSError as error:
            self._lose(error)
            return -1

    def _write(self, line: dict[str, Any]) -> None:
        if self._file >= 0:
            try:
                os.write(self._file, json.dumps(plain(line)).encode() + b"\n")
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        if not self._lost:
            self._lost = True
            self._say(f"warning: {self._path} has a gap: {error.strerror or error}; training goes on")


@dataclass(frozen=True)
class Records:
    """Lines of one rank in order: of each process ``begins``, and ``windows`` without those whose steps a resumed process did again."""

    rank: int
    begins: tuple[dict[str, Any], ...]
    windows: tuple[dict[str, Any], ...]


def read_spans(run: Path) -> list[Records]:
    """All ranks of a run, by rank. Raises DataError where there is none."""
    files = sorted((run / FOLDER).glob("rank-*.jsonl"))
    if not files:
        raise DataError(f"{run} has no {FOLDER}/rank-*.jsonl: name a run folder, of a run with log.spans=true")
    try:
        return [_records(file.read_bytes().splitlines()) for file in files]
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror}): check its rights") from None


def read_recent(run: Path, rank: int) -> Records | None:
    """The first line and the last windows of a rank, also while it writes; None where there are none."""
    try:
        with file_of(run, rank).open("rb") as file:
            head = file.readline()
            file.seek(max(file.tell(), file.seek(0, 2) - TAIL))
            return _records([head, *file.read().splitlines()])
    except OSError:
        return None


def _records(lines: Iterable[bytes]) -> Records:
    rank, begins, windows = 0, [], list[dict[str, Any]]()
    for line in lines:
        try:
            item = json_text.sound(json_text.parse(line), _FORM)
        except ValueError:
            continue
        if not isinstance(item.get("rank"), int):
            continue
        rank = item["rank"]
        if "begin" in item:
            begins.append(item)
        elif "phases" in item and all(key in item for key in NUMBERS):
            while windows and windows[-1]["last"] >= item["first"]:
                windows.pop()
            windows.append(_with_new_names(item))
    return Records(rank, tuple(begins), tuple(windows))


def _with_new_names(window: dict[str, Any]) -> dict[str, Any]:
    """A window with the times without a core under their present names, also where an older version wrote it."""
    if isinstance(workers := window.get("workers"), dict):
        window["workers"] = _with_new_names(workers)
    return window | {new: window[old] for old, new in _OLD_NAMES.items() if old in window}

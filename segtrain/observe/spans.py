"""Spans: what each rank and its workers did in each second of a run, as one JSON line per window of
steps.

``docs/spans.md`` describes every field of RUN/spans/rank-00000.jsonl. A reader takes the fields
that it knows, and skips a line that was cut off when its process ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from segtrain.base import json_text
from segtrain.base.files import open_file
from segtrain.errors import file_error
from segtrain.observe.clock import Clock
from segtrain.observe.journal import LineFile, plain, say_on_stderr

FOLDER = "spans"  # in a run folder
WINDOW_S = 1.0
RECENT = 16  # windows kept in memory
TAIL = 32768  # bytes at the end of a file, enough for about RECENT windows
FORMAT = 1
REQUIRED = ("ts", "seconds", "first", "last")  # numbers that every window has
STAGES = ("read", "decode", "augment", "assemble")
# Fields of a line that hold text or an object; all other fields are numbers.
_FORM: dict[str, Any] = {
    **dict.fromkeys(("host", "device", "machine", "gpu"), str),
    **{"phases": {}, "shared": {}, "crowded": {}},
    "workers": {"kind": str, "seconds": {}, "reads": {}, "helpers": {}},
    "bucket": {"retries": {}, "retry_s": {}, "ahead": {}},
}
NO_STEP = ("log", "eval", "checkpoint")  # phases that are not part of a step


@dataclass(frozen=True)
class Begin:
    """Facts about a process that starts to train: the first line that it appends to the file of its
    rank.
    """

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
    machine: str = ""  # the type that was rented, where the platform says it: "ml.g5.xlarge"
    gpu: str = ""  # the name that its driver gives it


@dataclass(frozen=True)
class WorkerTotals:
    """Totals of the work of a rank's data workers since the rank started. ``count``: the current
    number of workers.

    ``requested`` counts the requested steps, and ``ready`` sums how many steps were ready at each
    request.
    """

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
    requested: int = 0
    ready: int = 0
    process_cpu_s: float = 0.0
    # samples that helpers on other hosts made, by host
    helper_samples: Mapping[str, int] = field(default_factory=dict)
    receive_s: float = 0.0  # CPU seconds of this rank for these

    def since(self, before: WorkerTotals) -> dict[str, Any]:
        """The field ``workers`` of a window: the work done since ``before``."""
        numbers = {
            name: value
            for name, value in vars(self).items()
            if name not in ("kind", "helper_samples")
        }
        more = {name: round(value - getattr(before, name), 6) for name, value in numbers.items()}
        done = {
            "count": self.count,
            "kind": self.kind,
            "samples": more["samples"],
            "seconds": {stage: more[stage] for stage in STAGES},
            "cpu_s": more["cpu_s"],
            "cpu_wait_s": more["cpu_wait_s"],
            "bytes": more["bytes"],
        }
        if self.kind == "process":
            done["process_cpu_s"] = more["process_cpu_s"]
        done["reads"] = {
            "count": more["reads"],
            "bytes2": more["bytes2"],
            "bytes_s": round(more["bytes_s"], 3),
        }
        if self.helper_samples:
            done["helpers"] = {
                host: count - before.helper_samples.get(host, 0)
                for host, count in self.helper_samples.items()
            }
            done["receive_s"] = more["receive_s"]
        return done | (
            {"queue": round(more["ready"] / more["requested"], 3)} if more["requested"] else {}
        )


def file_of(run: Path, rank: int) -> Path:
    return run / FOLDER / f"rank-{rank:05d}.jsonl"


class Spans:
    """Writer of the windows of one rank; a full disk or missing permissions do not stop training.

    ``work`` returns the totals of the workers so far. ``bucket`` returns the requests to buckets
    since its last call. ``shared`` returns the times of DDP's gradient communication. Only this
    object may call ``clock.mark``. ``first`` is the number of steps that were done before this
    process, ``images`` is the number of images of this rank in one step, and ``threads`` is the
    number of CPU threads of torch.
    """

    def __init__(
        self,
        path: Path,
        begin: Begin,
        clock: Clock,
        work: Callable[[], WorkerTotals],
        *,
        first: int = 0,
        images: int,
        threads: int,
        shared: Callable[[], Mapping[str, float] | None] = lambda: None,
        bucket: Callable[[], Mapping[str, Any] | None] = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._work = work
        self._now = now
        self._begin = begin
        self._images = images
        self._threads = threads
        self._shared = shared
        self._bucket = bucket
        self._step = first
        self._since = clock.pending[1]
        self._file: LineFile | None = None
        try:
            self._file = LineFile(path)
        except OSError as error:
            say_on_stderr(f"warning: cannot write {path}: {error.strerror}; training continues")
        self._ts, self._times, self._before = now(), self._cpu_times(), work()
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._first = {"begin": FORMAT, "ts": round(self._ts, 4), **asdict(begin)}
        self._write(self._first)

    def _cpu_times(self) -> dict[str, float | None]:
        """Seconds of CPU time and of run-queue waits so far; None if the system does not count
        them.
        """
        clock = self._clock
        return {
            "cpu_s": time.process_time(),
            "other_cpu_s": clock.rest_cpu,
            "cpu_wait_s": clock.cpu_wait,
            "other_cpu_wait_s": clock.rest_cpu_wait,
        }

    def step(self) -> bool:
        """End a step. True if a window ended with it, so that ``recent`` has changed."""
        at = self._clock.mark()
        if at - self._since < WINDOW_S:
            return False
        self._since = at
        return self._collect()

    @property
    def recent(self) -> Records:
        """The last windows."""
        return Records(self._begin.rank, (self._first,), tuple(self._recent))

    def _collect(self) -> bool:
        """Write a window of all steps whose times are known; False if there are none."""
        laps = self._clock.laps()
        if not laps:
            return False
        phases: dict[str, float] = {}
        for lap in laps:
            for phase, seconds in lap.items():
                phases[phase] = phases.get(phase, 0.0) + seconds
        slowest = max(
            sum(seconds for phase, seconds in lap.items() if phase not in NO_STEP) for lap in laps
        )
        rounded = {phase: round(seconds, 6) for phase, seconds in phases.items()}
        ts = self._now()
        times = self._cpu_times()
        work = self._work()
        window = {
            "ts": round(self._ts, 4),
            "seconds": round(sum(rounded.values()), 6),
            "rank": self._begin.rank,
            "host": self._begin.host,
            "first": self._step + 1,
            "last": self._step + len(laps),
            "images": len(laps) * self._images,
            "phases": rounded,
            "slowest_ms": round(1000.0 * slowest, 3),
        }
        for name, until in times.items():
            since = self._times[name]
            if since is not None and until is not None:
                window[name] = round(max(0.0, until - since), 6)
        window["threads"] = self._threads
        if shared := self._shared():
            window["shared"] = shared
        if bucket := self._bucket():
            window["bucket"] = bucket
        window = plain({**window, "workers": work.since(self._before)})
        self._recent.append(window)
        self._write(window)
        self._step += len(laps)
        self._ts = ts
        self._times = times
        self._before = work
        return True

    def close(self) -> None:
        """Write the remaining steps as a last window."""
        self._clock.finish()
        self._collect()
        if self._file is not None:
            self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(line)


@dataclass(frozen=True)
class Records:
    """The lines of one rank, in order: the first line of each process, and the windows.

    Windows whose steps a resumed process repeated are left out.
    """

    rank: int
    begins: tuple[dict[str, Any], ...]
    windows: tuple[dict[str, Any], ...]


def read_spans(run: str | Path) -> list[Records]:
    """The spans of all ranks, by rank. Raises DataError if there are none."""
    records = list[Records]()
    files = sorted(Path(run, FOLDER).glob("rank-*.jsonl"))
    if not files:
        raise file_error(
            str(run),
            f"there is no {FOLDER}/rank-*.jsonl: name the folder of a run that was trained "
            "with log.spans=true",
            code="no-spans",
        )
    try:
        for file in files:
            with open_file(file) as lines:
                records.append(_records(lines))
        return records
    except OSError as error:
        raise file_error(
            error.filename,
            f"it cannot be read: {error.strerror}: check its permissions",
            code="spans-unreadable",
        ) from None


def read_recent(run: Path, rank: int) -> Records | None:
    """The first line and the last windows of a rank, which may still be writing; None if its file
    cannot be read.
    """
    try:
        with open_file(file_of(run, rank)) as file:
            head = file.readline()
            file.seek(max(file.tell(), file.seek(0, 2) - TAIL))
            return _records([head, *file.read().splitlines()])
    except OSError:
        return None


def _records(lines: Iterable[bytes]) -> Records:
    rank = 0
    begins = []
    windows = list[dict[str, Any]]()
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
        elif "phases" in item and all(key in item for key in REQUIRED):
            while windows and windows[-1]["last"] >= item["first"]:
                windows.pop()
            windows.append(item)
    return Records(rank, tuple(begins), tuple(windows))

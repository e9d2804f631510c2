"""Traces of a few steps, and Python stacks, of a running training: requests to all ranks, and waits
for their files.

A request is the file RUN/traces/control.json or RUN/stacks/control.json. ``docs/spans.md``
describes the answers.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from segtrain.base import stacks as sampler
from segtrain.base.json_text import read_json, write_json
from segtrain.errors import DataError, SegtrainError
from segtrain.observe.journal import last_status
from segtrain.observe.spans import Records, read_spans

FOLDER, CONTROL = "traces", "control.json"
# Largest plausible age of the newest window of spans. Windows are written about once per second, so
# a larger age means that a clock was set.
MOST_SINCE_S = 30.0
MOST_STEPS = 100
AHEAD_S = 3.0  # time from a request to its first step, in which all ranks read the request
MARK = "segtrain"  # name of the spans in the trace of torch.profiler that align its clock with ours
LATE_S = 20.0  # extra time to wait for stacks, because ranks look for a request only after a step
OURS = 10**8  # first of our process ids in a trace, larger than any real process id


@dataclass(frozen=True)
class TraceRequest:
    """A request to trace ``steps`` steps, beginning with step ``first`` (1-based). ``number``
    identifies the request.
    """

    number: float
    first: int
    steps: int


def file_of(run: Path, rank: int, step: int) -> Path:
    return run / FOLDER / f"rank-{rank:05d}-step-{step:06d}.json"


def read_order(run: Path) -> TraceRequest | None:
    """The request in a run folder; None if there is no valid one."""
    content = read_json(run / FOLDER / CONTROL)
    number = content.get("asked")
    first = content.get("from")
    steps = content.get("steps")
    if not (isinstance(number, (int, float)) and isinstance(first, int) and isinstance(steps, int)):
        return None
    return TraceRequest(number, first, steps) if 0 < steps <= MOST_STEPS else None


def events(
    rank: int,
    host: str,
    spans: Iterable[tuple[str, float, float]],
    samples: Iterable[tuple[int, float, dict[str, float]]],
    offset_us: float,
) -> list[dict[str, Any]]:
    """Trace events in Chrome's format. ``spans`` of the loop: (name, begin, end). ``samples``:
    (worker, begin, seconds by stage).

    All times are seconds of one clock; adding ``offset_us`` gives the time of the trace.
    """

    def slice_of(name: str, tid: int, begin: float, seconds: float, **args: Any) -> dict[str, Any]:
        at = {"ts": round(begin * 1e6 + offset_us, 3), "dur": round(seconds * 1e6, 3)}
        return {
            "ph": "X",
            "cat": "segtrain",
            "name": name,
            "pid": OURS + rank,
            "tid": tid,
            **at,
            "args": args,
        }

    slices = [slice_of(name, 0, begin, end - begin) for name, begin, end in spans]
    workers = set()
    for number, begin, stages in samples:
        workers.add(number)
        args = {f"{stage}_ms": round(1000 * seconds, 3) for stage, seconds in stages.items()}
        slices.append(slice_of("sample", 1 + number, begin, sum(stages.values()), **args))
    names = {0: "loop", **{1 + number: f"worker {number}" for number in sorted(workers)}}
    head = {"ph": "M", "pid": OURS + rank}
    return [
        {**head, "name": "process_name", "args": {"name": f"segtrain rank {rank} on {host}"}},
        {**head, "name": "process_sort_index", "args": {"sort_index": -1}},
        *(
            {**head, "tid": tid, "name": "thread_name", "args": {"name": name}}
            for tid, name in names.items()
        ),
        *slices,
    ]


def offset_us(trace: dict[str, Any], before: Sequence[float]) -> float:
    """Offset, in microseconds, from our clock to the clock of ``trace``.

    A mark is a short span named MARK in the trace. ``before``: times of our clock (seconds) just
    before each mark. A mark may come late, because its thread waited, but never early, so the least
    difference is the best estimate. Raises SegtrainError if marks are missing.
    """
    marks = sorted(
        e["ts"]
        for e in trace.get("traceEvents", [])
        if e.get("name") == MARK and e.get("ph") == "X"
    )
    if len(marks) != len(before):
        raise SegtrainError(
            f"the trace of torch.profiler has {len(marks)} spans named {MARK!r} instead of "
            f"{len(before)}: this version of torch writes another format",
            code="trace-format-unknown",
            found=len(marks),
            expected=len(before),
        )
    return min(float(mark) - 1e6 * moment for mark, moment in zip(marks, before))


def trace(run: Path, steps: int) -> tuple[str, bool]:
    """Ask all ranks for a trace and wait for it. Returns lines to print, and whether every rank has
    written its trace.

    Raises SegtrainError for a run that is not training.
    """
    _refuse_out_of_range("--steps", steps, MOST_STEPS)
    ranks = training_ranks(run)
    step_s, done = pace(ranks)
    if not step_s:
        raise SegtrainError(
            f"{run} has no speed figures yet: try again soon", code="run-too-young", file=str(run)
        )

    def times() -> dict[Path, int]:
        return {
            path: path.stat().st_mtime_ns for path in (run / FOLDER).glob("rank-*-step-*[0-9].json")
        }

    before = times()
    first = done + 1 + max(1, math.ceil(AHEAD_S / step_s))
    request(run / FOLDER, {"asked": time.time(), "from": first, "steps": steps})
    world = ranks[0].begins[-1]["world_size"]
    wait_until(
        lambda: len(times().items() - before.items()) >= world,
        60 + 2 * (AHEAD_S + step_s * (steps + 2)),
    )
    written = dict(times().items() - before.items())
    lines = [str(path) for path in sorted(written)]
    if missing := max(0, world - len(written)):
        lines.append(
            f"{missing} of {world} ranks have not answered: check that they still train and see "
            "this folder"
        )
    else:
        lines.append(
            f"open one in https://ui.perfetto.dev, or all: tensorboard --logdir {quote(str(run))}"
        )
    return "\n".join(lines), not missing


def stacks(run: Path, seconds: float, hz: float) -> tuple[str, bool]:
    """Ask all ranks for their stacks and wait for them. Returns lines to print, and whether every
    rank has answered.

    Raises SegtrainError for a run that is not training.
    """
    _refuse_out_of_range("--seconds", seconds, sampler.MOST_S)
    _refuse_out_of_range("--hz", hz, sampler.MOST_HZ)
    ranks = training_ranks(run)
    world, (step_s, _) = ranks[0].begins[-1]["world_size"], pace(ranks)
    folder, number = run / sampler.FOLDER, time.time()
    # Old answers are removed: more workers may have answered an earlier request, and their files
    # would remain.
    request(
        folder, {"asked": number, "seconds": seconds, "hz": hz}, stale=list(folder.glob("rank-*.*"))
    )

    def answers() -> dict[Path, dict[str, Any]]:
        contents = {path: read_json(path) for path in sorted(folder.glob("rank-*.json"))}
        return {path: facts for path, facts in contents.items() if facts.get("asked") == number}

    def absent() -> tuple[int, int]:
        """The number of ranks, and of workers of the other ranks, that have not answered."""
        workers = [facts["workers"] for facts in answers().values() if "workers" in facts]
        return world - len(workers), max(0, sum(workers) + len(workers) - len(answers()))

    wait_until(lambda: not any(absent()), seconds + LATE_S + 5 * step_s)
    lines = [
        f"{path.with_suffix('.txt')}  {facts['samples']} samples in {facts['seconds']:g} s"
        for path, facts in answers().items()
    ]
    ranks_absent, workers_absent = absent()
    if missing := ranks_absent + workers_absent:
        lines.append(
            f"{missing} processes have not answered: idle workers, a slow step, or ranks that do "
            "not see this folder"
        )
    lines.append(
        f"to see them: segtrain report {quote(str(run))}, or open one file in "
        "https://speedscope.app"
    )
    return "\n".join(lines), not ranks_absent


def _refuse_out_of_range(key: str, value: float, most: float) -> None:
    if not 0 < value <= most:
        raise SegtrainError(
            f"{key} {value:g} is not above 0 and at most {most:g}: choose another value, "
            f"or leave {key} out",
            code="request-out-of-range",
            key=key,
            value=value,
        )


def wait_until(true: Callable[[], bool], seconds: float) -> None:
    """Wait until ``true()``, for at most about ``seconds``. The monotonic clock is used: the wall
    clock may be set.
    """
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.1)


def run_ended(run: Path) -> SegtrainError:
    return SegtrainError(
        f"{run} has ended: only a run that still trains can be profiled",
        code="run-ended",
        file=str(run),
    )


def training_ranks(run: Path) -> list[Records]:
    """The spans of a run's ranks. Raises SegtrainError if there are none, or the run has ended."""
    ranks = read_spans(run)
    with contextlib.suppress(DataError):  # no journal
        if last_status(run):
            raise run_ended(run)
    return ranks


def request(folder: Path, content: dict[str, Any], stale: Iterable[Path] = ()) -> None:
    """Remove ``stale`` answers, and write a request for the processes of a run. Raises
    SegtrainError.
    """
    try:
        folder.mkdir(exist_ok=True)
        for old in stale:
            old.unlink()
        write_json(folder / CONTROL, content)
    except OSError as error:
        raise SegtrainError(
            f"cannot write {folder / CONTROL}: {error.strerror}: use the account that "
            "started the run",
            code="request-unwritable",
            file=str(folder / CONTROL),
        ) from None


def pace(ranks: list[Records]) -> tuple[float, int]:
    """Seconds of a step in the newest window, and an estimate of the current step; zeros if there
    is no window.
    """
    last = [records.windows[-1] for records in ranks if records.windows]
    if not last:
        return 0.0, 0
    newest = max(last, key=lambda window: window["last"])
    step_s = newest["seconds"] / (newest["last"] - newest["first"] + 1)
    since = min(max(0.0, time.time() - newest["ts"] - newest["seconds"]), MOST_SINCE_S)
    return step_s, newest["last"] + int(since / step_s)

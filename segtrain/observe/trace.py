"""Traces of a few steps: a request to all ranks of a run, and the file that each of them writes.

RUN/traces/control.json   ``asked`` (Unix time, the request's name), ``from`` (step, 1-based), ``steps``
RUN/traces/rank-00000-step-000123.json           Chrome's trace format: the phases of the loop, the samples of each worker, and what
                                                 torch.profiler saw; for ui.perfetto.dev or chrome://tracing
RUN/traces/rank-00000-step-000123.pt.trace.json  what torch.profiler saw alone, under a name that TensorBoard's profile plugin takes
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from segtrain.errors import SegtrainError
from segtrain.files import writing
from segtrain.observe.journal import FILE, parse_lines
from segtrain.observe.spans import Records, read_spans
from segtrain.observe.system import read_json, write_json

FOLDER, CONTROL = "traces", "control.json"
MOST_SINCE_S = 30.0  # spans are written every second or so; more passed only on a wall clock that was set
MOST_STEPS = 100
AHEAD_S = 3.0  # a request names a step so far ahead that all ranks have read it by then
MARK = "segtrain"  # the spans by which both parts of a trace find their common time
OURS = 10**8  # process number in the trace: no system counts so far


@dataclass(frozen=True)
class TraceRequest:
    """Steps ``first`` (1-based) and on, ``steps`` of them. ``asked``: which request this is."""

    asked: float
    first: int
    steps: int


def file_of(run: Path, rank: int, step: int) -> Path:
    return run / FOLDER / f"rank-{rank:05d}-step-{step:06d}.json"


def read_order(run: Path) -> TraceRequest | None:
    """The request that lies there; None where there is none that makes sense."""
    known = read_json(run / FOLDER / CONTROL)
    asked, first, steps = known.get("asked"), known.get("from"), known.get("steps")
    if (
        isinstance(asked, (int, float))
        and isinstance(first, int)
        and isinstance(steps, int)
        and 0 < steps <= MOST_STEPS
    ):
        return TraceRequest(asked, first, steps)
    return None


def events(
    rank: int,
    host: str,
    spans: Iterable[tuple[str, float, float]],
    samples: Iterable[tuple[int, float, dict[str, float]]],
    offset_us: float,
) -> list[dict[str, Any]]:
    """Chrome's events. ``spans`` of the loop: name, begin, end; ``samples``: worker, begin, seconds by stage (which add up).

    Seconds of one clock; ``offset_us`` is what a trace's time has more.
    """

    def slice_of(name: str, tid: int, begin: float, seconds: float, **args: Any) -> dict[str, Any]:
        at = {"ts": round(begin * 1e6 + offset_us, 3), "dur": round(seconds * 1e6, 3)}
        return {"ph": "X", "cat": "segtrain", "name": name, "pid": OURS + rank, "tid": tid, **at, "args": args}

    found = [slice_of(name, 0, begin, end - begin) for name, begin, end in spans]
    workers = set()
    for number, begin, stages in samples:
        workers.add(number)
        args = {f"{stage}_ms": round(1000 * seconds, 3) for stage, seconds in stages.items()}
        found.append(slice_of("sample", 1 + number, begin, sum(stages.values()), **args))
    names = {0: "loop", **{1 + number: f"worker {number}" for number in sorted(workers)}}
    head = {"ph": "M", "pid": OURS + rank}
    return [
        {**head, "name": "process_name", "args": {"name": f"segtrain rank {rank} on {host}"}},
        {**head, "name": "process_sort_index", "args": {"sort_index": -1}},
        *({**head, "tid": tid, "name": "thread_name", "args": {"name": name}} for tid, name in names.items()),
        *found,
    ]


def offset_us(trace: dict[str, Any], before: Sequence[float]) -> float:
    """What a trace's microseconds have more than a clock that read ``before`` (seconds) just before each mark was set.

    A mark may come late, when its thread had to wait, and never early: the least difference is the truest. Raises SegtrainError
    where marks are missing.
    """
    marks = sorted(e["ts"] for e in trace.get("traceEvents", []) if e.get("name") == MARK and e.get("ph") == "X")
    if len(marks) != len(before):
        raise SegtrainError(f"torch.profiler's trace has no span {MARK!r}: this version of torch writes another form")
    return min(float(mark) - 1e6 * moment for mark, moment in zip(marks, before))


def write_trace(path: Path, trace: dict[str, Any]) -> None:
    """Whole or not at all. Raises OSError."""
    with writing(path) as stream:
        stream.write(json.dumps(trace).encode())


def trace(run: Path, steps: int) -> tuple[str, bool]:
    """Ask all ranks for a trace and wait for it: lines for a person, and whether every rank has written one.

    Raises SegtrainError for a run that does not train.
    """
    if not 0 < steps <= MOST_STEPS:
        raise SegtrainError(f"--steps {steps}: a trace has 1 to {MOST_STEPS} steps, or nothing can show it")
    ranks = read_spans(run)
    refuse_ended(run)
    step_s, done = pace(ranks)
    if not step_s:
        raise SegtrainError(f"{run} has no whole second of steps yet: ask again in a moment")
    asked, traces = time.time(), "rank-*-step-*[0-9].json"
    before = {path: path.stat().st_mtime_ns for path in (run / FOLDER).glob(traces)}
    order = TraceRequest(asked, done + 1 + max(1, math.ceil(AHEAD_S / step_s)), steps)
    try:
        (run / FOLDER).mkdir(exist_ok=True)
        write_json(run / FOLDER / CONTROL, {"asked": asked, "from": order.first, "steps": steps})
    except OSError as error:
        raise SegtrainError(
            f"cannot write {run / FOLDER / CONTROL}: {error.strerror}: use the account that started the run"
        ) from None
    world = ranks[0].begins[-1]["world_size"]
    until = time.monotonic() + 60 + 2 * (AHEAD_S + step_s * (steps + 2))  # the wall clock may be set meanwhile
    written: set[Path] = set()
    while time.monotonic() < until and len(written) < world:
        time.sleep(0.1)
        found = (run / FOLDER).glob(traces)
        written = {path for path in found if path.stat().st_mtime_ns != before.get(path)}
    lines = [str(path) for path in sorted(written)]
    if len(written) < world:
        lines.append(
            f"{world - len(written)} of {world} ranks have not answered: has the run ended, do all see this folder?"
        )
    else:
        lines.append(f"open one in https://ui.perfetto.dev, or all: tensorboard --logdir {quote(str(run))}")
    return "\n".join(lines), len(written) == world


def refuse_ended(run: Path) -> None:
    """Raises SegtrainError where the last event is the end of the run."""
    try:
        with (run / FILE).open("rb") as file:
            last = [event["event"] for event in parse_lines(file, FILE, lambda text: None)][-1:]
    except OSError:
        last = []
    if last == ["run_end"]:
        raise SegtrainError(f"{run} has ended: traces and stacks are of a run that trains")


def pace(ranks: list[Records]) -> tuple[float, int]:
    """Seconds of a step lately, and the last step that is known; 0.0 where none is."""
    last = [records.windows[-1] for records in ranks if records.windows]
    if not last:
        return 0.0, 0
    newest = max(last, key=lambda window: window["last"])
    step_s = newest["seconds"] / (newest["last"] - newest["first"] + 1)
    since = min(max(0.0, time.time() - newest["ts"] - newest["seconds"]), MOST_SINCE_S)  # since it was written
    return step_s, newest["last"] + int(since / step_s)

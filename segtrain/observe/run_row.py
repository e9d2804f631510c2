"""Row of a run in the table of runs, from its config, best.json, and journal.

Any of these files may be missing, empty, or truncated: while a run writes them, after it was
killed, or in a partial copy. The row then has None for unknown values.
"""

from __future__ import annotations

import itertools
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from segtrain.base.files import is_running, now_ns, open_file
from segtrain.observe import journal

# Keys of a row. "loss": on the validation split, at the best step. "time": wall seconds of all
# processes of the run; "cpu_s": process seconds of training; "epoch_s": mean seconds of an epoch
# without evaluation; while the run goes on, at "images_per_s".
COLUMNS = (
    "name",
    "hash",
    "status",
    "step",
    "steps",
    "miou",
    "last_miou",
    "loss",
    "classes",
    "classes_present",
    "best_step",
    "time",
    "cpu_s",
    "strategy",
    "ranks",
    "batch",
    "images_per_s",
    "epoch_s",
    "started",
    "warnings",
    "out",
)
# seconds: a run on another host counts as running if its journal was written more recently
_FRESH = 600.0


def run_row(run: Path, config: Mapping[str, Any], best: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of ``COLUMNS``; unknown values are None. ``config`` and ``best``: contents of the
    files in ``run``.
    """
    events = list(_milestones(run / journal.FILE))
    start: dict[str, Any] = next(
        (event for event in reversed(events) if event["event"] == "run_start"), {}
    )
    scores = [event for event in journal.curve(events, "eval") if "scores" in event]
    laps = [[e for e in part if e["event"] == "step"] for part in _sessions(events)]
    steps = list(itertools.chain.from_iterable(laps))
    # The first lap of a process is too slow to measure speed.
    later = [event for part in laps for event in part[1:]] or steps
    warnings = start.get("warnings")
    parallel, train = (
        config[name] if isinstance(config.get(name), dict) else {} for name in ("parallel", "train")
    )
    batch = train.get("batch_size")
    speeds = [event["images_per_s"] for event in later if event.get("images_per_s")]
    speed = median(speeds) if speeds else None
    epoch = steps[-1].get("epoch") if steps else None
    seconds = None
    if epoch and speed and isinstance(batch, int):
        seconds = steps[-1]["step"] * batch / epoch / speed
    end = events[-1] if events else {}
    if epoch and end["event"] == "run_end" and end.get("step") and end.get("seconds"):
        seconds = end["seconds"] / (epoch * end["step"] / steps[-1]["step"])
    last = scores[-1]["scores"] if scores else {}
    at_best = journal.best_evaluation(scores).get("scores", {})
    return {
        "name": config.get("name") or start.get("name") or run.resolve().name,
        "hash": start.get("hash"),
        "status": _status(events, run / journal.FILE),
        "step": next(
            (e["step"] for e in reversed(events) if isinstance(e.get("step"), int)),
            best.get("step"),
        ),
        "steps": start.get("total_steps"),
        "miou": number((at_best if "by" in best else best).get("miou")),
        "last_miou": number(last.get("miou")),
        "loss": number(at_best.get("loss")),
        "classes": last.get("classes"),
        "classes_present": last.get("classes_present"),
        "best_step": best.get("step"),
        "time": _seconds(events),
        "cpu_s": next((e["cpu_s"] for e in reversed(events) if e.get("cpu_s") is not None), None),
        "strategy": start.get("strategy") or parallel.get("strategy"),
        "ranks": start.get("world_size"),
        "batch": batch,
        "images_per_s": speed,
        "epoch_s": seconds,
        "started": events[0]["ts"] if events else None,
        "warnings": [str(text) for text in warnings] if isinstance(warnings, list) else [],
        "out": str(run),
    }


def _milestones(path: Path) -> Iterator[dict[str, Any]]:
    """All events, but only the last of several step events in a row, so that long journals are read
    fast.
    """

    def is_step(line: bytes) -> bool:
        return line.startswith(b'{"event": "step"') and line.endswith(b"}\n")

    def lines() -> Iterator[bytes]:
        try:
            with open_file(path) as file:
                for are_steps, group in itertools.groupby(file, is_step):
                    yield from deque(group, maxlen=1 if are_steps else None)
        except FileNotFoundError:
            pass
        except OSError as error:
            journal.say_on_stderr(f"warning: {path} is left out: {error.strerror}")

    events = journal.parse_lines(lines(), str(path), say=lambda text: None)
    return (event for event in events if journal.is_time(event.get("ts")))


def _sessions(events: Iterable[journal.Event]) -> list[list[journal.Event]]:
    sessions: list[list[journal.Event]] = []
    for event in events:
        if event["event"] == "run_start" or not sessions:
            sessions.append([])
        sessions[-1].append(event)
    return sessions


def _seconds(events: Sequence[journal.Event]) -> float | None:
    """Wall seconds of all processes, each from its ``run_start`` to its last event."""
    return (
        sum(max(0.0, part[-1]["ts"] - part[0]["ts"]) for part in _sessions(events))
        if events
        else None
    )


def _status(events: Sequence[journal.Event], path: Path) -> str:
    """done, stopped, or failed by the last event; else running, killed (ended without an event), or
    new (no event).
    """
    if not events:
        return "new"
    last = _sessions(events)[-1]
    end = next((event for event in reversed(last) if event["event"] == "run_end"), None)
    if end is not None:
        return str(end.get("status", "done"))
    start = last[0]
    if start.get("host") == socket.gethostname() and isinstance(start.get("pid"), int):
        return "running" if is_running(start["pid"]) else "killed"
    return "running" if now_ns(path.parent) / 1e9 - path.stat().st_mtime < _FRESH else "killed"


def number(value: Any) -> float | None:
    """``value`` as a float if it is a number, else None: a journal has null for numbers that are
    not finite.
    """
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

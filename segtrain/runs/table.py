"""Table of runs: one row per run folder, from its config.yaml, best.json, and journal.jsonl.

Any of these may be missing, empty, or torn, while a run writes them, after it was killed, or in a partial copy. The row
then has gaps.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segtrain.errors import MissingExtra
from segtrain.files import is_running, now_ns
from segtrain.observe import journal
from segtrain.observe.console import duration, percent
from segtrain.runs.find import find_runs, read_mapping, started
from segtrain.terminal import columns

if TYPE_CHECKING:
    import pandas

# Keys of a row. "time": wall seconds of all processes of the run; "cpu_s": process seconds of training.
COLUMNS = (
    "name", "hash", "status", "step", "steps", "miou", "last_miou", "classes", "classes_present", "best_step", "time",
    "cpu_s", "started", "warnings", "out",
)  # fmt: skip
_FRESH = 600.0  # seconds: a run on another host with a younger journal counts as running


def list_runs(folder: str | Path = "runs") -> list[dict[str, Any]]:
    """One row per run, the oldest first, with the keys of ``COLUMNS``; unknown values are None."""
    return [read_run(run) for run in find_runs(folder)]


def read_run(run: Path) -> dict[str, Any]:
    config = read_mapping(run / "config.yaml")
    best = read_mapping(run / "best.json")
    events = list(_milestones(run / journal.FILE))
    start: dict[str, Any] = next((event for event in reversed(events) if event["event"] == "run_start"), {})
    scores = [event for event in journal.curve(events, "eval") if isinstance(event.get("scores"), dict)]
    warnings = start.get("warnings")
    pixels = pixels_of(scores[-1]) if scores else None
    return {
        "name": config.get("name") or start.get("name") or run.resolve().name,
        "hash": start.get("hash") or (_hash(run) if config else None),
        "status": _status(events, run / journal.FILE),
        "step": next((e["step"] for e in reversed(events) if isinstance(e.get("step"), int)), best.get("step")),
        "steps": start.get("total_steps"),
        "miou": number(best.get("miou")),
        "last_miou": number(scores[-1]["scores"].get("miou")) if scores else None,
        "classes": len(pixels) if pixels else None,
        "classes_present": sum(1 for count in pixels if count) if pixels else None,
        "best_step": best.get("step"),
        "time": _seconds(events),
        "cpu_s": next((value for e in reversed(events) if (value := number(e.get("cpu_s"))) is not None), None),
        "started": started(run) or None,
        "warnings": [str(text) for text in warnings] if isinstance(warnings, list) else [],
        "out": str(run),
    }


def _hash(run: Path) -> str | None:
    from segtrain.config import load_saved
    from segtrain.errors import ConfigError

    try:
        return load_saved(run / "config.yaml").hash
    except ConfigError:  # missing, torn, or written by another version
        return None


def _milestones(path: Path) -> Iterator[dict[str, Any]]:
    """All events, but only the last of several step events in a row, so that long journals are read fast."""

    def is_step(line: bytes) -> bool:
        return line.startswith(b'{"event": "step"') and line.endswith(b"}\n")

    def lines() -> Iterator[bytes]:
        with contextlib.suppress(OSError), path.open("rb") as file:
            for are_steps, group in itertools.groupby(file, is_step):
                yield from deque(group, maxlen=1 if are_steps else None)

    events = journal.parse_lines(lines(), str(path), say=lambda text: None)
    return (event for event in events if journal.is_time(event.get("ts")))


def _sessions(events: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    sessions: list[list[Mapping[str, Any]]] = []
    for event in events:
        if event["event"] == "run_start" or not sessions:
            sessions.append([])
        sessions[-1].append(event)
    return sessions


def _seconds(events: Sequence[Mapping[str, Any]]) -> float | None:
    """Wall seconds of all processes, each from its ``run_start`` to its last event."""
    return sum(max(0.0, part[-1]["ts"] - part[0]["ts"]) for part in _sessions(events)) if events else None


def _status(events: Sequence[Mapping[str, Any]], path: Path) -> str:
    """done, stopped, or failed by the last event; else running, killed (ended without an event), or new (no event)."""
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


def pixels_of(event: Mapping[str, Any]) -> list[int] | None:
    """Pixels of each class in the truth of an ``eval`` event; None if it has none."""
    pixels = event["scores"].get("pixels")
    return pixels if isinstance(pixels, list) and all(isinstance(count, int) for count in pixels) else None


def number(value: Any) -> float | None:
    """``value`` as a float if it is a number, else None: a journal has null for numbers that are not finite."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Aligned text with one line per run, followed by the warnings of the runs."""
    if not rows:
        return "no runs"
    cells = [("name", "hash", "status", "step", "best mIoU", "at step", "last mIoU", "time", "out")]
    for row in rows:
        step = "-" if row["step"] is None else f"{row['step']}/{row['steps'] or '?'}"
        present, classes = row.get("classes_present"), row.get("classes")
        few = f" ({present} of {classes} classes)" if present is not None and present != classes else ""
        best, last = (percent(row[key], 2) + few for key in ("miou", "last_miou"))
        best_step = "-" if row["best_step"] is None else str(row["best_step"])
        seconds = "-" if row["time"] is None else duration(row["time"])
        name, hash = str(row["name"]), row["hash"] or "-"
        cells.append((name, hash, row["status"], step, best, best_step, last, seconds, row["out"]))
    warned = [f"warning: {row['out']}: {text}" for row in rows for text in row.get("warnings") or ()]
    return "\n".join([*columns(cells, right={3, 4, 5, 6, 7}), *warned])


def data_frame(folder: str | Path = "runs") -> pandas.DataFrame:
    """The rows of ``list_runs`` as a pandas frame, ``started`` as UTC times. Raises MissingExtra without pandas."""
    try:
        import pandas
    except ImportError:
        raise MissingExtra("pandas", "pandas", "a data frame of runs") from None
    frame = pandas.DataFrame(list_runs(folder), columns=list(COLUMNS))
    frame["started"] = pandas.to_datetime(frame["started"], unit="s", utc=True)
    return frame

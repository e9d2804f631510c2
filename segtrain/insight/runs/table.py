"""Table of runs: one row per run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segtrain.base.terminal import columns
from segtrain.base.units import duration, percent
from segtrain.errors import MissingExtra
from segtrain.insight.runs.folder import find_runs, read_mapping
from segtrain.observe.console import classes_note
from segtrain.observe.journal import say_on_stderr
from segtrain.observe.run_row import COLUMNS, run_row

if TYPE_CHECKING:
    import pandas

    from segtrain.insight.runs.remote import Services


def list_runs(folder: str | Path = "runs") -> list[dict[str, Any]]:
    """One row per run, the oldest first, with the keys of ``COLUMNS``; unknown values are None."""
    return [read_run(run) for run in find_runs(folder)]


def read_run(run: Path) -> dict[str, Any]:
    config, best = (
        read_mapping(run / name, say_on_stderr) for name in ("config.yaml", "best.json")
    )
    return run_row(run, config, best)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Aligned text with one line per run, followed by the warnings of the runs."""
    if not rows:
        return "no runs"
    head = [
        "name",
        "hash",
        "status",
        "step",
        "best mIoU",
        "at step",
        "last mIoU",
        "time",
        "strategy",
        "ranks",
        "batch",
    ]
    cells = [[*head, "images/s", "s/epoch", "out"]]
    for row in rows:
        step = "-" if row["step"] is None else f"{row['step']}/{row['steps'] or '?'}"
        best, last = (
            "-" if row[key] is None else percent(row[key], 2) + classes_note(row)
            for key in ("miou", "last_miou")
        )
        best_step = "-" if row["best_step"] is None else str(row["best_step"])
        seconds = "-" if row["time"] is None else duration(row["time"])
        name, hash = str(row["name"]), row["hash"] or "-"
        setup = (
            "-" if row.get(key) is None else str(row[key]) for key in ("strategy", "ranks", "batch")
        )
        speed = (
            "-" if row.get(key) is None else f"{row[key]:.1f}"
            for key in ("images_per_s", "epoch_s")
        )
        cells.append(
            [
                name,
                hash,
                row["status"],
                step,
                best,
                best_step,
                last,
                seconds,
                *setup,
                *speed,
                row["out"],
            ]
        )
    warned = [
        f"warning: {row['out']}: {text}" for row in rows for text in row.get("warnings") or ()
    ]
    return "\n".join([*columns(cells, right={3, 4, 5, 6, 7, 9, 10, 11, 12}), *warned])


def data_frame(folder: str | Path = "runs", services: Services = ()) -> pandas.DataFrame:
    """The rows of a folder, a bucket, or a location of ``services`` as a pandas frame, ``started``
    as UTC times.

    Raises MissingExtra without pandas.
    """
    from segtrain.insight.runs.remote import rows

    try:
        import pandas
    except ImportError:
        raise MissingExtra("pandas", "pandas", "a data frame of runs") from None
    frame = pandas.DataFrame(rows(str(folder), services=services), columns=list(COLUMNS))
    frame["started"] = pandas.to_datetime(frame["started"], unit="s", utc=True)
    return frame

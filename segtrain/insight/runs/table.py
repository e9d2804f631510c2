"""Table of runs: one row per run folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from segtrain.base.terminal import columns, counted
from segtrain.base.units import duration, percent
from segtrain.errors import ConfigError, MissingExtra
from segtrain.insight.runs.folder import find_runs, flat, read_mapping
from segtrain.observe.console import classes_note
from segtrain.observe.journal import say_on_stderr
from segtrain.observe.run_row import COLUMNS, run_row
from segtrain.observe.tracker import short_text

if TYPE_CHECKING:
    import pandas

    from segtrain.insight.runs.remote import Services


# Settings that have a column of their own, or differ between any two runs.
_COMMON = ("name", "out", "parallel.strategy", "train.batch_size")
_SEED = "train.seed"
# Columns whose mean and deviation over the seeds of a config are shown.
MEANS = ("miou", "last_miou", "loss", "time", "cpu_s", "images_per_s", "epoch_s")
_SHOWN = 8  # most settings with a column on the console


def list_runs(folder: str | Path = "runs") -> list[dict[str, Any]]:
    """One row per run, the oldest first, with the keys of ``COLUMNS``; unknown values are None.

    ``settings`` has the values of all settings that are not equal in all these runs.
    """
    rows, configs = [], []
    for run in find_runs(folder):
        config = _mapping(run / "config.yaml")
        rows.append(run_row(run, config, _mapping(run / "best.json")))
        configs.append(flat(config))
    differing = [
        key
        for key in dict.fromkeys(key for config in configs for key in config)
        if key not in _COMMON and any(c.get(key) != configs[0].get(key) for c in configs)
    ]
    return [
        {**row, "settings": {key: config.get(key) for key in differing}}
        for row, config in zip(rows, configs)
    ]


def read_run(run: Path) -> dict[str, Any]:
    return run_row(run, _mapping(run / "config.yaml"), _mapping(run / "best.json"))


def _mapping(path: Path) -> dict[str, Any]:
    return read_mapping(path, say_on_stderr)


def by_seed(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per config: the means of the runs that differ only in their seeds.

    ``runs``: how many there are; ``KEY_sd``: the standard deviation of a column of ``MEANS``, or
    None for one run. Other columns have the value that these runs share, or None. Raises
    ConfigError for rows without settings, as from Vertex AI.
    """
    if any("settings" not in row for row in rows):
        raise ConfigError(
            "these runs are listed without their settings, so seeds cannot be told from other "
            "settings: list them from their folder or bucket",
            code="no-settings",
        )
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        settings = {**row["settings"], _SEED: None}
        setup = [settings, *(row[key] for key in ("strategy", "ranks", "batch"))]
        groups.setdefault(json.dumps(setup, default=str), []).append(row)
    return [_mean_row(group) for group in groups.values()]


def _mean_row(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = group[0]
    row = {
        key: value if all(other[key] == value for other in group) else None
        for key, value in first.items()
    }
    for key in MEANS:
        values = [other[key] for other in group if other[key] is not None]
        row[key] = mean(values) if values else None
        row[f"{key}_sd"] = stdev(values) if len(values) > 1 else None
    counts = Counter(other["status"] for other in group)
    settings = {k: v for k, v in first["settings"].items() if k != _SEED}
    return row | {
        "name": first["name"],
        "out": first["out"],
        "runs": len(group),
        "status": ", ".join(f"{count} {status}" for status, count in counts.items()),
        "settings": settings,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Aligned text with one line per row, followed by the warnings of the runs."""
    if not rows:
        return "no runs"
    settings = list(rows[0].get("settings", {}))
    shown = settings[:_SHOWN]
    lines = [
        {
            **_cells(row),
            **{key: value_text(row["settings"].get(key)) for key in shown},
            "out": row["out"],
        }
        for row in rows
    ]
    left = ("name", "hash", "status", "strategy", *settings, "out")
    head = list(lines[0])
    right = {number for number, title in enumerate(head) if title not in left}
    notes = [f"warning: {row['out']}: {text}" for row in rows for text in row.get("warnings") or ()]
    if len(settings) > _SHOWN:
        more = counted(len(settings) - _SHOWN, "more setting")
        notes.append(f"{more} in which these runs differ: --json shows all")
    return "\n".join([*columns([head, *(list(line.values()) for line in lines)], right), *notes])


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Text of each column, by its title."""

    def shown(key: str, text: Callable[[Any], str] = str) -> str:
        value, deviation = row.get(key), row.get(f"{key}_sd")
        spread = "" if deviation is None else f" ± {text(deviation)}"
        return "-" if value is None else text(value) + spread

    def score(key: str) -> str:
        return shown(key, lambda value: percent(value, 2)) + classes_note(row) * (
            row[key] is not None
        )

    steps = "-" if row["step"] is None else f"{row['step']}/{row['steps'] or '?'}"
    return {
        "name": str(row["name"]),
        **({"runs": str(row["runs"])} if "runs" in row else {}),
        "hash": row["hash"] or "-",
        "status": row["status"],
        "step": steps,
        "best mIoU": score("miou"),
        "at step": shown("best_step"),
        "last mIoU": score("last_miou"),
        "val loss": shown("loss", "{:.4f}".format),
        "time": shown("time", duration),
        "strategy": shown("strategy"),
        "ranks": shown("ranks"),
        "batch": shown("batch"),
        "images/s": shown("images_per_s", "{:.1f}".format),
        "s/epoch": shown("epoch_s", "{:.1f}".format),
    }


def value_text(value: Any) -> str:
    """The value of a setting in few characters."""
    return f"{value:.6g}" if isinstance(value, float) else short_text(value, 24)


def data_frame(
    folder: str | Path = "runs", services: Services = (), seeds: bool = False
) -> pandas.DataFrame:
    """The rows of a folder, a bucket, or a location of ``services`` as a pandas frame, ``started``
    as UTC times. Each setting that differs is a column.

    ``seeds``: one row per config, see ``by_seed``. Raises MissingExtra without pandas.
    """
    from segtrain.insight.runs.remote import rows

    try:
        import pandas
    except ImportError:
        raise MissingExtra("pandas", "pandas", "a data frame of runs") from None
    listed = rows(str(folder), services=services)
    listed = by_seed(listed) if seeds else listed
    flat_rows = [{**row, **row.get("settings", {})} for row in listed]
    titles = dict.fromkeys([*COLUMNS, *(key for row in flat_rows for key in row)])
    titles.pop("settings", None)
    frame = pandas.DataFrame(flat_rows, columns=list(titles))
    frame["started"] = pandas.to_datetime(frame["started"], unit="s", utc=True)
    return frame

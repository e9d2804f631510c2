"""Pages of figures in bench/results: what was measured, on which machine, with which command."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from segtrain.base.cores import cores

RESULTS = Path(__file__).resolve().parent / "results"


def machine() -> str:
    """Number of cores, name of the processor where Linux tells it, and version of Python."""
    names: list[str] = []
    if (cpuinfo := Path("/proc/cpuinfo")).is_file():
        lines = cpuinfo.read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{cores()} cores of {names[0] if names else platform.machine()}, Python {platform.python_version()}"


def facts(**more: Any) -> dict[str, Any]:
    """What every page states; call it before the measurement, because it has the load."""
    return {
        "date": str(datetime.date.today()),
        "machine": machine(),
        **more,
        "load before": "{:.1f} {:.1f} {:.1f}".format(*os.getloadavg()),
        "command": " ".join(["python", *sys.argv]),
    }


def middle(values: Iterable[float], form: str) -> str:
    """The median; "" if there are no values."""
    rounds = list(values)
    return format(median(rounds), form) if rounds else ""


def spread(values: Iterable[float], form: str) -> str:
    """Median, least, and most of the rounds; "" if there are none."""
    rounds = sorted(values)
    if len(rounds) < 2:
        return middle(rounds, form)
    return f"{middle(rounds, form)} ({format(rounds[0], form)} to {format(rounds[-1], form)})"


def each_round(values: Iterable[float], form: str) -> str:
    """Median, and the value of each round; "" if there are none."""
    rounds = list(values)
    return (
        f"{middle(rounds, form)} ({', '.join(format(value, form) for value in rounds)})"
        if rounds
        else ""
    )


def save(
    name: str,
    out: Path | None,
    title: str,
    facts: dict[str, Any],
    lines: Sequence[str],
    results: Any = None,
) -> str:
    """Write the page to ``out``.md, and the ``results`` to ``out``.json; without ``out`` to
    bench/results/DATE-name.
    """
    path = out or RESULTS / f"{facts['date']}-{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = [
        f"# {title}, {facts['date']}",
        "",
        *(f"- {key}: {facts[key]}" for key in facts if key != "date"),
        "",
    ]
    text = "\n".join([*head, *lines]).rstrip() + "\n"
    path.with_name(f"{path.name}.md").write_text(text, encoding="utf-8")
    if results is not None:
        whole = json.dumps({**facts, "results": results}, indent=1)
        path.with_name(f"{path.name}.json").write_text(whole + "\n", encoding="utf-8")
    return text

"""The table of `segtrain bench data`: text in aligned columns that fits on one screen."""

from __future__ import annotations

import textwrap
from typing import Any

from segtrain.base.terminal import columns
from segtrain.base.units import size


def table(result: dict[str, Any]) -> str:
    """All that was measured, about 45 lines of at most 110 columns."""
    parts = [_head(result), _stages(result), _loader(result), _verdict(result)]
    if result["feeding"]:
        parts.append(_feeding(result))
    return "\n\n".join("\n".join(part) for part in parts)


def _head(result: dict[str, Any]) -> list[str]:
    data, host = result["data"], result["host"]
    here = result["sample"]
    formats = ", ".join(f"{count} {name}" for name, count in data["formats"].items())
    return [
        f"segtrain bench data  {result['config']}  #{result['hash']}",
        f"  data    {data['name']}, {data['split']}: {data['measured']} of {data['total']:,} "
        f"samples ({formats}), {data['pixels'] / 1e6:.2f} Mpixel; crop "
        f"{data['crop'][0]}x{data['crop'][1]}",
        f"  bytes   {size(here['bytes_image'])} image + {size(here['bytes_mask'])} mask",
        f"  path    {result['path_says']}",
        f"  host    {cores(host['cores'])}, {size(host['memory'])} ({host['memory_by']})",
    ]


def _stages(result: dict[str, Any]) -> list[str]:
    stages, cold = result["sample"]["stages"], result["sample"]["cold"]
    whole = stages["whole"]
    rows = [("on one core, ms", "median", "mean", "share")]
    for stage, cost in stages.items():
        times = f"{cost['wall_ms']:.3f}", f"{cost['wall_mean_ms']:.2f}"
        rows.append((stage, *times, f"{cost['wall_mean_ms'] / whole['wall_mean_ms']:.0%}"))
    rows.append(("its CPU time", f"{whole['cpu_ms']:.3f}", f"{whole['cpu_mean_ms']:.2f}", ""))
    if "why_not" in cold:
        read = f"not known: {cold['why_not']}"
    else:
        read = f"{cold['ms_a_file']:.2f} ms per file, {cold['mb_per_s']:.0f} MB/s for one reader"
    return [*columns(rows, right=range(1, 4)), f"read, not in the page cache: {read}"]


def _loader(result: dict[str, Any]) -> list[str]:
    rows = [("the loader", "samples/s", "CPU ms/sample", "memory")]
    for row in result["rates"]:
        plural = "" if row["workers"] == 1 else "es" if row["kind"] == "process" else "s"
        name = f"  {row['workers']} {row['kind']}{plural}"
        rows.append((name, f"{row['per_s']:.1f}", f"{row['cpu_ms']:.2f}", size(row["memory"])))
    return columns(rows, right=range(1, 4))


def _verdict(result: dict[str, Any]) -> list[str]:
    best = max(result["rates"], key=lambda row: row["per_s"])
    fits = "fits" if result["data"]["fits_in_memory"] else "does not fit"
    limit = (
        f"{result['limit_per_s']:.1f} samples/s ({cores(result['host']['cores'])}, "
        f"{best['cpu_ms']:.2f} ms each)"
    )
    lines = [
        f"limit  {limit}; measured {result['measured_per_s']:.1f}",
        f"       needs {result['storage_mb_per_s']:.1f} MB/s of storage; the split, "
        f"{size(result['data']['stored_bytes'])}, {fits} in memory",
    ]
    advice = [("bound", f"{result['bound']}: {result['why']}")]
    advice += [("do", row["cure"]) for row in result["verdicts"][:1]]
    gains = [f"{fix['gain']:.2f} x samples per CPU-second: {fix['do']}" for fix in result["cures"]]
    advice += [("or" if number else "fix", gain) for number, gain in enumerate(gains)]
    for word, text in advice:
        lines += textwrap.wrap(text, 110, initial_indent=f"{word:<7}", subsequent_indent=" " * 7)
    return lines


def _feeding(result: dict[str, Any]) -> list[str]:
    rows = [(f"devices of {result['device_per_s']:.1f} images/s", "wanted", "given", "waiting", "")]
    for row in result["feeding"]:
        ranks = f"  {row['ranks']} rank{'s' if row['ranks'] > 1 else ''}"
        rates = f"{row['wanted_per_s']:.1f}", f"{row['given_per_s']:.1f}", f"{row['wait']:.1%}"
        rows.append((ranks, *rates, "" if row["fed"] else "too few samples"))
    return columns(rows, right=(1, 2, 3))


def cores(number: float) -> str:
    return f"{number:.3g} core{'s' if number != 1 else ''}"

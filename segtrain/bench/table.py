"""How is a measurement of the input told to a person? Aligned columns on one screen."""

from __future__ import annotations

from typing import Any

from segtrain.bench.verdict import STAGES, shares

_ROWS = {**STAGES, "whole": "whole sample", "full decode": "whole image and mask decoded, nothing else"}


def table(result: dict[str, Any]) -> str:
    """All that was measured, about 45 lines of at most 100 columns."""
    parts = [_head(result), _stages(result), _loader(result), _verdict(result)]
    if result["feeding"]:
        parts.append(_feeding(result))
    return "\n\n".join(parts)


def _head(result: dict[str, Any]) -> str:
    data, host = result["data"], result["host"]
    here = result["paths"][result["path"]]
    formats = ", ".join(f"{count} {name}" for name, count in data["formats"].items())
    lines = [
        f"segtrain bench data  {result['config']}  #{result['hash']}",
        f"  data    {data['name']}, {data['split']}: {data['measured']} of {data['total']:,} samples ({formats}), "
        f"{data['pixels'] / 1e6:.2f} Mpixel; crop {data['crop'][0]}x{data['crop'][1]}",
        f"  bytes   {size(here['bytes_image'])} image + {size(here['bytes_mask'])} mask",
        f"  path    {result['path_says']}",
        f"  host    {cores(host['cores'])}, {size(host['memory'])} ({host['memory_by']})",
    ]
    return "\n".join(lines)


def _stages(result: dict[str, Any]) -> str:
    paths = list(result["paths"])
    width = max(map(len, _ROWS.values()))
    lines = [
        f"{'on one core, ms':<{width}}" + "".join(f"  {name + ': CPU':>13}   mean   wall  share" for name in paths)
    ]
    parts = {name: shares(result["paths"][name]["stages"]) for name in paths}
    for stage, words in _ROWS.items():
        cells = [_cells(result["paths"][name]["stages"].get(stage), parts[name].get(stage)) for name in paths]
        if any(cell.strip() for cell in cells):
            lines.append(f"{words:<{width}}" + "".join(cells).rstrip())
    cold = result["paths"][result["path"]]["cold"]
    told = f"not told: {cold['why_not']}" if "why_not" in cold else ""
    lines.append(
        "read, not in the page cache: "
        + (told or f"{cold['ms_a_file']:.2f} ms a file, {cold['mb_per_s']:.0f} MB/s for one reader")
    )
    return "\n".join(lines)


def _cells(cost: dict[str, float] | None, share: float | None) -> str:
    part = f"{100 * share:5.0f}%" if share is not None else " " * 6
    if cost is None:
        return " " * 31 + part if share else " " * 37
    return f"  {cost['cpu_ms']:13.3f} {cost['cpu_mean_ms']:6.2f} {cost['wall_ms']:6.2f} {part}"


def _loader(result: dict[str, Any]) -> str:
    lines = ["the loader         samples/s  CPU ms a sample  memory"]
    for found in result["rates"]:
        name = f"{found['workers']} {found['kind']}{'es' if found['kind'] == 'process' else 's'}"
        if found["workers"] == 1:
            name = f"1 {found['kind']}"
        lines.append(f"  {name:<16} {found['per_s']:9.1f}  {found['cpu_ms']:15.2f}  {size(found['memory'])}")
    return "\n".join(lines)


def _verdict(result: dict[str, Any]) -> str:
    best = max(result["rates"], key=lambda found: found["per_s"])
    words = STAGES.get(result["bound"], result["bound"])
    held = "fits" if result["data"]["fits_in_memory"] else "does not fit"
    lines = [
        f"limit  {result['limit_per_s']:.1f} samples/s ({cores(result['host']['cores'])}, {best['cpu_ms']:.2f} ms each); "
        f"measured {result['measured_per_s']:.1f}",
        f"       needs {result['storage_mb_per_s']:.1f} MB/s of storage; the split, {size(result['data']['stored_bytes'])}, "
        f"{held} in memory",
        f"bound  {words}: {result['why']}",
    ]
    for cure in result["cures"]:
        lines.append(f"cure   {cure['gain']:.2f} x samples a CPU-second: {cure['do']}")
    return "\n".join(lines)


def _feeding(result: dict[str, Any]) -> str:
    lines = [f"devices of {result['device_per_s']:.1f} img/s   wanted    given  waiting"]
    for found in result["feeding"]:
        ranks = f"{found['ranks']} rank{'s' if found['ranks'] > 1 else ''}"
        lines.append(
            f"  {ranks:<23} {found['wanted_per_s']:8.1f} {found['given_per_s']:8.1f} {100 * found['wait']:6.1f} %"
            + ("" if found["fed"] else "  too few cores")
        )
    return "\n".join(lines)


def size(number: float) -> str:
    """``812 kB``, ``1.5 GB``: decimal units."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= step:
            return f"{number / step:.3g} {unit}"
    return f"{number:.0f} B"


def cores(number: float) -> str:
    return f"{number:.3g} core{'s' if number != 1 else ''}"

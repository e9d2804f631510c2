"""What bounds the input of a run, what would help, and are the devices fed? Pure functions of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

RANKS = (1, 2, 4, 8)
ENOUGH = 0.02  # a device that waits less than this share of its time is fed
STAGES = {  # stage -> what it is called
    "read": "read from storage, in the page cache",
    "header": "header",
    "draw": "draw of the geometry",
    "center": "center of a class-balanced crop",
    "image": "image: decode",
    "mask": "mask: decode and map ids",
    "crop": "resample, flip, color",
    "transforms": "transforms",
    "other": "the rest",
}
CURES = {
    "native": "build the native decoder: see `segtrain doctor`",
    "pixels in memory": "data.cache=ram",
    "files cut to size": "cut files to the largest scale that is drawn",
}
WORTH = 0.05  # a cure that gains less is not named


def shares(stages: dict[str, dict[str, float]]) -> dict[str, float]:
    """Share of each stage in the CPU of a whole sample; what no stage explains is ``other``. Sums to 1."""
    whole = stages["whole"]["cpu_mean_ms"]
    seen = {name: stages[name]["cpu_mean_ms"] for name in STAGES if name in stages}
    seen["other"] = max(0.0, whole - sum(seen.values()))
    total = sum(seen.values()) or 1.0
    return {name: value / total for name, value in seen.items()}


def bound(
    stages: dict[str, dict[str, float]], best: dict[str, Any], cores: float, cold_ms: float | None = None
) -> tuple[str, str]:
    """What to look at first, and why: ``storage``, ``cores`` or the stage that takes most CPU.

    ``best``: the fastest setting of the loader. ``cold_ms``: what reading a sample takes where the page cache cannot hold the files,
    else None. ``cores``: workers were made to wait, so that they did not keep the cores busy that they had.
    """
    workers, cpu_ms = best["workers"], best["cpu_ms"]
    if cold_ms is not None and cold_ms / workers > cpu_ms / min(cores, workers):
        return "storage", (
            f"a sample that is not in memory takes {cold_ms:.1f} ms to read, its CPU work {cpu_ms:.1f} ms; "
            "more workers, or shards, hide it"
        )
    busy = best["per_s"] * cpu_ms / 1000
    if busy < 0.7 * cores:
        return "cores", (
            f"{workers} worker{'s' if workers > 1 else ''} kept {busy:.1f} cores busy, of {cores:.3g}: "
            "more brought no more; other programs, or storage, make workers wait"
        )
    part = shares(stages)
    name = max(part, key=lambda key: part[key])
    return name, f"{100 * part[name]:.0f} % of a sample's CPU"


def cures(
    now: dict[str, Any], other: dict[str, Any] | None, needed: int, memory: float, cached: bool
) -> list[dict[str, Any]]:
    """What would help, with the factor of samples a CPU-second that was measured on the sample; best first.

    ``needed``: bytes of all decoded samples, ``memory``: bytes that this process may use, ``cached``: data.cache=ram is on already.
    """
    found = []
    whole = now["stages"]["whole"]["cpu_mean_ms"]
    if other is not None and now["path"] != "native" and other["path"] == "native":
        found.append(_cure("native", whole / other["stages"]["whole"]["cpu_mean_ms"]))
    plain = now["cures"].get("as it is", {}).get("cpu_mean_ms")
    for name, cost in now["cures"].items():
        if name == "as it is" or not plain or (name == "pixels in memory" and (cached or needed > 0.8 * memory)):
            continue
        # Reading from storage stays, but for pixels in memory.
        left = 0.0 if name == "pixels in memory" else max(0.0, whole - plain)
        found.append(_cure(name, whole / (left + cost["cpu_mean_ms"])))
    rows = {row["name"]: row for row in now["packed"] if not row["fault"]}
    for form, row in rows.items():
        if form != "files" and row["ms"]:
            size = row["sample"] / (rows["files"]["sample"] or 1)
            words = f"segtrain data pack --image {form}: {row['pixels']}, {size:.2g} x the bytes"
            found.append({"name": f"pack {form}", "do": words, "gain": rows["files"]["ms"] / row["ms"]})
    return sorted((cure for cure in found if cure["gain"] > 1 + WORTH), key=lambda cure: -cure["gain"])


def _cure(name: str, gain: float) -> dict[str, Any]:
    return {"name": name, "do": CURES.get(name, name), "gain": gain}


def feeding(limit_per_s: float, device_per_s: float, ranks: Sequence[int] = RANKS) -> list[dict[str, Any]]:
    """For each number of ranks on this host, each with a device that takes ``device_per_s``: the share of time that the devices wait.

    All ranks together get ``limit_per_s`` from the host's cores. What a rank's own process computes is not in it.
    """
    rows = []
    for count in ranks:
        wanted = count * device_per_s
        wait = max(0.0, 1 - limit_per_s / wanted)
        rows.append(
            {
                "ranks": count,
                "wanted_per_s": wanted,
                "given_per_s": min(wanted, limit_per_s),
                "wait": wait,
                "fed": wait < ENOUGH,
            }
        )
    return rows

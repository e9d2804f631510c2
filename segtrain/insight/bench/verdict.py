"""Verdict on a measured input pipeline: the bottleneck by the rules of `segtrain diagnose`, and
each fix's gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from segtrain.config import Config
from segtrain.insight.diagnose.data_rules import IN_MEMORY, PACK, data_verdicts
from segtrain.insight.diagnose.differences import possible
from segtrain.insight.diagnose.evidence import Evidence
from segtrain.insight.diagnose.stats import run_stats
from segtrain.insight.diagnose.verdict import Fix, Verdict
from segtrain.observe.spans import Records

RANKS = (1, 2, 4, 8)
ENOUGH = 0.02  # a device that waits for less than this share of its time gets enough samples
WORTH = 1.05  # a fix that gains less is not named


def verdicts(
    window: dict[str, Any],
    config: Config,
    cores: float,
    device_per_s: float | None,
    cold_s: float | None = None,
    rates: Sequence[Mapping[str, Any]] = (),
) -> list[Verdict]:
    """What `segtrain diagnose` would report for a run with this loader and one device. Empty if it
    never waits.

    ``rates``: of each kind and number of workers. A kind of worker that is slower than another one
    is not advised; if the config has such a kind, the first fix is the other one.

    ``window``: see ``rates.rate``. ``device_per_s``: images/s that the device can train on; None:
    infinitely fast. ``cold_s``: seconds to read a sample that is not in the page cache; None if the
    page cache can hold all files, or if the time is not known.
    """
    from segtrain.data.train_loader import worker_kind

    work, wall = window["workers"], window["seconds"]
    if cold_s is not None and cold_s * work["samples"] > work["seconds"]["read"]:
        seconds = {**work["seconds"], "read": cold_s * work["samples"]}
        work = {key: value for key, value in work.items() if key != "reads"} | {"seconds": seconds}
        wall = max(wall, sum(seconds.values()) / work["count"])
    busy = window["images"] / device_per_s if device_per_s else 0.0
    phases = {"wait": max(0.0, wall - busy), "forward": busy}
    begin = {"ts": 0.0, "cores": cores, "device": "cuda"}
    records = Records(0, (begin,), ({**window, "phases": phases, "workers": work},))
    settings = config.model_dump(mode="json")
    figures = run_stats(Evidence((records,), config=settings))
    ranked = data_verdicts(figures) if figures else []
    best = {one["kind"]: one["per_s"] for one in sorted(rates, key=lambda one: one["per_s"])}
    fastest = max(best, key=lambda kind: best[kind], default="")
    kind = worker_kind(config.data)
    if ranked and best.get(fastest, 0.0) > WORTH * best.get(kind, float("inf")):
        measured = f"measured: {best[fastest]:.0f} samples/s instead of {best[kind]:.0f}"
        fix = Fix({"data.worker_kind": fastest}, measured, ranked[0].fix.choices)
        ranked[0] = replace(ranked[0], fix=fix, gain=best[fastest] / best[kind])
    takes = lambda change: not best or change.get("data.worker_kind", fastest) == fastest  # noqa: E731
    return [possible(verdict, settings, takes) for verdict in ranked]


def fixes(now: dict[str, Any], fits: bool) -> list[dict[str, Any]]:
    """Fixes, best first, each with its gain: the factor by which samples per CPU-second increase.

    ``now``: see ``stages.measure``. ``fits``: whether data.cache=ram is possible and not set, and
    its images fit into memory.
    """
    gains = []
    cost = {name: times["wall_mean_ms"] for name, times in now["stages"].items()}
    if fits and now["bytes_image"]:
        left = cost["whole"] - cost["read"] - cost["decode"]
        gains.append(("pixels in memory", IN_MEMORY.text, cost["whole"] / max(left, 1e-3)))
    rows = {row["name"]: row for row in now["packed"]}
    for form, row in rows.items():
        if form != "files" and row["ms"]:
            size = row["sample"] / (rows["files"]["sample"] or 1)
            words = f"{PACK} --image {form}: {row['pixels']}, {size:.2g} x the bytes"
            gains.append((f"pack {form}", words, rows["files"]["ms"] / row["ms"]))
    named = [
        {"name": name, "do": words, "gain": gain} for name, words, gain in gains if gain > WORTH
    ]
    return sorted(named, key=lambda fix: -fix["gain"])


def feeding(loader_per_s: float, host_per_s: float, device_per_s: float) -> list[dict[str, Any]]:
    """For each number of ranks on this host: the images/s that their devices want and get, and
    their share of waiting.

    A device can train on ``device_per_s``, a rank's loader gives ``loader_per_s``, and all loaders
    of the host together give ``host_per_s``. The CPU time of the training processes themselves is
    left out.
    """
    rows = []
    for count in RANKS:
        wanted = count * device_per_s
        limit = min(count * loader_per_s, host_per_s)
        given, wait = min(wanted, limit), max(0.0, 1 - limit / wanted)
        rows.append(
            {
                "ranks": count,
                "wanted_per_s": wanted,
                "given_per_s": given,
                "wait": wait,
                "fed": wait < ENOUGH,
            }
        )
    return rows

"""Records of runs, made up: the windows of ranks, and run folders with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from segtrain.config import load_config
from segtrain.insight.diagnose.evidence import Evidence
from segtrain.insight.diagnose.judge import judge
from segtrain.insight.diagnose.verdict import Diagnosis
from segtrain.insight.plan.terms import Terms
from segtrain.observe.spans import Records

CALM = {
    "wait": 0.02,
    "forward": 0.4,
    "backward": 0.5,
    "update": 0.05,
    "other": 0.02,
    "log": 0.01,
}  # seconds of a window


STEPS = 10  # of a window


T0 = 1_795_000_000.0  # Unix time of the beginning


SAMPLE = {"read": 0.0005, "decode": 0.004, "augment": 0.001, "assemble": 0.0005}


def rank_records(
    phases: dict[str, float] | None = None,
    *,
    rank: int = 0,
    world: int = 1,
    host: str = "one",
    local: int = 0,
    cores: int = 8,
    device: str = "cpu",
    threads: int = 1,
    images: int = 8,
    workers: int = 2,
    kind: str = "thread",
    stages: dict[str, float] | None = None,
    sample_cpu: float | None = None,
    cpu: float = 0.9,
    size: int = 200_000,
    reads: dict[str, float] | None = None,
    windows: int = 4,
    gradient: int = 0,
    other_cpu: float = 0.0,
    crowded: dict[str, float] | None = None,
    cpu_wait: float | None = None,
    sample_cpu_wait: float = 0.0,
    shared: float | None = None,
    other_cpu_wait: float | None = None,
    process_cpu: float | None = None,
) -> Records:
    """A rank whose windows are all alike.

    ``stages`` and ``sample_cpu``: seconds of one sample; ``cpu``: of the rest of a window.
    """
    phases, stages = {**CALM, **(phases or {})}, {**SAMPLE, **(stages or {})}
    made, own = STEPS * images, sum(stages.values()) if sample_cpu is None else sample_cpu
    begin = {
        "begin": 1,
        "ts": T0,
        "rank": rank,
        "host": host,
        "local_rank": rank,
        "world_size": world,
        "local_world_size": local or world,
        "device": device,
        "cores": cores,
        "batch_size": images * world,
        "accumulate": 1,
        "bytes_gradient": gradient,
        "crowded": crowded,
    }
    window = {
        "seconds": sum(phases.values()),
        "rank": rank,
        "host": host,
        "images": made,
        "phases": phases,
        "slowest_ms": 130.0,
        "cpu_s": cpu + (made * own if kind == "thread" else 0.0),
        "threads": threads,
        "other_cpu_s": other_cpu,
        "workers": {
            "count": workers,
            "kind": kind,
            "samples": made,
            "seconds": {k: made * v for k, v in stages.items()},
            "cpu_s": made * own,
            "cpu_wait_s": made * sample_cpu_wait,
            "bytes": made * size,
            "queue": 0.5,
            **({"reads": reads} if reads else {}),
        },
    }
    window |= {"cpu_wait_s": cpu_wait} if cpu_wait is not None else {}
    window |= {"other_cpu_wait_s": other_cpu_wait} if other_cpu_wait is not None else {}
    if process_cpu is not None:
        window["workers"]["process_cpu_s"] = made * process_cpu
    window |= {"shared": {"seconds": shared, "hidden": 0.0}} if shared is not None else {}
    # memory, kernels and the first batch: not to be looked at
    start = {**window, "phases": {**phases, "wait": 30.0}}
    lines = [
        {**(window if k else start), "ts": T0 + k, "first": k * STEPS + 1, "last": (k + 1) * STEPS}
        for k in range(windows)
    ]
    return Records(rank, (begin,), tuple(lines))


def uneven(records: Records) -> Records:
    """The records with figures that differ from window to window, by up to a fifth."""

    def scaled(window: dict[str, Any], place: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number, (key, value) in enumerate(window.items(), place):
            if isinstance(value, dict):
                found[key] = scaled(value, number)
            elif isinstance(value, float) and key not in ("ts", "queue"):
                found[key] = value * (1 + 0.0217 * (number * 7 % 11 - 5))
            else:
                found[key] = value
        return found

    windows = (
        scaled(window, 3 * number + records.rank) for number, window in enumerate(records.windows)
    )
    return replace(
        records, windows=tuple({**w, "seconds": sum(w["phases"].values())} for w in windows)
    )


def diagnosis_of(*ranks: Records, config: dict[str, Any] | None = None, **more: Any) -> Diagnosis:
    return judge(Evidence(ranks, config=config or {}, **more))


def starved(wait: float = 4.0, **more: Any) -> Records:
    return rank_records({"wait": wait}, **more)


def moments(per_byte: float, per_read: float) -> dict[str, Any]:
    """80 samples, an image of 200 kB and a mask of 5 kB each; a read takes ``per_read + per_byte *
    size`` seconds.
    """
    sizes = [200_000.0, 5_000.0] * 80
    times = [per_read + per_byte * size for size in sizes]
    sums = {
        "count": len(sizes),
        "bytes2": sum(b * b for b in sizes),
        "bytes_s": sum(b * t for b, t in zip(sizes, times)),
    }
    return {
        "reads": sums,
        "size": 205_000,
        "stages": {"read": sum(times) / 80},
        "sample_cpu": 0.006,
    }


def two(
    slow: dict[str, float],
    other: dict[str, float],
    hosts: tuple[str, str] = ("one", "one"),
    **more: Any,
) -> list[Records]:
    local = 2 if hosts[0] == hosts[1] else 1
    return [
        rank_records(phases, rank=rank, world=2, host=host, local=local, **more)
        for rank, (phases, host) in enumerate(zip((slow, other), hosts))
    ]


def compiled(seconds: float, windows: int = 2, **more: Any) -> Records:
    """The first step of a first window of one step compiles; ten steps a window follow."""
    usual = rank_records(windows=windows, **more)
    first = {
        **usual.windows[0],
        "phases": {"wait": 0.1, "forward": seconds + 0.1, "update": 0.01},
        "last": 1,
    }
    first |= {"seconds": seconds + 0.21, "slowest_ms": 1000 * seconds}
    return replace(usual, windows=(first, *usual.windows[1:]))


def write_run(folder: Path, records: Records) -> None:
    (folder / "spans").mkdir(parents=True)
    lines = [*records.begins, *records.windows]
    (folder / "spans/rank-00000.jsonl").write_text(
        "".join(json.dumps(item) + "\n" for item in lines)
    )
    (folder / "config.yaml").write_text("log: {every: 10}\n")


def heavy(
    augment: float = 0.1, machine: str = "ml.g5.xlarge", wait: float = 9.0, images: int = 64
) -> Records:
    """A GPU that waits for samples: 10 steps a window, 0.6 s of the device each."""
    phases = {
        "wait": wait,
        "forward": 2.9,
        "backward": 2.9,
        "update": 0.2,
        "other": 0.0,
        "log": 0.0,
    }
    records = rank_records(
        phases,
        device="cuda:0",
        cores=4,
        workers=4,
        images=images,
        stages={"augment": augment},
        cpu=0.3,
    )
    return replace(records, begins=tuple({**begin, "machine": machine} for begin in records.begins))


TERMS = Terms("ml.p3.16xlarge", 16, 0.25, 0.01, 0.01, 0.02, 107e6, 10_000_000)


def a_run(
    folder: Path,
    machine: str = "ml.p3.16xlarge",
    steps: int = 5000,
    ranks: int = 8,
    gpu: str = "",
    sent: int = 107_000_000,
    **more: Any,
) -> Path:
    """A run on ``ranks``, with the records of the first of them. ``gpu``: what its driver calls its
    GPUs.
    """
    records = heavy(machine=machine, **more)
    named = {"gpu": gpu} if gpu else {}
    begin = {**records.begins[0], **named, "world_size": ranks, "bytes_gradient": sent}
    write_run(folder, replace(records, begins=(begin,)))
    start = {"event": "run_start", "ts": 1.0, "total_steps": steps}
    (folder / "journal.jsonl").write_text(json.dumps(start) + "\n", encoding="utf-8")
    return folder


def of_one_rank(folder: Path) -> Path:
    """A run on one rank, with the config of a small network and 7 classes."""
    a_run(folder, "ml.g5.xlarge", ranks=1, augment=0.001, wait=0.1)
    config = load_config(None, ["model.arch=pico", "data.crop=[64,96]"])
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    return folder

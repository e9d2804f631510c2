"""Statistics of the steady windows of a run: a mean step of each rank, and the cost of its
samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from segtrain.insight.diagnose.evidence import Evidence, HostLoad
from segtrain.insight.diagnose.windows import (
    BucketReads,
    Window,
    bucket_reads,
    cpu_wait_of,
    receive_cost,
    samples_of_helpers,
    share_by_size,
    steps_of,
    straggler_wait,
)
from segtrain.observe.spans import NO_STEP, STAGES, Records

FINAL_PHASES = ("eval", "checkpoint")  # which every run has at its end
SYNC_PHASES = ("sync", "gradient_sync")  # where a rank waits for others
ENOUGH = 3  # the last window may be left out only if there are at least this many


@dataclass(frozen=True)
class Samples:
    """What the workers of one rank did: seconds and bytes are those of a mean sample."""

    workers: float
    kind: str
    made: float  # samples per step
    stages: Mapping[str, float]  # wall seconds of each stage
    cpu: float
    bytes: float
    # seconds of ``wall`` in which no core was free; if not counted, all but those of work and
    # reading
    cpu_wait: float
    by_size: float | None  # share of the reading that grows with the bytes read; None: not known
    # CPU time of a worker process as a multiple of its main thread's; above 1: libraries use
    # threads
    threads: float
    # samples per step that helpers made, by host
    helper_samples: Mapping[str, float] = field(default_factory=dict)
    receive: float | None = None  # CPU seconds for one of these; None: not measured

    @property
    def wall(self) -> float:
        return sum(self.stages.values())


@dataclass(frozen=True)
class Rank:
    """Statistics of one rank. Seconds are those of a mean step; ``phases`` add up to ``step``."""

    rank: int
    host: str
    machine: str  # the type that was rented, "" where the platform does not say it
    device: str
    gpu: str  # its name by the driver; "" without one, and in runs that did not record it
    cores: float  # its share of the host's
    host_cores: int
    ranks_on_host: int
    world: int
    threads: int
    images: float
    bytes_gradient: int
    steps: int
    phases: Mapping[str, float]
    cpu: float  # CPU time of the process
    # time in which the loop's thread had no free core, outside ``wait``; 0 if not counted
    cpu_wait: float
    other_cpu: float  # CPU time of the loop's thread in the phase ``other``
    other_cpu_wait: float  # time in the phase ``other`` in which the loop's thread had no free core
    fastest: float  # mean step of the fastest window
    # mean of ``own`` in the window where it is least: where other programs disturbed least
    least_own: float
    least_awake: float  # mean of ``awake`` in the window where it is least
    least: Mapping[str, float]  # least share of each phase in a window
    # measured slowdown of its passes by more threads than cores (docs/spans.md)
    crowded: Mapping[str, Any] | None
    samples: Samples | None
    # seconds of gradient communication, including what the backward pass hides
    shared: float | None
    bucket: BucketReads | None

    @property
    def step(self) -> float:
        return sum(self.phases.values())

    @property
    def own(self) -> float:
        """Seconds of its own work in a step: without waits for other ranks, log lines, evaluations,
        and checkpoints.
        """
        return _own(self.phases)

    @property
    def awake(self) -> float:
        """``own`` without the time in which it had no core."""
        return max(0.0, self.own - self.cpu_wait)

    @property
    def cpu_with_workers(self) -> float:
        """CPU seconds, including those of worker processes."""
        samples = self.samples
        return self.cpu + (
            samples.cpu * samples.threads * samples.made
            if samples is not None and samples.kind == "process"
            else 0.0
        )

    @property
    def computed(self) -> float:
        """CPU seconds of the step itself, without those of making samples."""
        samples = self.samples
        rest = self.cpu - (
            samples.cpu * samples.made if samples is not None and samples.kind == "thread" else 0.0
        )
        return max(0.0, rest) * (1 - self.share(*NO_STEP))

    @property
    def busy(self) -> float:
        """Share of the time in which its workers make samples; 0 without workers."""
        samples = self.samples
        return (
            samples.made * samples.wall / (samples.workers * self.step)
            if samples is not None and samples.workers
            else 0.0
        )

    def spent(self, *phases: str) -> float:
        return sum(self.phases.get(phase, 0.0) for phase in phases)

    def share(self, *phases: str) -> float:
        return self.spent(*phases) / self.step


def _own(phases: Mapping[str, float]) -> float:
    return sum(s for phase, s in phases.items() if phase not in (*SYNC_PHASES, *NO_STEP))


@dataclass(frozen=True)
class Figures:
    """Statistics of the steady windows of a run."""

    ranks: tuple[Rank, ...]
    hosts: tuple[HostLoad, ...]
    evidence: Evidence = field(repr=False)
    steady: bool  # false: the only windows are those of its start
    wait: float  # seconds of a mean step in which all ranks wait for samples
    cpu_wait: float  # seconds of a mean step in which all ranks wait for a core

    def mean(self, *phases: str) -> float:
        return sum(rank.share(*phases) for rank in self.ranks) / len(self.ranks)

    def least(self, *phases: str) -> float:
        return min(rank.share(*phases) for rank in self.ranks)

    def most(self, *phases: str) -> float:
        return max(rank.share(*phases) for rank in self.ranks)

    @property
    def step(self) -> float:
        return sum(rank.step for rank in self.ranks) / len(self.ranks)

    @property
    def starved(self) -> float:
        """Share of the time in which the slowest rank waits for its samples, and all others for
        it.
        """
        return min(1.0, self.wait / self.step)

    @property
    def own_cpu(self) -> float:
        """Cores that the run keeps busy by itself."""
        return sum(rank.cpu_with_workers / rank.step for rank in self.ranks)

    @property
    def others(self) -> float | None:
        """Cores that other programs keep busy on its hosts; None without a system profile."""
        return (
            max(0.0, sum(host.busy for host in self.hosts) - self.own_cpu) if self.hosts else None
        )

    @property
    def own_part(self) -> float:
        """This run's share of the busy cores; 1 where no system profile shows them."""
        busy = self.own_cpu + (self.others or 0.0)
        return self.own_cpu / busy if busy else 1.0

    @property
    def on_gpu(self) -> bool:
        return any(rank.device.startswith("cuda") for rank in self.ranks)

    @property
    def free_cores(self) -> float | None:
        """Cores of all hosts that no program used; None without a system profile."""
        return max(0.0, sum(h.cores - h.busy for h in self.hosts)) if self.hosts else None

    @property
    def most_starved_rank(self) -> Rank:
        """The rank that waits most for its samples."""
        return max(self.ranks, key=lambda rank: rank.share("wait"))


def run_stats(evidence: Evidence) -> Figures | None:
    """Statistics of a run; None if no rank has a window yet."""
    steady = all(_steady(records) for records in evidence.ranks)
    ranks = [
        (records, _usable(_steady(records) or records.windows, records))
        for records in evidence.ranks
    ]
    ranks = [(records, windows) for records, windows in ranks if windows]
    if not ranks:
        return None
    waits = straggler_wait([windows for _, windows in ranks])
    return Figures(tuple(_rank(*rank) for rank in ranks), evidence.hosts, evidence, steady, *waits)


def _steady(records: Records) -> tuple[dict[str, Any], ...]:
    """The windows except the first of each process, which holds the warm-up.

    If there are enough windows, the last one is left out too if it holds an evaluation or a
    checkpoint, as at the end.
    """
    first = {begin.get("ts") for begin in records.begins}
    windows = tuple(window for window in records.windows if window["ts"] not in first)
    closing = len(windows) >= ENOUGH and any(
        phase in windows[-1]["phases"] for phase in FINAL_PHASES
    )
    return windows[:-1] if closing else windows


def _usable(windows: Sequence[Window], records: Records) -> list[dict[str, Any]]:
    """The windows that contain steps; empty if they cover no time."""
    usable = [_without_the_end(w, records) for w in windows if w["last"] >= w["first"]]
    return usable if sum(sum(w["phases"].values()) for w in usable) > 0 else []


def _rank(records: Records, windows: Sequence[Window]) -> Rank:
    steps = sum(map(steps_of, windows))
    begin = records.begins[-1] if records.begins else {}
    ranks_on_host = max(1, begin.get("local_world_size", 1))
    cores = max(1, begin.get("cores", 1))
    phases: dict[str, float] = {}
    for window in windows:
        for phase, spent in window["phases"].items():
            phases[phase] = phases.get(phase, 0.0) + spent / steps

    def mean(key: str) -> float:
        return float(sum(w.get(key, 0.0) for w in windows)) / steps

    def least_own(cpu_waits: bool) -> float:
        return min(
            max(0.0, _own(w["phases"]) - cpu_waits * cpu_wait_of(w)) / steps_of(w) for w in windows
        )

    counted = all("cpu_wait_s" in w for w in windows)  # whether this system counts waits for cores
    gradients = [w["shared"]["seconds"] for w in windows if "shared" in w]
    return Rank(
        rank=records.rank,
        host=str(begin.get("host", "")),
        machine=str(begin.get("machine", "")),
        device=str(begin.get("device", "cpu")),
        gpu=str(begin.get("gpu", "")),
        cores=cores / ranks_on_host,
        host_cores=cores,
        ranks_on_host=ranks_on_host,
        world=max(1, begin.get("world_size", 1)),
        threads=windows[-1].get("threads", 1),
        images=mean("images"),
        bytes_gradient=begin.get("bytes_gradient", 0),
        steps=steps,
        phases=phases,
        cpu=mean("cpu_s"),
        cpu_wait=sum(map(cpu_wait_of, windows)) / steps,
        other_cpu=mean("other_cpu_s"),
        other_cpu_wait=mean("other_cpu_wait_s"),
        fastest=min(sum(w["phases"].values()) / steps_of(w) for w in windows),
        least_own=least_own(False),
        least_awake=least_own(True),
        least={
            p: min(w["phases"].get(p, 0.0) / sum(w["phases"].values()) for w in windows)
            for p in phases
        },
        crowded=begin.get("crowded"),
        shared=statistics.median(gradients) if gradients else None,
        bucket=bucket_reads(windows),
        samples=_samples([w["workers"] for w in windows if "workers" in w], steps, counted),
    )


def _without_the_end(window: Window, records: Records) -> dict[str, Any]:
    if window is not records.windows[-1]:
        return dict(window)
    phases = {phase: s for phase, s in window["phases"].items() if phase not in FINAL_PHASES}
    share = sum(phases.values()) / max(1e-9, sum(window["phases"].values()))
    # The CPU time is divided as if all phases used the CPU equally.
    return {**window, "phases": phases, "cpu_s": share * window.get("cpu_s", 0.0)}


def _samples(work: list[Window], steps: int, counted: bool) -> Samples | None:
    made = sum(w.get("samples", 0) for w in work)
    if not made:
        return None
    stages = {
        stage: sum(w.get("seconds", {}).get(stage, 0.0) for w in work) / made for stage in STAGES
    }
    if not sum(stages.values()):
        return None
    cpu, process_cpu, waited = (
        sum(w.get(key, 0.0) for w in work) / made
        for key in ("cpu_s", "process_cpu_s", "cpu_wait_s")
    )
    # Masks and images differ enough in size to tell which share of the reading grows with it.
    counted_reads = [w for w in work if "reads" in w]
    n, bb, bt = (
        sum(w["reads"].get(key, 0.0) for w in counted_reads)
        for key in ("count", "bytes2", "bytes_s")
    )
    b = sum(w.get("bytes", 0) for w in counted_reads)
    t = sum(w.get("seconds", {}).get("read", 0.0) for w in counted_reads)
    return Samples(
        workers=sum(w.get("count", 0) for w in work) / len(work),
        kind=str(work[-1].get("kind", "thread")),
        made=made / steps,
        stages=stages,
        cpu=cpu,
        bytes=sum(w.get("bytes", 0) for w in work) / made,
        cpu_wait=waited if counted else max(0.0, sum(stages.values()) - cpu - stages["read"]),
        threads=max(1.0, process_cpu / cpu) if cpu else 1.0,
        helper_samples=samples_of_helpers(work, steps),
        receive=receive_cost(work),
        by_size=share_by_size(n, b, t, bb, bt),
    )

"""Evidence of a run's speed: its spans, journal, system profile, and settings, read from its
folder.

In a copy of a SageMaker job's output, spans and journal are in one part of the folder and the
profile is in another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from segtrain.insight.runs.folder import RunFolder, newest, read_folder, setting_of, silent
from segtrain.observe import journal
from segtrain.observe.journal import Event, Say
from segtrain.observe.profile_format import Series
from segtrain.observe.spans import Records


@dataclass(frozen=True)
class HostLoad:
    """Mean load of one host over the time that the spans cover. Shares are between 0 and 1."""

    node: str
    cores: int
    busy: float  # cores that all programs keep busy
    iowait: float  # share of the time of all cores
    memory: float  # largest share in use
    swap_bytes_s: float  # into swap and out of it
    gpu: float | None = None  # share of the time in which a kernel ran, mean over GPUs


@dataclass(frozen=True)
class Evidence:
    ranks: tuple[Records, ...]
    events: tuple[Event, ...] = ()
    hosts: tuple[HostLoad, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    def setting(self, key: str, default: Any = None) -> Any:
        """``section.key`` of the run's config.yaml."""
        return setting_of(self.config, key, default)

    def events_of(self, *kinds: str) -> list[Event]:
        """The events of these kinds, in order."""
        return [event for event in self.events if event.get("event") in kinds]

    @property
    def start(self) -> Event:
        """The newest ``run_start``; empty where there is none."""
        return newest(self.events, "run_start")


def gather(run: Path, say: Say = journal.say_on_stderr) -> Evidence:
    """Read the evidence of a run. Raises DataError where there are no spans."""
    return evidence_of(read_folder(run, say), say)


def evidence_of(run: RunFolder, say: Say = silent) -> Evidence:
    """The evidence of a run that is read already. Raises DataError where there are no spans."""
    ranks = run.spans()
    times = [
        time
        for records in ranks
        for w in records.windows
        for time in (w["ts"], w["ts"] + w["seconds"])
    ]
    tracks = run.profile(min(times), max(times), say) if times else {}
    by_node: dict[str, dict[Series, Sequence[float]]] = {}
    for series in sorted(tracks):
        by_node.setdefault(series.node, {})[series] = tracks[series].values
    return Evidence(ranks, run.events, tuple(_load(*host) for host in by_node.items()), run.config)


def _load(node: str, readings: Mapping[Series, Sequence[float]]) -> HostLoad:
    def means(dimension: str) -> list[float]:
        return [
            fmean(values) for series, values in readings.items() if series.dimension == dimension
        ]

    by_name = {series.name: values for series, values in readings.items()}
    used, gpus = means("CPUUtilization"), means("GPUUtilization")
    swapped = ("SwapInBytesPerSecond", "SwapOutBytesPerSecond")
    return HostLoad(
        node=node,
        cores=len(used),
        busy=sum(used) / 100,
        iowait=sum(means("I/OWaitPercentage")) / 100 / max(1, len(used)),
        memory=max(by_name.get("MemoryUsedPercent", [0.0])) / 100,
        swap_bytes_s=sum(fmean(by_name.get(name, [0.0])) for name in swapped),
        gpu=fmean(gpus) / 100 if gpus else None,
    )

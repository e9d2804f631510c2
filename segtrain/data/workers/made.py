"""Who made the training samples of a rank, and what they cost it: its own workers, and helpers on
other hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from segtrain.base.terminal import counted


class SampleCost(NamedTuple):
    """CPU seconds that ``samples`` samples of ``bytes`` finished bytes took."""

    seconds: float = 0.0
    samples: int = 0
    bytes: int = 0

    def plus(self, seconds: float, samples: int, size: int) -> SampleCost:
        return SampleCost(self.seconds + seconds, self.samples + samples, self.bytes + size)

    def since(self, before: SampleCost) -> SampleCost:
        return SampleCost(*(now - then for now, then in zip(self, before)))  # type: ignore[arg-type]

    @property
    def per_byte(self) -> float:
        return self.seconds / max(1, self.bytes)

    @property
    def ms(self) -> float:
        """Milliseconds of a sample."""
        return 1000 * self.seconds / max(1, self.samples)


NO_COST = SampleCost()


@dataclass(frozen=True)
class SampleCounts:
    """Training samples of a rank so far, by who made them. ``again``: ordered from a helper, but
    not received.
    """

    workers: int
    kind: str
    local: int
    helped: Mapping[str, int]
    cores: int  # of helpers that made some
    again: int
    made: SampleCost = NO_COST  # CPU time of this rank for the samples that were made here
    received: SampleCost = NO_COST  # CPU time of this rank for the samples that helpers made

    def line(self, what: str) -> str:
        """``what: 2 local threads 31 %, 14 helper cores on 1 host 69 %``."""
        there = sum(self.helped.values())
        local = self.local / max(1, self.local + there)
        cores, hosts = counted(self.cores, "helper core"), counted(len(self.helped), "host")
        helped = f"{cores} on {hosts} {100 - 100 * local:.0f} %" if there else "helpers made none"
        return (
            f"{what}: {counted(self.workers, f'local {self.kind}')} {100 * local:.0f} %, {helped}"
        )

    def to_dict(self) -> dict[str, Any]:
        costs = {"make_ms": round(self.made.ms, 3), "receive_ms": round(self.received.ms, 3)}
        return {"local": self.local, "helpers": dict(self.helped), "again": self.again, **costs}

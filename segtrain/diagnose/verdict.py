"""What does a diagnosis say? Causes, each with its evidence, its cure and what the cure would bring."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

HEALTHY = "healthy"
CAUSES = {  # in words that complete "bound by ..."
    "storage-latency": "the time that storage takes to answer",
    "storage-bandwidth": "the bytes a second that storage gives",
    "decode": "decoding images and masks",
    "augmentation": "augmentation",
    "too-few-workers": "too few workers for the samples",
    "too-many-threads": "more threads than cores",
    "main-thread": "work in the loop's own thread",
    "host-to-device": "copies to the device",
    "shm": "shared memory between workers and the rank",
    "sync-point": "a wait in the loop's own thread",
    "logging": "logging",
    "evaluation": "evaluation",
    "checkpoint": "writing checkpoints",
    "slow-rank": "one rank that is slower than the others",
    "slow-host": "one host that is slower than the others",
    "slow-network": "the network between ranks",
    "small-batch": "what a step costs whatever its batch",
    "memory": "a lack of memory",
    HEALTHY: "the device: nothing holds it up",
}

_SETTING = re.compile(r"(?<!\S)[a-z]+\.[a-z_]+=(?:\[[^\]]*\]|[^\s,;\[])*")


@dataclass(frozen=True)
class Verdict:
    """``share``: of the run's time that is lost to the cause, 0 to 1. ``gain``: predicted ratio of speeds with the cure, 1: none."""

    cause: str
    share: float
    evidence: str
    cure: str
    gain: float
    confidence: str  # high, medium, low

    @property
    def settings(self) -> tuple[str, ...]:
        """The words of the cure that ``segtrain train`` takes, such as ``data.workers=8``; none where it is advice alone."""
        return tuple(_SETTING.findall(self.cure))

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "settings": self.settings}


@dataclass(frozen=True)
class Diagnosis:
    """``verdicts``: worst first; none in a healthy run. ``facts``: the figures that they rest on."""

    bound: str
    verdicts: tuple[Verdict, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"bound": self.bound, "verdicts": [verdict.to_dict() for verdict in self.verdicts], "facts": self.facts}

"""What does a diagnosis say? Causes, each with its evidence, its cure and what the cure would bring."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from segtrain.diagnose.fix import Fix

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
    "other-programs": "other programs, which have the cores that it wants",
    "too-few-cores": "a lack of cores: its own threads want more than there are",
    "compiling": "torch.compile, which a run this short does not pay back",
    HEALTHY: "the device: nothing holds it up",
}


@dataclass(frozen=True)
class Verdict:
    """``share``: of the run's time that is lost to the cause, 0 to 1. ``gain``: predicted ratio of speeds with the fix, 1: none."""

    cause: str
    share: float
    evidence: str
    fix: Fix
    gain: float
    confidence: str  # high, medium, low

    def to_dict(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "share": self.share,
            "evidence": self.evidence,
            "cure": self.fix.texts,
            "fix": self.fix.to_dict(),
            "gain": self.gain,
            "confidence": self.confidence,
        }


@dataclass(frozen=True)
class Diagnosis:
    """``verdicts``: worst first; none in a healthy run. ``facts``: the figures that they rest on."""

    bound: str
    verdicts: tuple[Verdict, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def proposed(self) -> Verdict | None:
        """The first one that the run itself can be changed for; that other programs have the cores only where it is the only one."""
        own = [verdict for verdict in self.verdicts if verdict.cause != "other-programs"]
        return next(iter([*own, *self.verdicts]), None)

    def to_dict(self) -> dict[str, Any]:
        return {"bound": self.bound, "verdicts": [verdict.to_dict() for verdict in self.verdicts], "facts": self.facts}

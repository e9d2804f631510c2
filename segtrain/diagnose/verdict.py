"""What a diagnosis says: verdicts, each with a cause, its evidence, its fix, and the gain that the fix is predicted to
bring.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from segtrain.diagnose.fix import Fix

HEALTHY = "healthy"
OTHER_PROGRAMS = "other-programs"  # the one cause that is no fault of the run


@dataclass(frozen=True)
class Verdict:
    """``cause``: its key in the table of causes. ``share``: of the run's time that is lost to it, 0 to 1.

    ``gain``: predicted speed with the fix as a multiple of the present one; 1 where nothing is predicted.
    """

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
    """``bound``: a cause, ``healthy``, or ``unknown``.

    ``verdicts``: worst first. ``facts``: the figures that they rest on.
    """

    bound: str
    verdicts: tuple[Verdict, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def proposed(self) -> Verdict | None:
        """The first verdict that a change of the run can fix; that of other programs only if it is the only one."""
        own = [verdict for verdict in self.verdicts if verdict.cause != OTHER_PROGRAMS]
        return next(iter([*own, *self.verdicts]), None)

    def to_dict(self) -> dict[str, Any]:
        return {"bound": self.bound, "verdicts": [verdict.to_dict() for verdict in self.verdicts], "facts": self.facts}

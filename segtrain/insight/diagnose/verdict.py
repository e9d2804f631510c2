"""Results of a diagnosis: verdicts, each with a cause, its evidence, its fix, and the gain
predicted for the fix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Settings = Mapping[str, Any]  # section.key -> value, or section -> key -> value
HEALTHY = "healthy"
OTHER_PROGRAMS = "other-programs"  # the one cause that is no fault of the run


@dataclass(frozen=True)
class Fix:
    """``settings`` (``section.key`` -> value) belong together; each of ``alternatives`` may replace
    this fix.

    ``advice`` stands alone where no setting helps; otherwise it says when the settings fit, or what
    they do.
    """

    settings: Settings = field(default_factory=dict)
    advice: str = ""
    alternatives: tuple[Fix, ...] = ()

    @property
    def choices(self) -> tuple[Fix, ...]:
        """This fix without its alternatives, then each alternative: the best first."""
        return (Fix(self.settings, self.advice), *self.alternatives)

    @property
    def words(self) -> tuple[str, ...]:
        """``key=value`` of each setting, as ``segtrain train`` takes them."""
        return tuple(f"{key}={_word(value)}" for key, value in self.settings.items())

    @property
    def text(self) -> str:
        """This fix as text, without its alternatives."""
        words = " ".join(self.words)
        return f"{words} ({self.advice})" if words and self.advice else words or self.advice

    @property
    def texts(self) -> str:
        """All choices in one sentence."""
        return "; or: ".join(choice.text for choice in self.choices)

    def within(self, same: Callable[[str, Any], bool], takes: Callable[[Settings], bool]) -> Fix:
        """The fix without settings for which ``same`` is true, and without choices whose settings
        ``takes`` refuses, or that have none left.
        """
        reduced = [
            Fix(
                {key: value for key, value in choice.settings.items() if not same(key, value)},
                choice.advice,
            )
            for choice in self.choices
        ]
        left = [
            new
            for new, old in zip(reduced, self.choices)
            if not old.settings or (new.settings and takes(new.settings))
        ]
        has = [new.settings for new in reduced if new.settings]
        why = (
            "its config takes none that would help"
            if has
            else f"the run already has {' '.join(self.words)}"
        )
        first, *others = left or [Fix(advice=f"none is known: {why}")]
        return Fix(first.settings, first.advice, tuple(others))

    def to_dict(self) -> dict[str, Any]:
        others = [choice.to_dict() for choice in self.alternatives]
        return {
            "settings": dict(self.settings),
            "advice": self.advice,
            **({"alternatives": others} if others else {}),
        }


@dataclass(frozen=True)
class Verdict:
    """A cause that was found. ``cause``: its key in the table of causes. ``share``: share of time
    lost to it, 0 to 1.

    ``gain``: predicted speed with the fix as a multiple of the present one; 1 where nothing is
    predicted.
    """

    cause: str
    share: float
    evidence: str
    fix: Fix
    gain: float
    confidence: str  # high, medium, low

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "cure": self.fix.texts, "fix": self.fix.to_dict()}


@dataclass(frozen=True)
class Diagnosis:
    """``bound``: a cause, ``healthy``, or ``unknown``. ``verdicts``: worst first. ``facts``:
    figures behind them.
    """

    bound: str
    verdicts: tuple[Verdict, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def proposed(self) -> Verdict | None:
        """The first verdict that a change of the run can fix. If the only verdict is on other
        programs, that one.
        """
        own = [verdict for verdict in self.verdicts if verdict.cause != OTHER_PROGRAMS]
        return next(iter([*own, *self.verdicts]), None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "bound": self.bound,
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "facts": self.facts,
        }


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_word, value))}]"
    return f"{value:.12g}" if isinstance(value, float) else str(value)

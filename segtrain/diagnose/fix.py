"""A fix of a cause: settings, advice that no setting expresses, and alternatives to choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fix:
    """``settings`` (``section.key`` -> value) belong together; each of ``alternatives`` may replace this fix.

    ``advice`` stands alone where no setting helps; otherwise it says when the settings fit, or what they do.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""
    alternatives: tuple[Fix, ...] = ()

    @property
    def choices(self) -> tuple[Fix, ...]:
        """This one and its alternatives, each by itself, the best first."""
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

    def without(self, same: Callable[[str, Any], bool]) -> Fix:
        """The fix without settings that are so already, and without choices of which nothing is left."""
        kept = [
            Fix({key: value for key, value in choice.settings.items() if not same(key, value)}, choice.advice)
            for choice in self.choices
        ]
        left = [new for new, old in zip(kept, self.choices) if new.settings or not old.settings]
        first, *others = left or [Fix(advice=f"none is known: the run already has {' '.join(self.words)}")]
        return Fix(first.settings, first.advice, tuple(others))

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"settings": dict(self.settings), "advice": self.advice}
        return (
            found | {"alternatives": [choice.to_dict() for choice in self.alternatives]} if self.alternatives else found
        )


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_word, value))}]"
    return f"{value:.12g}" if isinstance(value, float) else str(value)

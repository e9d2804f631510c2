"""Milliseconds of the phases of a step and the stages of a sample, before and after a fix, and as predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from segtrain.diagnose.causes import CAUSES
from segtrain.diagnose.verdict import Verdict


@dataclass(frozen=True)
class TimeShare:
    """Milliseconds of a mean step, or of a mean sample. ``predicted``: None where the model says nothing of it."""

    name: str
    before: float
    after: float
    predicted: float | None = None


def phases(before: Mapping[str, Any], after: Mapping[str, Any], first: Verdict | None) -> tuple[TimeShare, ...]:
    """Of the facts of two runs, the largest change first; predicted where both make steps of as many images."""
    was, now = _phases(before), _phases(after)
    expected: dict[str, float] = {}
    if first is not None and first.gain > 1.005 and _alike(before, after):
        expected = _expected(was, first)
    names = sorted({**was, **now}, key=lambda name: -abs(now.get(name, 0.0) - was.get(name, 0.0)))
    terms = [TimeShare(n, was.get(n, 0.0), now.get(n, 0.0), expected.get(n, 0.0) if expected else None) for n in names]
    return tuple(term for term in terms if max(term.before, term.after) >= 0.01 * max(sum(was.values()), 1e-9))


def stages(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[TimeShare, ...]:
    """Of a sample, in the order in which it is made; empty where one run knows nothing of its samples."""
    was, now = (facts.get("workers", {}).get("stages_ms", {}) for facts in (before, after))
    if not was or not now:
        return ()
    names = dict.fromkeys([*was, *now])
    return tuple(TimeShare(name, was.get(name, 0.0), now.get(name, 0.0)) for name in names)


def images(facts: Mapping[str, Any]) -> float:
    """Of a step of all ranks."""
    return float(facts["images_per_s"] * facts["step_ms"] / 1000)


def _alike(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return abs(images(after) / images(before) - 1) < 0.05 and before["ranks"] == after["ranks"]


def _phases(facts: Mapping[str, Any]) -> dict[str, float]:
    return {name: share * facts["step_ms"] for name, share in facts["phases"].items()}


def _expected(was: Mapping[str, float], first: Verdict) -> dict[str, float]:
    """Milliseconds after the fix: saved first in the phases that it shortens, and the rest in all others alike."""
    left = sum(was.values()) * (1 - 1 / first.gain)
    expected = dict(was)
    shorter = CAUSES[first.cause].shortens
    if "data.workers" in first.fix.settings:
        shorter = ("wait", "sync")
    for name in shorter:
        taken = min(left, expected.get(name, 0.0))
        if taken:
            expected[name] -= taken
            left -= taken
    rest = sum(s for name, s in expected.items() if name not in shorter)
    factor = max(0.0, 1 - left / rest) if rest > 0 else 1.0
    return {name: s if name in shorter else s * factor for name, s in expected.items()}


def ms(value: float) -> str:
    """Three figures of milliseconds; less than the clock can tell is none."""
    return f"{value:.4g}" if value >= 100 else f"{value:.3g}" if value >= 0.05 else "0"

"""Samples that helpers on other hosts made for a rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from segtrain.base.terminal import counted


def helped(work: Sequence[Mapping[str, Any]], steps: int) -> dict[str, float]:
    """Samples per step by host. ``work``: the field ``workers`` of the windows."""
    found: Counter[str] = Counter()
    for window in work:
        found.update(window.get("helpers", {}))
    return {host: count / steps for host, count in found.items() if count > 0}


def receive_of(work: Sequence[Mapping[str, Any]]) -> float | None:
    """CPU seconds of the rank for a sample that a helper made; None if there were none, or it was not measured."""
    known = [window for window in work if "receive_s" in window]
    there = sum(sum(window.get("helpers", {}).values()) for window in known)
    return sum(window["receive_s"] for window in known) / there if there > 0 else None


def by_helpers(made_there: Mapping[str, float], made_here: float) -> str:
    """``69% by helpers on 1 host``; empty if they made nothing."""
    there = sum(made_there.values())
    share = there / max(1e-9, there + made_here)
    return f"{share:.0%} by helpers on {counted(len(made_there), 'host')}" if there else ""

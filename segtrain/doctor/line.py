"""What does the doctor say about one thing?"""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True)
class CheckLine:
    """``state``: OK, NOTE (works, but one should know) or PROBLEM; ``cure``: what to do; ``fatal``: training is impossible."""

    state: str
    name: str
    found: str
    cure: str = ""
    fatal: bool = False

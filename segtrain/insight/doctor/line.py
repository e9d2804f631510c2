"""One line of `segtrain doctor`: the result of a check."""

from __future__ import annotations

from dataclasses import dataclass

OK = "ok"
NOTE = "note"
PROBLEM = "problem"


@dataclass(frozen=True)
class CheckLine:
    state: str  # OK, NOTE (works, but could be better), or PROBLEM
    name: str
    found: str
    cure: str = ""  # the fix
    fatal: bool = False  # training is impossible

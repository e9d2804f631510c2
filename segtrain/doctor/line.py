"""One line of `segtrain doctor`."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True)
class CheckLine:
    """The result of one check.

    ``state``: OK, NOTE (works, but could be better), or PROBLEM. ``cure``: the fix. ``fatal``: training is impossible.
    """

    state: str
    name: str
    found: str
    cure: str = ""
    fatal: bool = False

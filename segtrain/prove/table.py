"""Rows and table of `segtrain prove`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from segtrain.base.terminal import columns

PASS, FAIL, SKIPPED = "PASS", "FAIL", "SKIPPED"
ONE_RANK = "--ranks has only one rank, so there is nothing to compare"
HEAD = ("guarantee", "what was compared", "measured", "bound", "verdict", "")


@dataclass(frozen=True)
class ProofRow:
    """One comparison. ``remark``: why it was skipped, how it failed, or what else to know."""

    promise: str
    compared: str
    measured: str
    bound: str
    verdict: str
    remark: str = ""


def row(
    promise: str,
    compared: str,
    remark: str = "",
    kept: bool | None = None,
    measured: str = "-",
    bound: str = "-",
) -> ProofRow:
    """A row. ``kept``: whether the guarantee holds; None: not tested, for the reason in
    ``remark``.
    """
    return ProofRow(
        promise,
        compared,
        measured,
        bound,
        SKIPPED if kept is None else PASS if kept else FAIL,
        remark,
    )


def listed(numbers: Sequence[int]) -> str:
    """Numbers as text: ``1, 2 and 4``."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def live(found: ProofRow, seconds: float) -> str:
    """The line of a comparison that was just made."""
    measured = "" if found.measured == "-" else f": {found.measured}"
    remark = f"\n         {found.remark}" if found.verdict == FAIL and found.remark else ""
    return (
        f"{found.verdict:<7}  {found.promise:<13}  {found.compared}{measured}  ({seconds:.1f} "
        f"s){remark}"
    )


def table(rows: list[ProofRow]) -> str:
    """Aligned columns, with numbered remarks below."""
    rows = sorted(rows, key=lambda r: r.promise)
    remarks = list(dict.fromkeys(r.remark for r in rows if r.remark))
    marks = [f"[{remarks.index(r.remark) + 1}]" if r.remark else "" for r in rows]
    lines = columns([HEAD, *((*astuple(r)[:-1], mark) for r, mark in zip(rows, marks))])
    lines += [f"[{k}] {text}" for k, text in enumerate(remarks, 1)]
    verdicts = [r.verdict for r in rows]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in (PASS, FAIL, SKIPPED) if v in verdicts)
    return "\n".join([*lines, counts])

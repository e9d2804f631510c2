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
    holds: bool | None = None,
    measured: str = "-",
    bound: str = "-",
) -> ProofRow:
    """A row. ``holds``: whether the guarantee holds; None: not tested, for the reason in
    ``remark``.
    """
    return ProofRow(
        promise,
        compared,
        measured,
        bound,
        SKIPPED if holds is None else PASS if holds else FAIL,
        remark,
    )


def listed(numbers: Sequence[int]) -> str:
    """Numbers as text: ``1, 2 and 4``."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def live(proof_row: ProofRow, seconds: float) -> str:
    """The line of a comparison that was just made."""
    measured = "" if proof_row.measured == "-" else f": {proof_row.measured}"
    remark = (
        f"\n         {proof_row.remark}" if proof_row.verdict == FAIL and proof_row.remark else ""
    )
    return (
        f"{proof_row.verdict:<7}  {proof_row.promise:<13}  {proof_row.compared}{measured}  "
        f"({seconds:.1f} s){remark}"
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

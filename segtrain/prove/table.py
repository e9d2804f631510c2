"""Rows and table of `segtrain prove`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PASS, FAIL, SKIPPED = "PASS", "FAIL", "SKIPPED"
HEAD = ("guarantee", "what was compared", "measured", "bound", "verdict")


@dataclass(frozen=True)
class ProofRow:
    """One comparison. ``remark``: why it was skipped, how it failed, or what else to know."""

    promise: str
    compared: str
    measured: str
    bound: str
    verdict: str
    remark: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        return self.promise, self.compared, self.measured, self.bound, self.verdict


def row(
    promise: str, compared: str, remark: str = "", kept: bool | None = None, measured: str = "-", bound: str = "-"
) -> ProofRow:
    """A row. ``kept``: whether the guarantee holds; None: not tested, for the reason in ``remark``."""
    return ProofRow(promise, compared, measured, bound, SKIPPED if kept is None else PASS if kept else FAIL, remark)


def failed(promise: str, compared: str, error: Exception) -> ProofRow:
    """A row for a proof that did not finish, which counts as a failure."""
    return ProofRow(promise, compared, "-", "-", FAIL, " ".join(str(error).split()))


def listed(numbers: Sequence[int]) -> str:
    """``1, 2 and 4``."""
    words = [str(number) for number in numbers]
    return " and ".join([*([", ".join(words[:-1])] if words[:-1] else []), *words[-1:]])


def live(found: ProofRow, seconds: float) -> str:
    measured = "" if found.measured == "-" else f": {found.measured}"
    return f"{found.verdict:<7}  {found.promise:<13}  {found.compared}{measured}  ({seconds:.1f} s)"


def table(rows: list[ProofRow]) -> str:
    """Aligned columns, with numbered remarks below."""
    rows = sorted(rows, key=lambda r: r.promise)
    remarks = list(dict.fromkeys(r.remark for r in rows if r.remark))
    cells = [HEAD, *(r.cells for r in rows)]
    wide = [max(len(line[k]) for line in cells) for k in range(len(HEAD))]
    marks = [""] + [f"  [{remarks.index(r.remark) + 1}]" if r.remark else "" for r in rows]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(line, wide)).rstrip() + mark for line, mark in zip(cells, marks)
    ]
    lines.insert(1, "  ".join("-" * w for w in wide))
    lines += [f"[{k}] {text}" for k, text in enumerate(remarks, 1)]
    verdicts = [r.verdict for r in rows]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in (PASS, FAIL, SKIPPED) if v in verdicts)
    return "\n".join([*lines, counts])

"""Findings of the checks before anything is sent: how bad each is, what is wrong, and the fix."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from textwrap import fill
from typing import Literal

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """``error``: the job would fail or waste money for sure; ``warning``: it may; ``note``: could not be checked, or
    good to know.

    ``code`` is a stable word for tests and programs, ``message`` names the setting and its value, ``cure`` says what to
    type, ``source`` where the fact is from, with its date.
    """

    level: Level
    code: str
    message: str
    cure: str = ""
    source: str = ""


error = partial(Finding, "error")
warning = partial(Finding, "warning")
note = partial(Finding, "note")


def errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == "error"]


def show(findings: Iterable[Finding], width: int = 110) -> str:
    """One paragraph a finding, errors first; "" for none."""
    ordered = sorted(findings, key=lambda finding: LEVELS.index(finding.level))
    return "\n".join(_paragraph(finding, width) for finding in ordered)


def _paragraph(finding: Finding, width: int) -> str:
    indent = " " * 9
    lines = [fill(finding.message, width, initial_indent=f"{finding.level:<9}", subsequent_indent=indent)]
    if finding.cure:
        lines.append(fill(finding.cure, width, initial_indent=f"{indent}-> ", subsequent_indent=f"{indent}   "))
    if finding.source:
        lines.append(fill(finding.source, width, initial_indent=f"{indent}[", subsequent_indent=f"{indent} ") + "]")
    return "\n".join(lines)


def agreed(question: str) -> bool:
    """Whether a person says yes to what costs money; no where nobody can answer."""
    if not sys.stdin.isatty():
        print(f"error: {question} Standard input is not a terminal: give --yes", file=sys.stderr)
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")

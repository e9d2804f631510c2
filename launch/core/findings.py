"""Findings of the checks that run before anything is sent: the level of each, what is wrong, and
the fix.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from textwrap import fill
from typing import Literal, TextIO

from segtrain.errors import ConfigError

Say = Callable[[str], None]  # prints a line
Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One result of a check. Level ``error``: the job would certainly fail or waste money;
    ``warning``: it may do so; ``note``: something that could not be checked, or is good to know.

    ``code`` is a stable word for tests and programs. ``message`` names the setting and its value,
    ``cure`` says what to type, and ``source`` tells where a fact comes from, with its date.
    """

    level: Level
    code: str
    message: str
    cure: str = ""
    source: str = ""


error = partial(Finding, "error")
warning = partial(Finding, "warning")
note = partial(Finding, "note")


def tell(text: object, stream: TextIO | None = None) -> None:
    """Print a text without control characters. ``stream``: None is stderr."""
    from segtrain.base.terminal import printable

    print(printable(str(text)), file=stream or sys.stderr, flush=True)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == "error"]


def show(findings: Iterable[Finding], width: int = 110) -> str:
    """One paragraph per finding, errors first; "" for no findings."""
    ordered = sorted(findings, key=lambda finding: LEVELS.index(finding.level))
    return "\n".join(_paragraph(finding, width) for finding in ordered)


def say(findings: list[Finding]) -> None:
    """Print findings on stderr."""
    if findings:
        tell(show(findings))


def require(findings: list[Finding]) -> None:
    """Print the warnings and notes, and raise ConfigError if there are errors."""
    bad = errors(findings)
    say([finding for finding in findings if finding not in bad])
    if bad:
        raise ConfigError(
            f"{len(bad)} of the job's settings would fail:\n{show(bad)}",
            code="job-not-sound",
            found=[finding.code for finding in bad],
        )


def refused(findings: Iterable[Finding], what: str, said: Collection[Finding] = ()) -> bool:
    """Print findings, without those that were ``said`` before. If one is an error, also print the
    consequence ``what`` (such as "not sent"), and return True.
    """
    new = [finding for finding in findings if finding not in said]
    say(new)
    bad = errors(new)
    if bad:
        tell(f"error: {what}: {len(bad)} of the findings above must be fixed first")
    return bool(bad)


def _paragraph(finding: Finding, width: int) -> str:
    indent = " " * 9
    lines = [_wrapped(finding.message, width, f"{finding.level:<9}", indent)]
    if finding.cure:
        lines.append(f"{indent}-> {finding.cure}")  # one line, which can be copied
    if finding.source:
        lines.append(_wrapped(f"{finding.source}]", width, f"{indent}[", f"{indent} "))
    return "\n".join(lines)


def _wrapped(text: str, width: int, first: str, others: str) -> str:
    """Lines of text that break at spaces only: names and addresses stay whole."""
    return fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
        break_long_words=False,
    )


def agreed(question: str, yes: bool) -> bool:
    """Ask the user to confirm something that costs money, unless ``yes``. False if standard input
    is not a terminal.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        tell(f"error: {question} Standard input is not a terminal: give --yes")
    elif input(f"{question} [y/N] ").strip().lower() in ("y", "yes"):
        return True
    tell("nothing was sent")
    return False

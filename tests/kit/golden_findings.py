"""Recorded findings of many jobs: each with its code, its words, its fix, and its source."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from textwrap import indent

import golden

from launch.core.findings import Finding, show
from launch.core.job import ROOT

AT_ONCE = 30  # jobs in one file
MASKS = {
    str(ROOT): "REPOSITORY",
    sys.executable: "PYTHON",
    r"http://127\.0\.0\.1:\d+": "http://HERE",
    r"\b(vpc|subnet|sg|rtb|vpce|eni|nat)-[0-9a-f]{17}\b": r"\1-ID",
}


def check_findings(name: str, jobs: Mapping[str, list[Finding]], usual: list[Finding]) -> None:
    """Compare the findings of each job with tests/golden/``name``-1.txt and so on.

    ``usual``: those of a sound job, which only the first file shows.
    """
    usual = [finding for finding in usual if finding.code != "native-decoder"]
    texts = [_text("every job", usual)] if usual else []
    for title, findings in jobs.items():
        new = [finding for finding in findings if finding not in usual]
        text = _text(title, [finding for finding in new if finding.code != "native-decoder"])
        missing = [finding.code for finding in usual if finding not in findings]
        texts.append(text + "".join(f"without {code}\n" for code in missing))
    for start in range(0, len(texts), AT_ONCE):
        text = "\n".join(texts[start : start + AT_ONCE])
        golden.check(f"{name}-{1 + start // AT_ONCE}.txt", golden.masked(text, MASKS))


def _text(title: str, findings: list[Finding]) -> str:
    words = (f"{finding.code}\n{indent(show([finding], 96), '    ')}\n" for finding in findings)
    return f"## {title}\n{''.join(words)}"


def loud(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level != "note"]

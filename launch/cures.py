"""Cures of findings, tried through the same checks before they are printed."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from launch import job_values as values
from launch.findings import Finding
from launch.job import JobT
from segtrain.errors import ConfigError

_PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b")  # BUCKET, ID


def tried(job: JobT, findings: Sequence[Finding], check: Callable[[JobT], Iterable[Finding]]) -> list[Finding]:
    """The findings, without the parts of cures that would leave the problem, or make an error of another kind.

    ``check``: the findings of a job. Parts that are prose, or have a placeholder, cannot be tried, and stay.
    """
    before = Counter((one.level, one.code) for one in findings)

    def helps(part: str, cured: Finding) -> bool:
        try:
            if (changed := pasted(job, part)) is None:
                return True
            after = Counter((one.level, one.code) for one in check(changed))
        except ConfigError:
            return False
        new = [level for level, _ in after - before if level == "error"]
        return not new and after[cured.level, cured.code] < before[cured.level, cured.code]

    return [
        replace(one, cure=", or ".join(part for part in one.cure.split(", or ") if helps(part, one)))
        for one in findings
    ]


def pasted(job: JobT, text: str) -> JobT | None:
    """The job with the flags and settings of a cure behind those of its command; None if they cannot be tried.

    Raises ConfigError for a value that the flag does not take.
    """
    known = {item.metadata["flag"] or f"--{item.name.replace('_', '-')}": item for item in fields(job)}
    changed: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    try:
        words = [] if "..." in text else shlex.split(re.split("[,:;] ", text)[0])
    except ValueError:
        return None
    while words:
        word = words.pop(0)
        key, equals, value = word.partition("=")
        if re.fullmatch(r"[a-z_]+\.[a-z_.]+", key) and equals and not _PLACEHOLDER.search(value):
            settings[key] = values.scalar(value, key)
        elif word in known and not isinstance(getattr(job, known[word].name), tuple):
            read = known[word].metadata["read"]
            given: Any = True if read is values.switch else words.pop(0) if words else "NONE"
            if _PLACEHOLDER.search(str(given)):
                return None
            changed[known[word].name] = read([given] if read is values.pairs else given, word)
        else:
            return None
    return replace(job, **changed, settings={**job.settings, **settings}) if changed or settings else None

"""Transcripts in tests/golden/: lines ``$ WORDS``, each with the answer below it."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import golden


def check(name: str, answer: Callable[[list[str]], str]) -> None:
    """Answer each line ``$ WORDS`` of tests/golden/``name``, and compare the whole file.

    To add a case, write its line, and run the test with GOLDEN=write.
    """
    recorded = (golden.FOLDER / name).read_text(encoding="utf-8")
    lines = [line for line in recorded.splitlines() if line.startswith("$ ")]
    parts = [f"{line}\n{answer(shlex.split(line[2:]))}\n" for line in lines]
    golden.check(name, "\n".join(parts))

"""Recorded outputs: what a user reads on fixed input, in full, in tests/golden/.

A test passes its output to ``check``. Where a change is meant, write the files anew, and read their
diff before you commit it:

    GOLDEN=write python -m pytest tests/insight/test_golden_insight.py
"""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "golden"


def masked(text: str, words: dict[str, str]) -> str:
    """``text`` with what differs among runs replaced. words: pattern -> word, in this order."""
    for pattern, word in words.items():
        text = re.sub(pattern, word, text)
    return text


def rounded(value: Any, digits: int = 5) -> Any:
    """``value`` as plain data, floats with ``digits`` significant digits."""
    if is_dataclass(value) and not isinstance(value, type):
        return rounded(asdict(value), digits)
    if hasattr(value, "tolist"):  # of NumPy or torch
        return rounded(value.tolist(), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {str(key): rounded(part, digits) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [rounded(part, digits) for part in value]
    return value if value is None or isinstance(value, (bool, int)) else str(value)


def data(value: Any, digits: int = 5) -> str:
    """All fields of plain data or of a dataclass as text, the innermost ones on a line."""
    return yaml.dump(
        rounded(value, digits),
        sort_keys=False,
        default_flow_style=None,
        width=100,
        allow_unicode=True,
    )


def check(name: str, text: str) -> None:
    """Compare ``text`` with tests/golden/``name``; with GOLDEN=write in the environment, write it."""
    path = FOLDER / name
    text = text.rstrip("\n") + "\n"
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    recorded = path.read_text(encoding="utf-8")
    if text != recorded:
        diff = difflib.unified_diff(
            recorded.splitlines(),
            text.splitlines(),
            f"tests/golden/{name}",
            "now",
            lineterm="",
            n=1,
        )
        raise AssertionError("\n".join([f"{name} differs (see tests/kit/golden.py):", *diff][:80]))

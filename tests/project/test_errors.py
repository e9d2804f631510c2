"""Each error has a stable code, so that programs and tests need not read its prose."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import golden

ROOT = Path(__file__).parents[2]
ERRORS = {"SegtrainError", "ConfigError", "DataError", "CheckpointError", "file_error"}


def errors_in(path: Path) -> Iterator[ast.Call]:
    """The calls that make an error, whether it is raised at once or returned."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if name in ERRORS:
                yield node


FILES = sorted([*(ROOT / "segtrain").rglob("*.py"), *(ROOT / "launch").rglob("*.py")])


def test_every_error_has_a_code():
    for path in FILES:
        for call in errors_in(path):
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            code = keywords.get("code", keywords.get(None))  # or it is in **values
            where = f"{path.relative_to(ROOT)}:{call.lineno}"
            assert code is not None, f"{where}: the error has no code="
            if isinstance(code, ast.Constant):
                assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", code.value), (
                    f"{where}: {code.value!r}"
                )


def test_codes_and_the_names_of_their_values():
    """Programs read them. A code that is raised in several places has several lines."""
    lines = []
    for path in FILES:
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            keywords = {keyword.arg or "**": keyword.value for keyword in call.keywords}
            code = keywords.pop("code", None)
            if isinstance(code, ast.Constant) and code.value:
                lines.append(f"{code.value}: {' '.join(sorted(keywords))}".rstrip())
    golden.check("codes.txt", "\n".join(sorted(lines)))

"""Each error has a stable code, so that programs and tests need not read its prose."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "segtrain"
ERRORS = {"SegtrainError", "ConfigError", "DataError", "CheckpointError", "file_error"}


def raised(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = node.exc.func.attr if isinstance(node.exc.func, ast.Attribute) else getattr(node.exc.func, "id", "")
            if name in ERRORS:
                yield node.exc


def test_every_raised_error_has_a_code() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        for call in raised(path):
            code = {keyword.arg: keyword.value for keyword in call.keywords}.get("code")
            where = f"{path.relative_to(PACKAGE)}:{call.lineno}"
            assert code is not None, f"{where}: the error has no code="
            if isinstance(code, ast.Constant):
                assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", code.value), f"{where}: {code.value!r}"

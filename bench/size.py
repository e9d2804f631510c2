"""Tokens of code per package, without comments and docstrings, against the budget in bench/size.csv.

    python bench/size.py            # table; exits with 1 if a package is above its budget (make lint)
    python bench/size.py --update   # write the present sizes, rounded up to hundreds, as the budget

A change that needs more raises the number of its package in bench/size.csv, so that the diff shows it.
"""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGET = ROOT / "bench/size.csv"
LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def python_tokens(text: str) -> int:
    """Tokens that are neither layout, comments, nor strings that stand alone (docstrings)."""
    count, begins = 0, True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in LAYOUT:
            begins = True
        elif token.type != tokenize.COMMENT:
            count += not (begins and token.type == tokenize.STRING)
            begins = False
    return count


def cpp_tokens(text: str) -> int:
    """Words and signs outside of comments."""
    return len(
        re.findall(
            r"\w+|[^\w\s]", re.sub(r"//.*?$|/\*.*?\*/", "", text, flags=re.DOTALL | re.MULTILINE)
        )
    )


def package(name: str) -> str:
    parts = name.split("/")
    if len(parts) == 1:
        return "setup.py"
    if parts[0] not in ("segtrain", "launch"):
        return parts[0]
    depth = 3 if parts[1] in ("insight", "platforms", "core") else 2
    return "/".join(parts[:-1][:depth])


def sizes() -> Counter[str]:
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found: Counter[str] = Counter()
    for name in names:
        path = ROOT / name
        if path.suffix in (".py", ".cpp", ".h") and path.is_file():
            text = path.read_text(encoding="utf-8")
            found[package(name)] += (
                python_tokens(text) if path.suffix == ".py" else cpp_tokens(text)
            )
    return found


def main() -> int:
    found = sizes()
    if "--update" in sys.argv[1:]:
        rows = "".join(f"{name},{-(-found[name] // 100) * 100}\n" for name in sorted(found))
        BUDGET.write_text("package,tokens\n" + rows)
        return 0
    with BUDGET.open(newline="") as file:
        budget = {row["package"]: int(row["tokens"]) for row in csv.DictReader(file)}
    above = [name for name in found if found[name] > budget.get(name, 0)]
    for name in sorted({*found, *budget}):
        print(
            f"{found[name]:9,} of {budget.get(name, 0):9,}  {name}{'   above its budget' if name in above else ''}"
        )
    total = sum(tokens for name, tokens in found.items() if name.startswith(("segtrain", "launch")))
    print(f"{total:9,}  segtrain and launch")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())

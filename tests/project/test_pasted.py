"""Commands that are printed for copying: every value in them is quoted for the shell."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.core.job import ROOT
from segtrain.insight.runs.bucket import print_command, to_read_all_of

STARTS = re.compile(
    r"\b(aws [a-z0-9]+ |gcloud |az storage |docker push |mkdir -p |scancel |"
    r"segtrain (runs|report|eval|plan|diagnose|predict|export|profile|data|train) )"
)
# Values that are quoted already, or that can hold nothing that a shell reads: numbers, and names
# from tables.
SAFE = {
    "region",
    "job.region",
    "clients.region",
    "found.system['FileSystemId']",
    "name",
    "key",
    "'objectUser' if wanted is _WRITES else 'objectViewer'",
    "copy",  # an option
    "CHANNELS",
    "inside",  # quoted where it is made
    "pasted(self.data)",
    "pasted(with_settings(written, division))",
    "settings",
    "run",
    "score",
    "predict",
    "export",
    "root",
    "split",  # prose behind "segtrain data pack"
    "command(void)",  # quotes each setting
    "command(settings)",
    "places",  # quoted where they are made
    "others",
    "values",  # of the function ``pasted``, which quotes each setting
    "side",  # left or right
}
SOURCES = sorted([*(ROOT / "launch").rglob("*.py"), *(ROOT / "segtrain").rglob("*.py")])


def bare_values(path: Path) -> Iterator[str]:
    """The unquoted values behind the first command in each f-string of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.JoinedStr):
            continue
        begun = False
        for part in node.values:
            if isinstance(part, ast.Constant):
                begun = begun or STARTS.search(str(part.value)) is not None
            elif isinstance(part, ast.FormattedValue) and begun:
                text = ast.unparse(part.value)
                if not re.match(r"(shlex\.)?(quote|join)\(", text) and text not in SAFE:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {text}"


def test_every_value_in_a_printed_command_is_quoted():
    assert [found for path in SOURCES for found in bare_values(path)] == []


@pytest.mark.parametrize("name", ["a b", "a;touch x", "$(touch x)", "a'b", "a\nb", "*"])
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_name_is_one_word_of_the_command(scheme, name):
    whole = print_command(f"{scheme}://bucket/runs/{name}/journal.jsonl")
    assert any(word.endswith(f"runs/{name}/journal.jsonl") for word in shlex.split(whole))
    copy = to_read_all_of(f"{scheme}://bucket/runs/{name}").removeprefix("To read all of it: ")
    assert any(
        f"runs/{name}" in word for word in shlex.split(copy.rpartition(", then name FOLDER")[0])
    )

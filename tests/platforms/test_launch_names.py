"""Names that others chose: no line of a script, no control of the terminal, and no traceback comes
from them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launch import sagemaker, slurm, vertex
from launch.core.findings import error, show

pytest.importorskip("yaml")
LONG = "n" * 300
MAINS: dict[str, tuple[Any, list[str]]] = {
    "sagemaker": (sagemaker.main, []),
    "vertex": (vertex.main, []),
    "slurm": (slurm.main, ["--partition", "p"]),
}


@pytest.mark.parametrize("key", ["config", "data", "name"])
@pytest.mark.parametrize("platform", MAINS)
def test_no_control_character_reaches_the_terminal(
    platform: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.json").write_text(json.dumps({key: "s3://b\x1b[31mred\x9b/\u202ex"}))
    main, needed = MAINS[platform]
    main([*needed, "--job", str(tmp_path / "job.json"), "--dry-run"])
    assert not set(capsys.readouterr().err) & set("\x1b\x9b\u202e")


@pytest.mark.parametrize("key", ["config", "requirements", "program"])
@pytest.mark.parametrize("platform", MAINS)
def test_a_name_that_is_too_long_is_a_file_that_is_not_there(
    platform: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.json").write_text(json.dumps({key: LONG}))
    main, needed = MAINS[platform]
    assert main([*needed, "--job", str(tmp_path / "job.json"), "--dry-run"]) == 2
    assert "error" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a\ntouch x", "a\x1b]0;t\x07"])
@pytest.mark.parametrize("where", ["folder", "--output", "--config", "--account", "--sbatch"])
def test_no_name_becomes_a_line_of_the_script(
    where: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name if where == "folder" else tmp_path)
    given = {"folder": [], "--sbatch": [f"--sbatch=--comment={name}"]}.get(where, [where, name])
    assert slurm.main(["--partition", "p", *given, "--dry-run"]) == 2
    assert capsys.readouterr().out == ""


def test_a_cure_is_one_line_that_can_be_copied() -> None:
    long = f"gcloud storage cp -r 'a  b' {'x' * 60} {'y' * 60}"
    assert show([error("code", "message " * 40, long)]).endswith(f"-> {long}")

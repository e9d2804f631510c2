"""Tests that `segtrain launch` works from an installed wheel as `python launch/sagemaker.py` does
in a checkout.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from conftest import need_setuptools

from segtrain import cli

ROOT = Path(__file__).parents[2]
PARTS = ("segtrain", "launch", "configs", "docker")
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md")
ASKED = (
    "--instances",
    "2",
    "--type",
    "ml.g5.12xlarge",
    "--output",
    "s3://bucket/jobs",
    "train.duration=80ep",
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what pip would install from the wheel, without dependencies."""
    need_setuptools()
    work = tmp_path_factory.mktemp("wheel")
    for part in PARTS:
        unwanted = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / part, work / "source" / part, ignore=unwanted)
    for file in FILES:
        shutil.copy(ROOT / file, work / "source")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", str(work)],
        cwd=work / "source",
        env={**os.environ, "SEGTRAIN_NATIVE": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work / "site")
    return work / "site"


def run_installed(
    installed: Path, code: str, *arguments: str, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """A bare Python (-S: no site-packages, -I: no PYTHONPATH and no working directory) that sees
    the wheel alone.
    """
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("AWS_", "SAGEMAKER_"))
    }
    start = f"import sys; sys.path.insert(0, {str(installed)!r})\n"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + code, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def plain(request: dict[str, Any]) -> dict[str, Any]:
    """A request without the moment at which it was made."""
    name = request["TrainingJobName"]
    return json.loads(json.dumps(request).replace(name, "NAME"))


def test_a_wheel_sends_the_request_of_the_checkout(installed, tmp_path, capsys, monkeypatch):
    code = "from segtrain.cli import main; sys.exit(main())"
    done = run_installed(installed, code, "launch", "sagemaker", *ASKED, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "dry run: nothing was sent" in done.stderr
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "SAGEMAKER_ROLE"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["launch", "sagemaker", *ASKED, "--dry-run"]) == 0
    assert plain(json.loads(done.stdout)) == plain(json.loads(capsys.readouterr().out))


def test_a_wheel_puts_nothing_beside_the_package(installed):
    """ROS 2 has a package `launch`, Docker's SDK is `docker`: neither may be shadowed."""
    assert {path.name.partition("-")[0] for path in installed.iterdir()} == {"segtrain"}


def test_a_wheel_sends_the_code_of_the_checkout(installed, tmp_path):
    code = (
        "import hashlib, json\n"
        "import segtrain.launch\n"
        "from launch.platforms.sagemaker.bundle import contents\n"
        "from launch.platforms.sagemaker.job import COMMAND, SageMakerJob\n"
        "from launch.core.job import ROOT\n"
        "said = {name: hashlib.sha256(what if isinstance(what, bytes) else what.read_bytes()).hexdigest()\n"
        # this wheel is built without the library
        "        for name, what in contents(SageMakerJob()) if '.so' not in name}\n"
        "print(json.dumps([COMMAND, said]))"
    )
    done = run_installed(installed, code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    here = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (command, theirs), (_, ours) = json.loads(done.stdout), json.loads(here.stdout)
    assert theirs == ours
    # what a message says to type is there to be typed
    assert command == "segtrain launch sagemaker"


def test_another_package_of_that_name_is_not_taken(installed, tmp_path):
    ros = tmp_path / "ros/launch"
    ros.mkdir(parents=True)
    (ros / "__init__.py").write_text("OF = 'ROS'\n")
    first = f"sys.path.insert(0, {str(ros.parent)!r})\n"
    done = run_installed(
        installed,
        first + "from segtrain.launch import sagemaker; print(sagemaker.__file__)",
        cwd=tmp_path,
    )
    assert done.stdout.strip() == str(installed / "segtrain/_checkout/launch/sagemaker.py"), (
        done.stderr
    )
    done = run_installed(installed, first + "import launch\nimport segtrain.launch", cwd=tmp_path)
    assert "another package named 'launch'" in done.stderr
    assert str(ros) in done.stderr


def test_the_help_names_the_command_that_was_typed(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["launch", "sagemaker", "--help"])
    assert end.value.code == 0
    assert "usage: segtrain launch sagemaker [--dry-run" in capsys.readouterr().out

"""Tests of the launch command: it works from any folder, without AWS, and its errors name what to
set.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch import sagemaker
from segtrain.errors import EXIT_ERROR

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "launch/sagemaker.py"
ASKED = ("--instances", "5", "--type", "ml.p3.16xlarge")


def command(
    *arguments: object,
    cwd: Path = ROOT,
    script: object = SCRIPT,
    options: tuple[str, ...] = (),
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """The script as a user's process without credentials, whatever this machine has."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("AWS_", "SAGEMAKER_"))
    }
    environment |= {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull, **more}
    environment |= {"AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    return subprocess.run(
        [sys.executable, *options, str(script), *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
    )


def test_the_command_of_the_readme_beside_the_script():
    done = command(*ASKED, "--dry-run", cwd=ROOT / "launch", script="sagemaker.py")
    assert done.returncode == 0, done.stderr
    request = json.loads(done.stdout)
    assert request["ResourceConfig"]["InstanceCount"] == 5
    assert request["ResourceConfig"]["InstanceType"] == "ml.p3.16xlarge"
    assert request["ProfilerConfig"]["ProfilingIntervalInMilliseconds"] == 500
    said = " ".join(done.stderr.split())
    assert "retired" in said
    assert "ml.p4d.24xlarge" in said  # a living type to take in its place
    assert "nothing was sent" in said


def test_a_python_without_packages_will_do(tmp_path):
    done = command(*ASKED, "--dry-run", cwd=tmp_path, options=("-S", "-E"))  # -S: no site-packages
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["TrainingJobName"].startswith("segtrain-")
    said = " ".join(done.stderr.split())
    assert "pydantic" in said  # what could not be looked at is said
    assert "botocore" in said


def test_a_dry_run_imports_neither_torch_nor_an_sdk():
    code = (
        f"import runpy, sys\nsys.argv = ['sagemaker.py', '--dry-run', *{ASKED!r}]\n"
        f"try:\n    runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "found = {'torch', 'boto3', 'sagemaker', 'numpy'} & set(sys.modules)\nassert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_script_is_not_the_sdk(tmp_path):
    """`import sagemaker` in the script's process finds an SDK on the path, not the script."""
    (tmp_path / "sagemaker.py").write_text("HERE = 'the SDK'\n")
    code = (
        f"import runpy, sys\nsys.path.insert(0, {str(SCRIPT.parent)!r})\nrunpy.run_path({str(SCRIPT)!r}, run_name='script')\n"
        "import sagemaker\nassert sagemaker.HERE == 'the SDK', sagemaker"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ("--stop", "a", "--update", "b", "--profile-ms", "0"),
            "--stop and --update exclude each other",
        ),
        (("--dry-run", "--hosts", "2", "--procs", "2"), "--hosts, --procs without --rehearse"),
    ],
)
def test_two_things_at_once_are_refused(flags, words, capsys, monkeypatch):
    monkeypatch.setattr("launch.sagemaker.connect", lambda *_: pytest.fail("AWS was asked"))
    assert sagemaker.main(list(flags)) == EXIT_ERROR
    assert words in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_traceback():
    """`... --dry-run | head -1`: the findings are still said."""
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [sys.executable, "-S", str(SCRIPT), "--dry-run", *ASKED],
        cwd=ROOT,
        stdout=writes,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writes)
    assert done.returncode == 128 + signal.SIGPIPE
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "nothing was sent" in done.stderr


def test_what_costs_nothing_to_find_is_said_before_credentials_are_asked_for():
    pytest.importorskip("boto3", reason="the extra 'sagemaker' is not installed")
    done = command(*ASKED)
    assert done.returncode == EXIT_ERROR
    said = " ".join(done.stderr.split())
    retired, cost, asked = (
        said.index(word) for word in ("is retired", "$3,378.24", "no AWS credentials were found")
    )
    assert retired < cost < asked
    assert said.count("is retired") == 1
    assert said.count("error:") == 1
    for word in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "--dry-run"):
        assert word in said
    done = command("--type", "ml.g5.13xlarge")  # what can only fail does not get as far
    assert "unknown" in done.stderr or "not a known training type" in done.stderr
    assert "credentials were found" not in done.stderr

"""Tests of entrypoint.sh as process 1: it forwards stops, returns the exit code, and keeps the
cause of a failure.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENTRYPOINT = ROOT / "docker/sagemaker/entrypoint.sh"
PATIENCE_S = 240  # of a wait in these tests; what they wait for comes within a second


@pytest.fixture
def contained(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """entrypoint.sh as process 1 of a PID namespace, with a ``train`` of ours; as a file, and as
    the request sends it.
    """
    if subprocess.run(
        ["unshare", "-pf", "--mount-proc", "true"], capture_output=True, check=False
    ).returncode:
        pytest.skip("this kernel or user may make no PID namespace (unshare -pf)")

    processes: list[subprocess.Popen[str]] = []

    def start(train: str, way: str = "file") -> subprocess.Popen[str]:
        (tmp_path / "bin").mkdir()
        program = tmp_path / "bin/train"
        program.write_text(f"#!/bin/bash\n{train}\n")
        program.chmod(0o755)
        lines = [
            line
            for line in ENTRYPOINT.read_text().splitlines()
            if line.strip() and not line.lstrip().startswith("#")
        ]
        arguments = ["bash", "-c", 'eval "$(printf "%s\\n" "$@")"', "entrypoint", *lines]
        started = subprocess.Popen(
            [
                "unshare",
                "-pf",
                "--kill-child",
                "--mount-proc",
                *([str(ENTRYPOINT)] if way == "file" else arguments),
            ],
            env={
                **os.environ,
                "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
                "SAGEMAKER_BASE_DIR": str(tmp_path),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(started)
        return started

    yield start
    for started in processes:
        started.kill()
        started.wait()


def first_process(started: subprocess.Popen[str]) -> int:
    """The PID, as seen from here, of the namespace's process 1."""
    return int(Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()[0])


RANK = f"""exec {sys.executable} -c '
import os, signal, sys, time, pathlib
ranks = pathlib.Path(os.environ["SEGTRAIN_RANKS"])
def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("saving", flush=True)
    while not (ranks / "go").exists(): time.sleep(0.02)
    print("saved")
    sys.exit(7)
signal.signal(signal.SIGTERM, save)
(ranks / "0.pid").write_text(str(os.getpid()))
print("ready", flush=True)
while True: time.sleep(0.05)'"""


@pytest.mark.parametrize("way", ["file", "arguments"])
def test_sigterm_reaches_the_ranks_and_their_code_comes_back(contained, tmp_path, way):
    started = contained(RANK, way)
    assert started.stdout.readline() == "ready\n"
    lines = []
    for told in (1, 2):  # a second one must not cut the wait short
        os.kill(first_process(started), signal.SIGTERM)
        while sum("SIGTERM" in line for line in lines) < told or "saving\n" not in lines:
            lines.append(started.stdout.readline())
            assert lines[-1], lines
    (tmp_path / "segtrain-ranks/go").touch()
    output, _ = started.communicate(timeout=PATIENCE_S)
    assert "saved" in output
    assert started.returncode == 7


def test_a_stop_before_there_is_a_rank_leaves_a_flag(contained):
    started = contained(
        'echo ready; while [ ! -e "$SEGTRAIN_RANKS/stop" ]; do sleep 0.05; done; echo flag'
    )
    assert started.stdout.readline() == "ready\n"
    os.kill(first_process(started), signal.SIGTERM)
    output, _ = started.communicate(timeout=PATIENCE_S)
    assert "flag" in output
    assert started.returncode == 0


@pytest.mark.parametrize("code", [0, 1])
def test_the_cause_outlives_a_toolkit_that_overwrites_or_ends_with_0(contained, tmp_path, code):
    started = contained(
        'mkdir -p $SAGEMAKER_BASE_DIR/output; echo -n "rank 1: cause" > $SEGTRAIN_RANKS/failure; '
        f"echo ExecuteUserScriptError > $SAGEMAKER_BASE_DIR/output/failure; exit {code}"
    )
    started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 1
    assert (tmp_path / "output/failure").read_text() == "rank 1: cause"


FULL = """
head -c 9000000 /dev/zero > $SAGEMAKER_BASE_DIR/full
exec PYTHON -c 'import os; from pathlib import Path; from segtrain.platforms.sagemaker.entry import _failed
_failed(OSError("the cause"), Path(os.environ["SAGEMAKER_BASE_DIR"]), None); os._exit(0)'
"""


def test_the_cause_fits_on_a_full_disk_and_the_job_has_failed(tmp_path):
    """Though ``train`` ends with 0 there, as AWS's does when it cannot write."""
    program = tmp_path / "bin/train"
    program.parent.mkdir()
    program.write_text("#!/bin/bash" + FULL.replace("PYTHON", sys.executable))
    program.chmod(0o755)
    base = tmp_path / "ml"
    base.mkdir()
    mount = f"mount -t tmpfs -o size=8m tmpfs {base} || exit 99; {ENTRYPOINT}; code=$?; cat {base}/output/failure; exit $code"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={
            **os.environ,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SAGEMAKER_BASE_DIR": str(base),
        },
    )
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip("this kernel or user may mount nothing (unshare -m)")
    assert "No space left on device" in done.stderr
    assert "OSError: the cause" in done.stdout
    assert done.returncode == 1


def test_a_container_without_a_word_gets_one(contained, tmp_path):
    started = contained("kill -KILL $$")
    started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 137
    assert "train ended with code 137" in (tmp_path / "output/failure").read_text()


def test_the_lines_fit_the_request():
    lines = ENTRYPOINT.read_text().splitlines()
    code = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert len(code) <= 60
    assert all(len(line) < 256 and not line.endswith("\\") and "<<" not in line for line in code)
    assert not any(name in line for line in code for name in ("$@", "$*", "$1 ", "$0"))

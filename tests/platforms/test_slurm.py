"""Tests of the trainer and its launcher on a real Slurm of two nodes on this machine, in less than
a minute.

They are skipped, with the reason, where Slurm cannot be started.
tests/platforms/test_slurm_scenarios.py has the long ones.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from cluster_slurm import Cluster
from slurm_jobs import ROOT, TRAINING, Run, private_slurm

from launch.core.job import load_job
from launch.platforms.slurm import follow as following
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.prepare import write
from launch.platforms.slurm.tools import jobs, submit
from segtrain.runfolder import checkpoint


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with private_slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found


def test_ranks_meet_by_the_address_that_slurm_has(cluster, tmp_path):
    """The names n1 and n2 do not resolve. A job is stopped by the launcher with its state saved,
    and goes on.
    """
    run = Run(cluster, tmp_path, "stopped", settings={"train.duration": "2000st"}).submit().trains()
    said: list[str] = []
    assert following.stop(run.number, said.append) == 0
    run.ends("FAILED")
    assert run.shown["ExitCode"] == "75:0"
    assert f"{run.number} saves its state" in said
    assert following.follow(run.number, said.append, poll_s=0.1) == 75
    newest = checkpoint.checkpoints(run.folder)[-1]
    assert "stopped, the state is saved" in run.history
    assert f"stopped by SIGUSR1 after step {int(newest.stem[5:])} of" in "\n".join(said)


def test_a_name_that_does_not_resolve_is_refused_at_once(cluster, tmp_path):
    """As on nodes without scontrol."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "env"):
        (programs / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        [
            str(shutil.which("srun")),
            "-N2",
            "-n2",
            "--kill-on-bad-exit=0",
            "--wait=30",
            "--export=ALL",
            sys.executable,
            "-m",
            "segtrain",
            "train",
            f"out={tmp_path / 'run'}",
            *(f"{k}={json.dumps(v)}" for k, v in TRAINING.items()),
        ],
        env={**cluster.environment, "PATH": str(programs), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "cannot resolve MASTER_ADDR=n1" in done.stderr


def test_salloc_without_srun_is_refused(cluster, tmp_path):
    done = subprocess.run(
        [
            "salloc",
            "-N2",
            "-n2",
            sys.executable,
            "-m",
            "segtrain",
            "train",
            f"out={tmp_path / 'run'}",
        ],
        env={**cluster.environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "start it with srun" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_job_with_a_wrong_setting_ends_at_once_and_is_not_queued_again(cluster, tmp_path):
    run = Run(cluster, tmp_path, "wrong", settings={"optim.lr": -1}).submit().ends("FAILED")
    assert run.shown["ExitCode"] == "2:0"
    assert run.shown["Restarts"] == "0"
    assert "optim.lr" in run.log()


def test_values_of_flags_reach_slurm_as_they_are(cluster, tmp_path):
    """sbatch takes # for a comment, and takes quotes and backslashes away."""
    for text in ("a#b", "o'brien", 'say "x"', "a\\b", "a b#c"):
        job = load_job(
            SlurmJob, {"output": str(tmp_path / "o'brien #1"), "sbatch": [f"--comment={text}"]}, {}
        )
        number = submit(write(job), ["--hold"])
        found = jobs(number)[0]
        cluster.run("scancel", number)
        assert found["Comment"] == text
        assert found["StdOut"] == str(tmp_path / f"o'brien #1/segtrain/slurm/{number}.log")


def test_a_job_waits_for_another_one(cluster, tmp_path):
    first = cluster.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 600").strip()
    words = [
        "--after",
        first,
        "--no-follow",
        "--no-probe",
        "--max-run",
        "10m",
        "--output",
        str(tmp_path),
    ]
    done = subprocess.run(
        [sys.executable, "launch/slurm.py", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    second = done.stdout.split()[2]
    try:
        assert f"--attach {second}" in done.stdout
        assert cluster.job(second)["Dependency"] == f"afterok:{first}(unfulfilled)"
        said: list[str] = []
        assert following.stop(second, said.append) == 0
        assert said == [f"{second} is taken out of the queue (pending)"]
    finally:
        cluster.run("scancel", first)
    assert following.stop(second, said.append) == 0
    assert said[1:] == [f"{second} has ended already (cancelled)"]

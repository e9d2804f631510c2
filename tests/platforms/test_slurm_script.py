"""Tests that run the script of a Slurm job in bash, with stand-ins for srun and scontrol."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launch.core.job import load_job
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.script import sbatch_script


class Node:
    """The host of a job: ``srun`` ends with a code, and ``scontrol`` says the state of the job."""

    def __init__(self, folder: Path, **keys: Any) -> None:
        self.folder, self.run = folder, folder / "runs/segtrain"
        job = load_job(SlurmJob, {"output": str(folder / "runs"), "config": "", **keys}, {})
        self.script = sbatch_script(job)

    def start(self, code: int, restarts: int = 0, number: int = 7) -> int:
        """Run the script. Its job is ending, so that it does not queue itself again."""
        programs = self.folder / "programs"
        programs.mkdir(exist_ok=True)
        for name, text in (
            ("srun", f"exit {code}"),
            ("scontrol", 'echo "JobId=7 JobState=COMPLETING Requeue=1 "'),
        ):
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SLURM_JOB_ID": str(number),
            "SLURM_JOB_NODELIST": "n1",
            "SLURM_RESTART_COUNT": str(restarts),
        }
        # Not into pipes: a pause of the script that outlives it would keep them open.
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.run(
            ["bash", "-c", self.script], env=environment, **quiet, check=False
        ).returncode


def test_stops_are_counted_within_one_job(tmp_path):
    node = Node(tmp_path, most_stops=3)
    killed = 137
    assert [node.start(killed, restarts) for restarts in (0, 1)] == [75, 75]
    assert [node.start(killed, restarts, number=8) for restarts in (0, 1, 2)] == [75, 75, 1]
    assert "3 stops in a row" in (node.run / "slurm/history.txt").read_text()


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (2, 2), (126, 126), (127, 127), (137, 75)])
def test_a_program_that_is_not_there_is_an_error(code, expected, tmp_path):
    node = Node(tmp_path, start="node")
    assert node.start(code) == expected
    assert (node.run / "slurm/stops").exists() == (expected == 75)

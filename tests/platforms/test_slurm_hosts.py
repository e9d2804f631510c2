"""Tests that a Slurm job of two hosts is observed as one run: its profile, spans, page, and a slow
host by its name.

The two nodes of the private Slurm share this machine; each has a host name of its own (a UTS
namespace).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_slurm import Cluster, NoSlurm, slurm_cluster

from launch.core.job import load_job
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.prepare import write
from launch.platforms.slurm.tools import submit
from segtrain import cli

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0
HOSTS = {"host-n1", "host-n2"}
SLOW = """
import socket, sys, time
if "train" in sys.argv or "train" in sys.orig_argv:
    import segtrain.training.step as step
    loss = step.low_res_loss
    def slow(*arguments, **more):
        time.sleep(0.3 if socket.gethostname() == "host-n2" else 0.0)
        return loss(*arguments, **more)
    step.low_res_loss = slow
"""
SETTINGS = {
    "data.layout": "scenes",
    "data.scenes": 8,
    "data.scene_size": [64, 64],
    "data.crop": [64, 64],
    "data.workers": 1,
    "train.batch_size": 4,
    "train.duration": "40st",
    "train.device": "cpu",
    "parallel.threads": 1,
    "eval.every": "9999st",
    "log.every": 5,
    "log.tensorboard": False,
}


class NamedHosts(Cluster):
    """A cluster whose nodes have host names of their own."""

    def slurmd(self, node: str) -> None:
        program = shutil.which("slurmd", path=self.environment["PATH"])
        self.start(
            node,
            "unshare",
            "--uts",
            "sh",
            "-c",
            f"hostname host-{node}; exec {program} -D -N {node}",
        )


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no UTS namespaces")
    monkeypatch.setattr("cluster_slurm.Cluster", NamedHosts)
    try:
        with slurm_cluster(tmp_path / "slurm") as found:
            for key in ("SLURM_CONF", "PATH"):
                monkeypatch.setenv(key, found.environment[key])
            yield found
    except NoSlurm as why:
        pytest.skip(str(why))


@pytest.mark.slurm
def test_two_hosts_are_one_run_and_the_slow_one_is_named(cluster, tmp_path, monkeypatch, capsys):
    """The loss of one host sleeps in each step, for much longer than the step takes elsewhere."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    plant = tmp_path / "plant"
    plant.mkdir()
    (plant / "sitecustomize.py").write_text(SLOW)
    what = {
        "name": "two",
        "output": str(tmp_path / "runs"),
        "settings": SETTINGS,
        "nodes": 2,
        "cpus": 1,
        "max_run": 600,
        "config": "",
        "interface": "lo",
        "setup": [f"export PYTHONPATH={plant}:$PYTHONPATH"],
    }
    job = load_job(SlurmJob, what, {})
    number, run = submit(write(job)), job.runs()[0]
    end = time.monotonic() + PATIENCE_S
    while (state := cluster.job(number)["JobState"]) in (
        "PENDING",
        "RUNNING",
        "CONFIGURING",
        "COMPLETING",
    ):
        assert time.monotonic() < end, state
        time.sleep(0.5)
    assert state == "COMPLETED", (run / f"slurm/{number}.log").read_text()[-3000:]

    sampled = {
        json.loads(path.read_text())["host"] for path in (run / "profile").glob("*.state.json")
    }
    assert sampled == HOSTS
    spans = [path.read_text() for path in sorted((run / "spans").glob("rank-*.jsonl"))]
    assert [[host for host in HOSTS if host in text] for text in spans] == [
        ["host-n1"],
        ["host-n2"],
    ]
    starts = [
        line
        for line in (run / "journal.jsonl").read_text().splitlines()
        if '"event": "run_start"' in line
    ]
    assert len(starts) == 1  # one journal for both

    assert cli.main(["diagnose", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bound"] == "slow-host"
    assert found["verdicts"][0]["evidence"].startswith("host host-n2 (rank 1)")
    assert cli.main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert all(host in page for host in HOSTS)

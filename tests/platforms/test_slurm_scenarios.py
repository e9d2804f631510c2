"""Scenarios on a real Slurm of two nodes (make test-slurm): what is stopped, preempted, killed, or
lost continues.

Each ends with the checkpoint of an undisturbed run of two ranks, bit for bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from cluster_slurm import Cluster
from slurm_jobs import PATIENCE_S, ROOT, TRAINING, Run, assert_same, private_slurm

from launch.platforms.slurm import follow as following
from segtrain.observe.journal import read_journal
from segtrain.runfolder import checkpoint

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with private_slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture(scope="module")
def whole(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an undisturbed run of two ranks."""
    return Run(cluster, tmp_path_factory.mktemp("whole"), "whole").submit().ends().folder


def test_the_time_limit_twice_in_a_row(cluster, whole, tmp_path):
    run = Run(cluster, tmp_path, "limit", notice=60).submit()
    for restart, step in ((1, 25), (2, 60)):
        with run.frozen(step=step):
            # All that is left of a minute is less than the notice.
            cluster.run("scontrol", "update", f"JobId={run.number}", "TimeLimit=1")
        run.until(lambda: run.shown["JobState"] == "PENDING")
        cluster.run("scontrol", "update", f"JobId={run.number}", "TimeLimit=30")
        run.again(restart)
    run.ends()
    assert run.history.count("signals: USR1") == 2
    assert run.history.count("queued again") == 2
    assert_same(run.folder, whole)


def test_preemption_by_a_higher_partition(cluster, whole, tmp_path):
    run = Run(cluster, tmp_path, "preempted", partition="low").submit()
    with run.frozen():
        cluster.run(
            "sbatch", "-p", "high", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2"
        )
    run.again().ends()
    assert "stopped by SIGTERM after step" in run.log()
    assert_same(run.folder, whole)


def test_a_rank_that_is_killed(cluster, whole, tmp_path):
    run = Run(cluster, tmp_path, "killed").submit()
    with run.frozen() as rank:
        os.kill(rank, signal.SIGKILL)
    run.again().ends()
    assert "has lost another rank" in run.log()
    assert "1 x 76" in run.history
    assert_same(run.folder, whole)


def test_scancel_and_a_later_submission(cluster, whole, tmp_path):
    run = Run(cluster, tmp_path, "canceled").submit()
    with run.frozen():
        cluster.run("scancel", run.number)
    run.ends("CANCELLED")
    first = run.number
    time.sleep(8)  # longer than the delay of a requeue
    assert run.shown["JobState"] == "CANCELLED"
    run.submit().ends()
    assert run.number != first
    assert_same(run.folder, whole)


def test_with_exact_sums_4_ranks_then_2_then_1_end_as_one_that_ran_through(cluster, tmp_path):
    exact = {"parallel.exact": 4}
    alone = Run(cluster, tmp_path, "alone", nodes=1, settings=exact).submit()
    four = Run(cluster, tmp_path, "parts", procs=2, settings=exact).submit()
    with four.frozen() as rank:
        os.kill(rank, signal.SIGKILL)
    four.again()
    with four.frozen(step=60):
        cluster.run("scancel", four.number)
    four.ends("CANCELLED")
    two = Run(cluster, tmp_path, "parts", settings=exact).submit()
    with two.frozen(step=120):
        cluster.run("scancel", two.number)
    two.ends("CANCELLED")
    one = Run(cluster, tmp_path, "parts", nodes=1, settings=exact).submit().ends()
    alone.ends()
    starts = [e for e in read_journal(one.folder) if e["event"] == "run_start"]
    assert [event["world_size"] for event in starts] == [4, 4, 2, 1]
    assert_same(one.folder, alone.folder)


def test_slurmctld_restarted_while_a_rank_is_killed(cluster, whole, tmp_path):
    run = Run(cluster, tmp_path, "headless").submit()
    with run.frozen(until=lambda: True) as rank:
        # slurmctld writes its state every few seconds, and forgets a job that is younger
        time.sleep(8)
        cluster.daemons["slurmctld"].kill()
        cluster.daemons["slurmctld"].wait()
        os.kill(rank, signal.SIGKILL)
        time.sleep(12)  # the script asks slurmctld in vain
        cluster.slurmctld()
        cluster.wait_up()
    run.again().ends()
    assert_same(run.folder, whole)


def test_an_array_of_three_of_which_one_fails(cluster, whole, tmp_path):
    tasks = ["name=first", "optim.lr=-1", "name=third"]
    run = Run(cluster, tmp_path, "array", array=tasks).submit()
    with run.frozen():
        cluster.run("scancel", "--batch", "--signal=USR1", f"{run.number}_0")
    said: list[str] = []
    assert following.follow(run.number, said.append, poll_s=0.5) == 1
    assert [line for line in said if "failed with exit code 2" in line]
    first, wrong, third = run.job.runs()
    assert "queued again" in run.history  # the task alone
    assert_same(first, whole)
    assert_same(third, whole)
    assert "start 2" not in (third / "slurm/history.txt").read_text()
    assert not (wrong / "checkpoints").exists()


def test_one_torchrun_on_each_node(cluster, whole, tmp_path):
    """torchrun ends with 1 after a signal: the script goes by the codes of the ranks."""
    run = Run(cluster, tmp_path, "torchrun", start="node").submit()
    run.trains()
    cluster.run("scancel", "--batch", "--signal=USR1", run.number)
    run.again().ends()
    assert "2 x 75" in run.history
    assert_same(run.folder, whole)


def test_stops_without_a_new_checkpoint_come_to_an_end(cluster, tmp_path):
    """A rank that is killed in every start, before the first checkpoint."""
    run = Run(
        cluster, tmp_path, "stuck", most_stops=2, settings={"checkpoint.every": "9999st"}
    ).submit()
    for start in (1, 2):
        run.until(partial(_begun, run, start))
        os.kill(run.rank(1), signal.SIGKILL)
    run.ends("FAILED")
    assert run.shown["ExitCode"] == "1:0"
    assert "2 stops in a row without a new checkpoint: the end" in run.history


def _begun(run: Run, start: int) -> bool:
    """Whether rank 1 of this start runs."""
    with contextlib.suppress(AssertionError):
        return f"start {start}: nodes" in run.history and run.rank(1) > 0
    return False


def test_interactive_trains_in_this_terminal_until_ctrl_c(cluster, tmp_path):
    words = [
        "--interactive",
        "--nodes",
        "2",
        "--cpus",
        "1",
        "--max-run",
        "10m",
        "--output",
        str(tmp_path),
    ]
    settings = {**TRAINING, "train.duration": "4000st"}
    shell = subprocess.Popen(
        [
            sys.executable,
            "launch/slurm.py",
            *words,
            *(f"{key}={json.dumps(value)}" for key, value in settings.items()),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    journal, end = tmp_path / "segtrain/journal.jsonl", time.monotonic() + PATIENCE_S
    while not (journal.exists() and '"step": 5' in journal.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(shell.pid, signal.SIGINT)  # as a terminal does it
    said, _ = shell.communicate(timeout=PATIENCE_S)
    assert shell.returncode == 75, said
    assert "ranks       2 x cpu" in said
    assert re.search(r"stopped by .+ after step \d+ of 4000: the state is saved", said), said
    assert checkpoint.checkpoints(tmp_path / "segtrain")


GPU = """
import os, sys, warnings
from types import SimpleNamespace
import torch
visible = os.environ.get("CUDA_VISIBLE_DEVICES")
torch.cuda.is_available = lambda: visible != ""
torch.cuda.device_count = lambda: 2 if visible is None else len(visible.split(","))
torch.cuda.get_device_properties = lambda index: SimpleNamespace(uuid=(visible or "0,1").split(",")[index])
from segtrain.installed import discover
from segtrain.parallel.gpus import gpus_in_sight, own_gpu
from segtrain.parallel.places import RankPlace, exchange
place = discover()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    gpus = gpus_in_sight("cuda", place)
store = torch.distributed.TCPStore(place.master_addr, place.master_port, 2, place.rank == 0)
rows = exchange(store, place, RankPlace("host", place.local_rank, gpus))
print(place.rank, gpus[own_gpu(rows, place, "nccl")], *(warning.message for warning in said))
"""


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        (["--gres=gpu:2"], ""),
        (["--gpus-per-task=1"], ""),
        (["--gres=gpu:2", "--gpu-bind=single:1"], ""),
        (["--gpus-per-task=1", "--gpu-bind=none"], "--gpu-bind=none"),
        ([], "--gres=gpu:N"),
    ],
)
def test_each_rank_finds_its_own_gpu(cluster, flags, warning):
    """CUDA is simulated: it shows as many GPUs as CUDA_VISIBLE_DEVICES names, or the node's two."""
    said = cluster.run(
        "srun", "-N1", "-n2", *flags, sys.executable, "-c", GPU, PYTHONPATH=str(ROOT)
    )
    rows = sorted(said.splitlines())
    assert [row.split()[:2] for row in rows] == [["0", "0"], ["1", "1"]]
    assert warning in rows[0]
    assert len(rows[0]) == 3 or warning

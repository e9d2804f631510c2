"""Tests that a process finds its rank under torchrun and MPI, and of the cores and the port of its
host.
"""

from __future__ import annotations

import socket
import threading
from functools import partial

import pytest
from conftest import refused

from segtrain.base.cores import cores, slurm_cores
from segtrain.parallel import cluster
from segtrain.parallel.cluster import LAUNCHERS, Cluster, RankStarter, free_port
from segtrain.parallel.failure import reach_rank_0

discover = partial(cluster.discover, LAUNCHERS)


def test_nothing_is_one_process():
    assert discover({}) == Cluster()
    assert discover({}).alone


HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("environ", "local", "source"),
    [
        (HYDRA, (1, 2), "mpich"),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, (0, 0), "mpich"),
        (
            {
                f"MV2_COMM_WORLD_{k}": v
                for k, v in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "3412")
            },
            (1, 2),
            "mvapich",
        ),
        (
            {
                f"JSM_NAMESPACE_{k}": v
                for k, v in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "3412")
            },
            (1, 2),
            "jsrun",
        ),
        (
            {**HYDRA, "PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2"},
            (1, 2),
            "pals",
        ),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (0, 0), "torchrun"),
    ],
)
def test_launchers(environ, local, source):
    """Local size 0: counted when the ranks meet."""
    expected = RankStarter(source, ranks_in_order=source == "torchrun")
    assert discover({**environ, "MASTER_ADDR": "h"}) == Cluster(3, 4, *local, "h", 29500, expected)
    with refused("master-addr-missing"):
        discover(environ)


def test_a_launcher_of_one_process_or_one_host_needs_no_address():
    assert discover({"PMI_RANK": "0", "PMI_SIZE": "1"}) == Cluster()
    assert discover({"YOD_RANK": "0", "YOD_SIZE": "1"}) == Cluster()
    assert discover({"RANK": "0", "WORLD_SIZE": "1"}) == Cluster(source=RankStarter("torchrun"))
    assert discover({**HYDRA, "PMI_SIZE": "2", "PMI_RANK": "1"}).master_addr == "127.0.0.1"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLURM_CPUS_ON_NODE": "6"}, (6, 1)),
        (
            {"SLURM_CPUS_ON_NODE": "6", "SLURM_STEP_TASKS_PER_NODE": "1,3", "SLURM_NODEID": "1"},
            (6, 3),
        ),
        (
            {
                "SLURM_CPUS_ON_NODE": "64",
                "SLURM_CPUS_PER_TASK": "4",
                "SLURM_STEP_TASKS_PER_NODE": "2",
            },
            (8, 2),
        ),
        ({}, (None, 1)),
    ],
)
def test_cores_of_a_slurm_job(environ, expected):
    assert slurm_cores({**environ, "SLURMD_NODENAME": "n1"}) == expected
    assert slurm_cores(environ) == (None, 1)  # on the submit host


def test_cores_are_those_of_the_job(tmp_path, monkeypatch):
    free = cores(tmp_path)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    assert cores(tmp_path) == 1
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", str(3 * free))
    assert cores(tmp_path) == free
    # Three tasks, each bound to its own cores.
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "3")
    assert cores(tmp_path) == 3 * free


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "0"},
            "bad-launcher-variable",
        ),
        ({"PALS_RANKID": "0", "MASTER_ADDR": "h"}, "bad-launcher-variable"),
        ({"X_COMM_PROCID": "1", "X_COMM_NTASKS": "2"}, "unknown-launcher"),
    ],
)
def test_variables_that_cannot_be(environ, expected):
    with refused(expected):
        discover(environ)


def test_cores_respect_the_quota(tmp_path):
    free = cores(tmp_path)
    (tmp_path / "cpu.max").write_text("100000 100000")
    assert cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000")
    assert cores(tmp_path) == free


def test_a_free_port_is_none_that_the_kernel_gives_away(tmp_path):
    """gloo's listeners, and connections of any program, would take it before rank 0 does."""
    limits = tmp_path / "ip_local_port_range"
    for first, expected in (
        (32768, range(10_000, 30_000)),
        (12_000, range(10_000, 12_000)),
        (1024, range(1, 65_536)),
    ):
        limits.write_text(f"{first}\t60999\n")
        found = {free_port(limits) for _ in range(20)}
        assert found <= set(expected)
        assert len(found) > 1
        with socket.socket() as own:
            own.bind(("127.0.0.1", free_port(limits)))


def test_a_rank_waits_until_rank_0_listens():
    rank = Cluster(rank=1, world_size=2, master_port=free_port())
    with refused("ranks-not-met"):
        reach_rank_0(rank, timeout_s=0.0)
    with socket.socket() as server:
        server.bind((rank.master_addr, rank.master_port))
        timer = threading.Timer(0.5, server.listen)
        timer.start()
        reach_rank_0(rank, timeout_s=60.0)
        timer.join()

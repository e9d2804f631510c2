"""Tests that a process finds its rank under each launcher."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from conftest import refused

from segtrain.base.cores import cores, slurm_cores
from segtrain.parallel.cluster import Cluster, discover, free_port
from segtrain.platforms.slurm import hosts as slurm_hosts
from segtrain.platforms.slurm.hosts import expand_hosts, without_step

NOWHERE = Path("/nonexistent/resourceconfig.json")


def test_nothing_is_one_process() -> None:
    assert discover({}, NOWHERE) == Cluster()


def test_torchrun() -> None:
    environ = {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "h",
        "MASTER_PORT": "1",
    }
    assert discover(environ, NOWHERE) == Cluster(5, 8, 1, 4, "h", 1, "torchrun")


STEP = {
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NODELIST": "gpu[01-02],big7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_JOB_ID": "41",
}


def test_srun_counts_tasks_of_each_host() -> None:
    environ = {**STEP, "MASTER_ADDR": "10.0.0.1"}
    assert discover(environ, NOWHERE) == Cluster(4, 5, 0, 1, "10.0.0.1", 21271, "slurm")


HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("environ", "local", "source"),
    [
        (HYDRA, (1, 2), "mpich"),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, (0, 0), "mpich"),
        ({f"MV2_COMM_WORLD_{k}": v for k, v in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "3412")}, (1, 2), "mvapich"),
        ({f"JSM_NAMESPACE_{k}": v for k, v in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "3412")}, (1, 2), "jsrun"),
        ({**HYDRA, "PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2"}, (1, 2), "pals"),
        ({"FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1"}, (0, 0), "flux"),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (0, 0), "torchrun"),
    ],
)  # fmt: skip
def test_launchers(environ: dict[str, str], local: tuple[int, int], source: str) -> None:
    """Local size 0: counted when the ranks meet."""
    assert discover({**environ, "MASTER_ADDR": "h"}, NOWHERE) == Cluster(3, 4, *local, "h", 29500, source)
    with refused("master-addr-missing"):
        discover(environ, NOWHERE)


def test_a_launcher_of_one_process_or_one_host_needs_no_address() -> None:
    assert discover({"PMI_RANK": "0", "PMI_SIZE": "1"}, NOWHERE) == Cluster()
    assert discover({"YOD_RANK": "0", "YOD_SIZE": "1"}, NOWHERE) == Cluster()
    assert discover({"RANK": "0", "WORLD_SIZE": "1"}, NOWHERE) == Cluster(source="torchrun")
    assert discover({**HYDRA, "PMI_SIZE": "2", "PMI_RANK": "1"}, NOWHERE).master_addr == "127.0.0.1"


def test_srun_with_pmi_is_slurm_and_mpirun_inside_a_step_is_not() -> None:
    assert discover({**STEP, "MASTER_ADDR": "h", "PMI_RANK": "4", "PMI_SIZE": "5"}, NOWHERE).source == "slurm"
    assert discover({**STEP, **HYDRA, "MASTER_ADDR": "h"}, NOWHERE).source == "mpich"


def test_neighboring_jobs_steps_and_restarts_have_ports_of_their_own() -> None:
    ports = {
        slurm_hosts.port({"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step), "SLURM_RESTART_COUNT": str(restart)})
        for job in range(100, 120)
        for step in range(4)
        for restart in range(7)
    }
    assert len(ports) == 20 * 4 * 7
    assert min(ports) >= 20_000
    assert max(ports) < 30_000
    assert slurm_hosts.port({"SLURM_JOB_ID": "3", "SLURM_STEP_ID": "4294967290"}) < 30_000


@pytest.mark.parametrize(
    ("shown", "expected"),
    [("NodeName=n1 Arch=x86_64 NodeAddr=10.9.8.7 NodeHostName=h Version=22", "10.9.8.7"), ("Node n1 not found", "n1")],
)
def test_slurm_knows_the_address_of_a_name_that_does_not_resolve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str, expected: str
) -> None:
    command = tmp_path / "scontrol"
    command.write_text(f"#!/bin/sh\necho '{shown}'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    name = "n1.invalid"  # RFC 6761: never resolves
    slurm_hosts.address.cache_clear()
    assert slurm_hosts.address(name) == expected.replace("n1", name)
    command.unlink()
    slurm_hosts.address.cache_clear()
    assert slurm_hosts.address(name) == name
    assert slurm_hosts.address("localhost") == "localhost"


def test_ranks_of_one_host_need_no_name() -> None:
    environ = {**STEP, "SLURM_STEP_NODELIST": "n1.invalid", "SLURM_STEP_TASKS_PER_NODE": "5", "SLURM_NODEID": "0"}
    assert discover({**environ, "SLURM_LOCALID": "4"}, NOWHERE).master_addr == "127.0.0.1"


def test_a_batch_script_without_srun_is_one_process() -> None:
    assert discover({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, NOWHERE) == Cluster()


def test_salloc_without_srun_does_not_train_on_the_login_node() -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    with refused("outside-slurm-job", job="7", host="login"):
        without_step(job, "login")
    assert "one alone" in without_step(job, "n2.cluster.local")
    assert "one alone" in without_step({**job, "SLURMD_NODENAME": "n1"}, "other-name")
    assert without_step({**job, "SLURM_STEP_NUM_TASKS": "1"}, "n1") == ""
    assert without_step({**job, "SLURM_JOB_NUM_NODES": "1"}, "n1") == ""
    assert without_step({}, "login") == ""


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLURM_CPUS_ON_NODE": "6"}, (6, 1)),
        ({"SLURM_CPUS_ON_NODE": "6", "SLURM_STEP_TASKS_PER_NODE": "1,3", "SLURM_NODEID": "1"}, (6, 3)),
        ({"SLURM_CPUS_ON_NODE": "64", "SLURM_CPUS_PER_TASK": "4", "SLURM_STEP_TASKS_PER_NODE": "2"}, (8, 2)),
        ({}, (None, 1)),
    ],
)
def test_cores_of_a_slurm_job(environ: dict[str, str], expected: tuple[int | None, int]) -> None:
    assert slurm_cores({**environ, "SLURMD_NODENAME": "n1"}) == expected
    assert slurm_cores(environ) == (None, 1)  # on the submit host


def test_cores_are_those_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = cores(tmp_path)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    assert cores(tmp_path) == 1
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", str(3 * free))
    assert cores(tmp_path) == free
    # Three tasks, each bound to its own cores.
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "3")
    assert cores(tmp_path) == 3 * free


def test_hosts_of_sagemaker_are_sorted(tmp_path: Path) -> None:
    path = tmp_path / "resourceconfig.json"
    path.write_text(json.dumps({"current_host": "algo-2", "hosts": ["algo-3", "algo-2"]}))
    assert discover({}, path) == Cluster(0, 2, 0, 1, "algo-2", 29500, "sagemaker")


def test_mpi_takes_the_master_from_sagemaker(tmp_path: Path) -> None:
    path = tmp_path / "resourceconfig.json"
    path.write_text(json.dumps({"current_host": "algo-2", "hosts": ["algo-2", "algo-1"]}))
    ours = {"RANK": "9", "SIZE": "16", "LOCAL_RANK": "1", "LOCAL_SIZE": "8"}
    environ = {f"OMPI_COMM_WORLD_{key}": value for key, value in ours.items()}
    assert discover(environ, path) == Cluster(9, 16, 1, 8, "algo-1", 29500, "mpi")
    with refused("master-addr-missing"):
        discover(environ, NOWHERE)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"RANK": "0"}, "bad-launcher-variable"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "bad-launcher-variable"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "launcher-contradicts-itself"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "2"}, "launcher-contradicts-itself"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "master-addr-missing"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "65536"}, "bad-launcher-variable"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "0"}, "bad-launcher-variable"),
        ({"PALS_RANKID": "0", "MASTER_ADDR": "h"}, "bad-launcher-variable"),
        ({"YOD_RANK": "0", "YOD_SIZE": "2"}, "unknown-launcher"),
        ({"X_COMM_PROCID": "1", "X_COMM_NTASKS": "2"}, "unknown-launcher"),
    ],
)
def test_variables_that_cannot_be(environ: dict[str, str], expected: str) -> None:
    with refused(expected):
        discover(environ, NOWHERE)


def test_a_broken_resource_config_is_named(tmp_path: Path) -> None:
    path = tmp_path / "resourceconfig.json"
    path.write_text("{}")
    with refused("bad-resource-config", file=str(path)):
        discover({}, path)


def test_host_lists() -> None:
    assert expand_hosts("n[01-03,7],m2,k[9-10]-x") == ["n01", "n02", "n03", "n7", "m2", "k9-x", "k10-x"]


def test_cores_respect_the_quota(tmp_path: Path) -> None:
    free = cores(tmp_path)
    (tmp_path / "cpu.max").write_text("100000 100000")
    assert cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000")
    assert cores(tmp_path) == free


def test_a_free_port_is_none_that_the_kernel_gives_away(tmp_path: Path) -> None:
    """gloo's listeners, and connections of any program, would take it before rank 0 does."""
    limits = tmp_path / "ip_local_port_range"
    for first, expected in ((32768, range(10_000, 30_000)), (12_000, range(10_000, 12_000)), (1024, range(1, 65_536))):
        limits.write_text(f"{first}\t60999\n")
        found = {free_port(limits) for _ in range(20)}
        assert found <= set(expected)
        assert len(found) > 1
        with socket.socket() as own:
            own.bind(("127.0.0.1", free_port(limits)))

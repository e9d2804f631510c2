"""Tests that a process finds its rank in a job of Slurm, SageMaker, Vertex AI, and Ray, under each
launcher.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from conftest import refused

from segtrain.parallel import cluster
from segtrain.parallel.cluster import Cluster, RankStarter
from segtrain.platforms import RANK_SOURCES
from segtrain.platforms.ray.hosts import RAY, WORKER
from segtrain.platforms.slurm import hosts as slurm_hosts
from segtrain.platforms.slurm.hosts import SLURM

discover = partial(cluster.discover, RANK_SOURCES)
MPI = RankStarter("mpi", ranks_in_order=False)
OMPI = {
    f"OMPI_COMM_WORLD_{key}": value
    for key, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), ["9", "16", "1", "8"])
}
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "h",
}


STEP = {
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NODELIST": "gpu[01-02],big7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_JOB_ID": "41",
}


def test_srun_with_pmi_is_slurm_and_a_launcher_inside_a_step_is_not():
    mpich = {"PMI_RANK": "3", "PMI_SIZE": "4", "MASTER_ADDR": "h"}
    assert discover({**STEP, "MASTER_ADDR": "h", "PMI_RANK": "4", "PMI_SIZE": "5"}).source == SLURM
    assert discover({**STEP, **mpich}).source.name == "mpich"
    assert discover({**STEP, **TORCHRUN}).source.name == "torchrun"
    assert discover({**STEP, **TORCHRUN, WORKER: "1"}).source == RAY


@pytest.mark.parametrize("launcher", [{}, TORCHRUN])
def test_slurm_says_why_gpus_are_not_known_whatever_started_the_ranks(launcher):
    task = {**STEP, "MASTER_ADDR": "h", **launcher}
    assert "--gres" in discover(task).gpu_caveat
    assert "gpu-bind" in discover({**task, "SLURM_STEP_GPUS": "0"}).gpu_caveat
    assert discover({**task, "ROCR_VISIBLE_DEVICES": "0"}).gpu_caveat == ""
    assert discover({**launcher, "SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n1"}).gpu_caveat == ""


def test_neighboring_jobs_steps_and_restarts_have_ports_of_their_own():
    ports = {
        slurm_hosts.port(
            {
                "SLURM_JOB_ID": str(job),
                "SLURM_STEP_ID": str(step),
                "SLURM_RESTART_COUNT": str(restart),
            }
        )
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
    [
        ("NodeName=n1 Arch=x86_64 NodeAddr=10.9.8.7 NodeHostName=h Version=22", "10.9.8.7"),
        ("Node n1 not found", "n1"),
    ],
)
def test_slurm_knows_the_address_of_a_name_that_does_not_resolve(
    tmp_path, monkeypatch, shown, expected
):
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


def test_ranks_of_one_host_need_no_name():
    environ = {
        **STEP,
        "SLURM_STEP_NODELIST": "n1.invalid",
        "SLURM_STEP_TASKS_PER_NODE": "5",
        "SLURM_NODEID": "0",
    }
    assert discover({**environ, "SLURM_LOCALID": "4"}).master_addr == "127.0.0.1"


def test_a_batch_script_without_srun_is_one_process():
    assert discover({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}) == Cluster()
    assert discover({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}) == Cluster()


def test_salloc_without_srun_does_not_train_on_the_login_node(monkeypatch):
    def lone(host: str, **more: str) -> tuple[str, str]:
        monkeypatch.setattr("socket.gethostname", lambda: host)
        place = discover(
            {
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_NODELIST": "n[1-2]",
                "SLURM_JOB_NUM_NODES": "2",
                **more,
            }
        )
        assert place.alone
        return place.lone_caveat, place.lone_refusal.code if place.lone_refusal else ""

    assert lone("login") == ("", "outside-slurm-job")
    assert lone("login", SLURM_STEP_NUM_TASKS="1") == ("", "")
    for caveat, refusal in (lone("n2.cluster.local"), lone("other-name", SLURMD_NODENAME="n1")):
        assert "one alone" in caveat
        assert not refusal
    assert lone("n1", SLURM_JOB_NUM_NODES="1") == ("", "")


@pytest.fixture
def sagemaker(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of a host of SageMaker whose resourceconfig.json is the parameter of the
    test.
    """
    path = tmp_path / "input/config/resourceconfig.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(request.param))
    return {"SAGEMAKER_BASE_DIR": str(tmp_path)}


GROUP = {"instance_group_name": "gpus", "hosts": ["algo-3", "algo-2"]}
TWO = {
    "current_host": "algo-2",
    "hosts": ["algo-2", "algo-3"],
    "instance_groups": [GROUP],
    "network_interface_name": "eth0",
    "current_instance_type": "ml.p4",
}
FACTS = {"machine": "ml.p4", "interface": "eth0"}


@pytest.mark.parametrize("sagemaker", [TWO], indirect=True)
def test_sagemaker_sorts_its_hosts_and_knows_the_machine_under_each_launcher(sagemaker):
    assert discover(sagemaker) == Cluster(
        0, 2, 0, 1, "algo-2", 29500, RankStarter("sagemaker"), **FACTS
    )
    # AWS's toolkit gives rank 0 to the first host that is listed.
    assert discover({**sagemaker, **OMPI}) == Cluster(9, 16, 1, 8, "algo-3", 29500, MPI, **FACTS)
    assert discover({**sagemaker, **TORCHRUN}) == Cluster(
        1, 2, 1, 2, "h", 29500, RankStarter("torchrun"), **FACTS
    )
    with refused("master-addr-missing"):
        discover(OMPI)


@pytest.mark.parametrize(
    "sagemaker", [{**TWO, "hosts": ["algo-2"], "instance_groups": []}], indirect=True
)
def test_one_host_of_sagemaker_needs_no_interface(sagemaker):
    assert discover(sagemaker).interface == ""

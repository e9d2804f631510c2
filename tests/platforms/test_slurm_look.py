"""Tests of the checks of Slurm jobs on a real Slurm: what it says of itself, what its nodes see,
and what it does.

Skipped, with the reason, where Slurm cannot be started. The table of mistakes is that of the
recorded answers.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_slurm import Cluster, NoSlurm, slurm_cluster
from golden_findings import loud
from slurm_mistakes import BATCH, CPUS, MISTAKES, PLAIN, SOUND, has

from launch.core.findings import Finding
from launch.core.job import load_job
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.preflight import folders as places
from launch.platforms.slurm.preflight.online import of_cluster, online, rules
from launch.platforms.slurm.preflight.state import read
from launch.platforms.slurm.preflight.submit_host import SubmitHost, completed, flags
from launch.platforms.slurm.preflight.training import offline
from launch.platforms.slurm.tools import ask, jobs

pytestmark = pytest.mark.usefixtures("enough_disk")
PATIENCE_S = 300.0
BIG = "CPUs=16 CoresPerSocket=16 RealMemory=64000 Gres=gpu:h100:4 Feature=h100"
HARDWARE = {
    "n1": f"{BIG},nvme",
    "n2": f"{BIG},nvme",
    "n3": "CPUs=8 CoresPerSocket=8 RealMemory=32000 Gres=gpu:a10g:2 Feature=a10g",
    "n4": "CPUs=8 CoresPerSocket=8 RealMemory=32000",
    "n5": "CPUs=8 CoresPerSocket=8 RealMemory=32000",
    "n6": BIG,
}
# The cluster of tests/recorded/slurm/plain.txt.
FURTHER = """SlurmdParameters=config_overrides
SelectTypeParameters=CR_Core_Memory
KillWait=30
PartitionName=gpu Nodes=n[1-2] Default=YES MaxTime=2-00:00:00 DefaultTime=60 PriorityTier=1 GraceTime=120 DefMemPerCPU=4000
PartitionName=urgent Nodes=n[1-2] MaxTime=60 MaxNodes=1 PriorityTier=10 PreemptMode=OFF DefMemPerCPU=4000
PartitionName=small Nodes=n3 MaxTime=1-00:00:00 DefMemPerCPU=4000
PartitionName=cpu Nodes=n[4-5] MaxTime=1-00:00:00 DefMemPerCPU=2000 MaxCPUsPerNode=6
PartitionName=half Nodes=n[2,6] MaxTime=1-00:00:00 PriorityTier=10 DefMemPerCPU=4000
PartitionName=closed Nodes=n[1-2] MaxTime=60 PriorityTier=10 State=DOWN
PartitionName=booked Nodes=n[1-2] MaxTime=60 PriorityTier=10 ReqResv=YES DefMemPerCPU=4000
PartitionName=vision Nodes=n[4-5] MaxTime=60 AllowAccounts=vision DefMemPerCPU=2000
PartitionName=staff Nodes=n[4-5] MaxTime=60 AllowGroups=games DefMemPerCPU=2000
PartitionName=wide Nodes=n[1-2] MaxTime=60 MinNodes=2 PriorityTier=10 DefMemPerCPU=4000
PartitionName=flat Nodes=n[1-2] MaxTime=1-00:00:00 PriorityTier=10
PartitionName=tight Nodes=n[4-5] MaxTime=1-00:00:00 DefMemPerCPU=500
PartitionName=brief Nodes=n[1-2] MaxTime=1-00:00:00 PreemptMode=CANCEL DefMemPerCPU=4000
"""
GRES = """NodeName=n1,n2,n6 Name=gpu Type=h100 File={at}/dev/nvidia[0-3] Flags=nvidia_gpu_env
NodeName=n3 Name=gpu Type=a10g File={at}/dev/nvidia[0-1] Flags=nvidia_gpu_env
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "dev").mkdir()
    try:
        for number in range(4):
            os.mknod(folder / f"dev/nvidia{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        with slurm_cluster(
            folder, tuple(HARDWARE), FURTHER, GRES.format(at=folder), HARDWARE
        ) as found:
            found.run("scontrol", "update", "nodename=n6", "state=drain", "reason=bad memory")
            found.run(
                "scontrol",
                "create",
                "reservation",
                "reservationname=course",
                "starttime=now",
                "duration=600",
                "nodes=n4",
                "users=daemon",
            )
            yield found
    except (NoSlurm, PermissionError) as why:
        pytest.skip(str(why))


@pytest.fixture(autouse=True)
def _client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the launcher takes from the environment."""
    found: Cluster = request.getfixturevalue("cluster")
    for key in [key for key in os.environ if key.startswith(("SLURM", "SBATCH"))]:
        monkeypatch.delenv(key)
    for key in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(key, found.environment[key])


def described(flags_: dict[str, Any], settings: tuple[str, ...] = (), **more: Any) -> SlurmJob:
    return load_job(SlurmJob, None, {**PLAIN, **flags_, **more}, [BATCH, *settings])


def test_every_mistake_is_named_by_what_slurm_says():
    """The same table as for the recorded answers, with one look at the living cluster."""
    here, found, named = SubmitHost(Path("/workspace"), {}, {}), read(ask), 0
    for name, (of, flags_, settings, expected) in MISTAKES.items():
        if of != "plain" or name == "two jobs with one run folder":
            continue
        job = completed(described(flags_, settings), here)
        said = [*offline(job), *flags(job), *rules(job, found, here)]
        has([*said, *places.folders(job, found, probed=False)], expected)
        named += 1
    assert named >= 25


@pytest.mark.parametrize(
    "name",
    [
        "two nodes with four GPUs",
        "CPUs of the other node",
        "either of two partitions",
        "an array of seeds",
    ],
)
def test_a_sound_job_has_no_finding(name, tmp_path):
    """With the look from the nodes, and Slurm's own test."""
    _, flags_, settings = SOUND[name]
    job = described(flags_, settings, output=str(tmp_path / "runs"))
    found = of_cluster(job, read(ask), SubmitHost(limits={}), probe=True)
    assert loud(found) == []
    assert "nodes-not-asked" not in {finding.code for finding in found}
    assert not list(tmp_path.iterdir())  # nothing is left, and nothing is made


def probed(job: SlurmJob) -> list[Finding]:
    return of_cluster(job, read(ask), SubmitHost(limits={}), probe=True)


def test_a_node_that_sees_nothing(cluster, tmp_path, monkeypatch):
    """Folders that only this host has, and a node without scontrol: another mount namespace."""
    apart = cluster.folder / "apart"
    for name in ("data", "here", "bin"):
        (apart / name).mkdir(parents=True, exist_ok=True)
    (apart / "bin/python").symlink_to("/bin/true")
    starts = _starts(cluster, "n3")
    _wait_for_node(cluster, "n3", starts)  # a job that is completing would hold a node that is lost
    cluster.lose("n3")
    which = cluster.run("bash", "-c", "command -v scontrol").strip()
    hide = f"mount -t tmpfs none {apart} && mount --bind /dev/null {which} && exec slurmd -D -N n3"
    cluster.start("n3", "unshare", "--mount", "bash", "-c", hide)
    try:
        _wait_for_node(cluster, "n3", starts + 1)
        monkeypatch.chdir(apart / "here")
        job = described(
            {"partition": "small", "nodes": 1, "gpus": "2"},
            data=str(apart / "data"),
            config="configs/camvid_cpu.yaml",
            output=str(apart / "runs"),
            python=str(apart / "bin/python"),
            interface="ib7",
            efa=True,
        )
        found = probed(job)
        for code, text in (
            ("error output-not-shared", "n3"),
            ("error folder-not-there", str(apart / "here")),
            ("error data-not-visible", "n3"),
            ("error python-missing", str(apart / "bin/python")),
            ("warning scontrol-missing", "n3"),
            ("error interface-missing", "ib7"),
            ("error efa-missing", "n3"),
        ):
            has(found, code, text)
        assert [path.name for path in apart.iterdir() if path.name.startswith(".")] == []
    finally:
        _wait_for_node(cluster, "n3", starts + 1)
        cluster.lose("n3")
        cluster.slurmd("n3")
        _wait_for_node(cluster, "n3", starts + 2)


def _starts(cluster: Cluster, node: str) -> int:
    """How often the slurmd of a node has started: its state alone does not say that it is back."""
    log = (cluster.folder / f"log/slurmd-{node}.log").read_text(encoding="utf-8", errors="replace")
    return log.count("slurmd started on")


def _wait_for_node(cluster: Cluster, node: str, starts: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while _starts(cluster, node) < starts or cluster.states().get(node) != "idle":
        if cluster.daemons[node].poll() is not None:
            pytest.skip("no mount namespace can be made here")
        assert time.monotonic() < end, cluster.states()
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("ends", "kind", "expected", "text"),
    [
        (3, "", "error after-never", "failed"),
        (0, "afternotok:", "error after-never", "completed"),
        (None, "", "error after-unknown", "at once"),
    ],
)
def test_after_a_job_that_cannot_be_waited_for(ends, kind, expected, text, tmp_path):
    number = "99999"
    if ends is not None:
        words = ("--partition=tight", "--exclude=n4", "--output=/dev/null", f"--wrap=exit {ends}")
        number = ask("sbatch", "--parsable", *words).strip()
        _wait_for(number, ("FAILED", "COMPLETED"))
    job = described({**BARE, "after": f"{kind}{number}"}, output=str(tmp_path))
    has(of_cluster(job, read(ask), SubmitHost(limits={}), probe=False), expected, text)


BARE = {**CPUS, "partition": "tight", "memory": "8G", "exclude": "n4"}
OF_THE_NODE: dict[str, tuple[dict[str, Any], str, str]] = {
    "no such Python": (
        {"python": "/nowhere/bin/python"},
        "error python-missing",
        "/nowhere/bin/python",
    ),
    "Python without torch": ({"python": "/usr/bin/python3"}, "error python-import", "torch"),
    "setup that ends the shell": ({"setup": ["exit 0"]}, "error setup-ends", "n5"),
    "setup with an open quote": (
        {"setup": ["echo 'unfinished"]},
        "error setup-shell",
        "unfinished",
    ),
    "what only Slurm knows": (
        {"sbatch": ["--licenses=matlab:1"]},
        "error sbatch-refuses",
        "license",
    ),
}


@pytest.mark.parametrize("name", OF_THE_NODE)
def test_a_mistake_that_a_node_or_slurm_tells(name, tmp_path):
    flags_, expected, text = OF_THE_NODE[name]
    job = described({**BARE, **flags_}, output=str(tmp_path))
    has(
        [*online(job), *probed(job)] if "shell" in name or "quote" in name else probed(job),
        expected,
        text,
    )


def _wait_for(number: str, states: tuple[str, ...]) -> dict[str, str]:
    end = time.monotonic() + PATIENCE_S
    while True:
        found = jobs(number)[0]
        if found["JobState"] in states:
            return found
        assert time.monotonic() < end, found
        time.sleep(0.2)

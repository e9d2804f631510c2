"""Tests that each mistake in a Slurm job gets its own finding with a fix, and that a sound job gets
none.

The answers in tests/recorded/slurm are those of a real Slurm 22.05;
tests/platforms/test_slurm_look.py asks a living one.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden_findings import check_findings, loud
from slurm_mistakes import BATCH, PLAIN, ROOT, SOUND, cluster, has, look, recorded

from launch.core.job import load_job
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.preflight import folders as places
from launch.platforms.slurm.preflight import online, probe
from launch.platforms.slurm.preflight.online import rules
from launch.platforms.slurm.preflight.probe import answers
from launch.platforms.slurm.preflight.state import read, seconds
from launch.platforms.slurm.preflight.submit_host import SubmitHost, completed, variables
from launch.platforms.slurm.prepare import write
from segtrain.errors import SegtrainError

pytest.importorskip("yaml")
pytestmark = pytest.mark.usefixtures("enough_disk")


# what is wrong: variables, limits, flags
OF_THE_HOST: dict[str, tuple[dict[str, str], dict[str, Any], dict[str, Any]]] = {
    "time limit in a variable": ({"SBATCH_TIMELIMIT": "10"}, {}, {}),
    "requeueing on in a variable": (
        {"SBATCH_REQUEUE": "1"},
        {},
        {"requeue": False},
    ),
    "sbatch that waits, by a variable": ({"SBATCH_WAIT": "1"}, {}, {}),
    "another partition in a variable": (
        {"SBATCH_PARTITION": "cpu"},
        {},
        {},
    ),
    "partition that only a variable names": (
        {"SBATCH_PARTITION": "closed"},
        {},
        {"partition": None, "max_run": "1h"},
    ),
    "variables left behind": ({"SBATCH_EXPORT": "NONE"}, {}, {}),
    "from inside a job": ({"SLURM_JOB_ID": "12"}, {}, {}),
    "CPU time of a login node": ({}, {"CPU": (3600, 3600)}, {}),
    "memory of a login node": ({}, {"AS": (2**32, 2**32)}, {}),
    "open files of a login node": ({}, {"NOFILE": (1024, 1024)}, {}),
    "processes of a login node": ({}, {"NPROC": (100, 100)}, {}),
    "size of a file": ({}, {"FSIZE": (2**30, 2**30)}, {}),
    "locked memory with EFA": (
        {},
        {"MEMLOCK": (2**23, 2**23)},
        {"efa": True},
    ),
}


def test_findings_of_what_comes_along():
    jobs = {
        name: look("plain", flags_, here=SubmitHost(Path("/workspace"), variables, limits))
        for name, (variables, limits, flags_) in OF_THE_HOST.items()
    }
    check_findings("findings/slurm-host", jobs, look("plain", {}))


@pytest.mark.parametrize("key", ["partition", "account", "qos", "reservation", "constraint"])
def test_a_variable_of_sbatch_stands_for_a_flag_that_is_not_given(key):
    here = SubmitHost(Path("/workspace"), {f"SBATCH_{key.upper()}": "x"}, {})
    job = load_job(SlurmJob, None, {**PLAIN, "partition": ""}, [BATCH])
    assert getattr(completed(job, here), key) == "x"
    (finding,) = variables(replace(job, **{key: "y"}), here)
    assert finding.code == "sbatch-variable"


def test_variables_of_sbatch_do_not_matter_to_salloc():
    variables = {"SBATCH_TIMELIMIT": "10", "SBATCH_PARTITION": "nope", "SALLOC_PARTITION": "closed"}
    here = SubmitHost(Path("/workspace"), variables, {}, command="salloc")
    found = look("plain", {"partition": None}, here=here)
    assert "sbatch-variable" not in {finding.code for finding in found}
    has(found, "error partition-down", "closed")


def test_a_limit_that_is_not_carried_is_no_mistake():
    here = SubmitHost(Path("/workspace"), {}, {"NOFILE": (1024, 1024), "CPU": (3600, 3600)})
    codes = {finding.code for finding in look("harsh", {}, here=here)}
    assert "limit-files" not in codes  # PropagateResourceLimitsExcept=NOFILE
    assert "limit-cpu" in codes


def test_room_for_the_checkpoints(tmp_path):
    job = load_job(SlurmJob, None, {**PLAIN, "output": str(tmp_path)}, [BATCH])
    kept = job.runs()[0] / "checkpoints"
    kept.mkdir(parents=True)
    with open(kept / "step-00000010.pt", "wb") as file:
        file.truncate(2**43)  # a hole, larger than any disk
    has(list(places.folders(job, cluster("plain"), probed=False)), "error room", str(tmp_path))
    for number in (20, 30, 40):  # the room that the run has already is not needed once more
        (kept / f"step-000000{number}.pt").hardlink_to(kept / "step-00000010.pt")
    codes = {finding.code for finding in places.folders(job, cluster("plain"), probed=False)}
    assert "room" not in codes


# what nodes answer, as n1 has been asked, and the finding
ANSWERS = {
    "token": "yes",
    "folder": "yes",
    "data": "yes",
    "scontrol": "yes",
    "interface": "yes",
    "efa": "efa_0",
    "gpus": "1",
    "python": "/usr/bin/python3",
    "import": "segtrain 1.0",
    "end": "yes",
}
WRONG_ANSWERS = {
    "token": ("", "error output-not-shared", "n2"),
    "folder": ("", "error folder-not-there", "/workspace"),
    "data": ("", "error data-not-visible", "n2"),
    "scontrol": ("", "warning scontrol-missing", "n2"),
    "interface": ("", "error interface-missing", "ib0"),
    "efa": ("", "error efa-missing", "n2"),
    "gpus": ("0", "error gpus-invisible", "n2"),
    "python": ("", "error python-missing", "n2"),
    "import": ("ModuleNotFoundError: No module named 'yaml'", "error python-import", "'yaml'"),
}


def test_another_version_on_a_node_has_its_finding():
    job = load_job(SlurmJob, None, PLAIN, [BATCH])
    (found,) = answers(
        job, {"n1": ANSWERS, "n2": {**ANSWERS, "import": "segtrain 0.9"}}, Path("/workspace"), "1.0"
    )
    has([found], "warning python-version", "n2 has segtrain 0.9")


def test_data_of_the_settings_is_looked_for(monkeypatch):
    settings = [BATCH, "data.root=nowhere", "data.layout=camvid"]
    job = load_job(SlurmJob, None, PLAIN, settings)
    # nodes look from their root folder
    assert f"-e {Path('nowhere').absolute()} ]" in probe.text(job, ROOT, ROOT / "token")

    def away(*_: object) -> None:
        raise SegtrainError("no cluster")

    monkeypatch.setattr(online, "read", away)
    has(online.online(job), "warning data-not-there", "nowhere")


@pytest.mark.parametrize("key", WRONG_ANSWERS)
def test_an_answer_of_a_node_has_its_finding(key):
    wrong, expected, text = WRONG_ANSWERS[key]
    job = load_job(SlurmJob, None, {**PLAIN, "interface": "ib0", "efa": True}, [BATCH])
    told = {"n1": ANSWERS, "n2": {**ANSWERS, key: wrong}}
    found = list(answers(job, told, Path("/workspace"), "1.0"))
    has(found, expected, text)
    assert len(found) == 1
    assert "n1" not in found[0].message
    assert not list(answers(job, {"n1": ANSWERS}, Path("/workspace"), "1.0"))
    if key == "data":  # lines of setup may bring it
        (found_,) = answers(replace(job, setup=("cp",)), told, Path("/workspace"), "1.0")
        assert found_.level == "warning"


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_job_has_no_finding(name):
    of, flags_, settings = SOUND[name]
    assert loud(look(of, flags_, settings)) == []


REFUSED = "allocation failure: Requested node configuration is not available"


# what sbatch says, fields of the first node, flags, and level and fix or message of the finding
OF_SBATCH: dict[str, tuple[str, dict[str, str], dict[str, Any], str, str]] = {
    "what no node has": (
        REFUSED,
        {},
        {},
        "error",
        "2 nodes of at most 16 cores, 64000 MB, and gpu:h100:4",
    ),
    "a node that is away": (
        REFUSED,
        {"State": "IDLE+DRAIN", "Reason": "bad memory"},
        {},
        "warning",
        "n1 is drain+idle bad memory",
    ),
    "a reservation of others": (REFUSED, {}, {"partition": "cpu"}, "warning", "course holds n4"),
    "one's own reservation": (
        REFUSED,
        {},
        {"partition": "cpu", "reservation": "course"},
        "error",
        "no GPU",
    ),
    "nodes that are busy": (
        "allocation failure: Requested nodes are busy",
        {},
        {},
        "warning",
        "busy",
    ),
    "no such partition": (
        "Invalid partition name specified",
        {},
        {"partition": "gpus"},
        "error",
        "gpu, urgent, small",
    ),
    "no such feature": ("Invalid feature specification", {"State": "DOWN"}, {}, "error", "feature"),
}


@pytest.mark.parametrize("name", OF_SBATCH)
def test_what_sbatch_refuses_is_passed_on(name, monkeypatch):
    words, node, flags_, level, text = OF_SBATCH[name]
    found = cluster("plain")
    first, *others = found.nodes
    assert first.name == "n1"
    found = replace(found, nodes=(replace(first, fields={**first.fields, **node}), *others))
    said = subprocess.CompletedProcess([], 1, "", words)
    monkeypatch.setattr(online.subprocess, "run", lambda *_, **__: said)
    (finding,) = online._tested(load_job(SlurmJob, None, {**PLAIN, **flags_}, [BATCH]), found)
    assert (finding.level, finding.code) == (level, "sbatch-refuses")
    assert words in finding.message
    assert text in f"{finding.message} {finding.cure}"


@pytest.mark.parametrize(("tasks", "expected"), [(3, False), (4, True)])
def test_the_largest_array(tasks, expected):
    """The largest number of a task is one less than MaxArraySize, and the first one is 0."""
    found = replace(cluster("plain"), config={**cluster("plain").config, "MaxArraySize": "3"})
    job = load_job(SlurmJob, None, {**PLAIN, "seeds": ",".join(map(str, range(tasks)))}, [BATCH])
    codes = {finding.code for finding in rules(job, found, SubmitHost(Path("/workspace"), {}, {}))}
    assert ("array-size" in codes) == expected


@pytest.mark.parametrize(
    ("of_account", "of_qos", "of_partition", "flags_", "expected"),
    [
        ("01:00:00", "2-00:00:00", "", "", ""),  # the limit of the QOS counts
        ("01:00:00", "", "", "", "account='vision'"),
        ("2-00:00:00", "01:00:00", "", "", "qos='short'"),
        ("01:00:00", "01:00:00", "2-00:00:00", "", ""),
        ("", "2-00:00:00", "01:00:00", "", "qos='long' of the partition"),
        ("", "2-00:00:00", "01:00:00", "OverPartQOS", ""),
    ],
)
def test_the_limit_that_slurm_takes(of_account, of_qos, of_partition, flags_, expected):
    found = cluster("accounts")
    assert found.accounts
    rows = tuple(
        replace(one, limits={**one.limits, "MaxWall": of_account}) if one.name == "vision" else one
        for one in found.accounts
    )
    nothing = {"MaxTRES": "", "MaxTRESPU": "", "GrpTRES": ""}
    table = {
        **(found.qos or {}),
        "short": {**nothing, "MaxWall": of_qos, "Flags": flags_},
        "long": {**nothing, "MaxWall": of_partition, "Flags": ""},
    }
    parts = tuple(replace(one, fields={**one.fields, "QoS": "long"}) for one in found.partitions)
    job = load_job(SlurmJob, None, {**PLAIN, "account": "vision", "qos": "short"}, [BATCH])
    said = rules(
        job, replace(found, accounts=rows, qos=table, partitions=parts), SubmitHost(ROOT, {}, {})
    )
    messages = [finding.message for finding in said if finding.code == "time-over-limit"]
    assert len(messages) == bool(expected), messages
    assert not expected or f"{expected} allows 01:00:00" in messages[0]


def test_memory_that_comes_with_a_gpu():
    found = cluster("plain")
    parts = tuple(
        replace(one, fields={**one.fields, "JobDefaults": "DefCpuPerGPU=4,DefMemPerGPU=8000"})
        for one in found.partitions
    )
    job = load_job(SlurmJob, None, {**PLAIN, "partition": "flat", "gpus": "h100:1"}, [BATCH])
    here = SubmitHost(Path("/workspace"), {}, {})
    assert "memory-whole-node" in {finding.code for finding in rules(job, found, here)}
    assert "memory-whole-node" not in {
        finding.code for finding in rules(job, replace(found, partitions=parts), here)
    }


def test_what_slurm_refuses_to_say_is_a_note():
    ask = recorded("plain")

    def closed(*command: str) -> str:
        if command[0] == "squeue":
            raise SegtrainError("squeue: error: Access/permission denied")
        return ask(*command)

    found = read(closed, "root")
    job = load_job(SlurmJob, None, PLAIN, [BATCH])
    said = rules(job, found, SubmitHost(Path("/workspace"), {}, {}))
    assert [finding.code for finding in said] == ["not-asked"]
    assert "your jobs" in said[0].message
    assert "denied" in said[0].message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2-00:00:00", 172800),
        ("01:00:00", 3600),
        ("30", 1800),
        ("10:30", 630),
        ("1-12", 129600),
        ("UNLIMITED", None),
    ],
)
def test_times_of_slurm(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:h100:4(S:0-1),nvme:2", {"h100": 4}),
        ("gpu:2", {"": 2}),
        ("gpu:a100:4(IDX:0,1),gpu:a100_3g.20gb:2", {"a100": 4, "a100_3g.20gb": 2}),
        ("(null)", {}),
    ],
)
def test_gpus_of_a_node(text, expected):
    node = cluster("plain").nodes[0]
    assert replace(node, fields={**node.fields, "Gres": text}).gpus == expected


@pytest.mark.parametrize(
    ("state", "away", "awake"),
    [
        ("IDLE", False, True),
        ("MIXED", False, True),
        ("ALLOCATED", False, False),
        ("DOWN*", True, False),
        ("IDLE+DRAIN", True, False),
        ("IDLE*", True, False),
        ("IDLE+CLOUD+POWERED_DOWN", False, False),
        ("IDLE+CLOUD", False, True),
    ],
)
def test_states_of_a_node(state, away, awake):
    node = cluster("plain").nodes[0]
    node = replace(node, fields={**node.fields, "State": state})
    assert (node.away, node.awake) == (away, awake)


def test_no_fewer_nodes_are_asked_than_the_partition_gives(tmp_path, monkeypatch):
    commands: list[list[str]] = []

    def run(words: list[str], token: str) -> tuple[dict[str, Any], list[Any]]:
        assert (tmp_path / token).read_text() == token
        commands.append(words)
        return {}, []

    monkeypatch.setattr(probe, "_run", run)
    keys = {**PLAIN, "output": str(tmp_path), "partition": "wide"}  # MinNodes=2
    few, enough = (load_job(SlurmJob, None, {**keys, "nodes": n}, [BATCH]) for n in (1, 2))
    _, (note,) = probe.ask_nodes(few, cluster("plain"), ROOT)
    assert note.code == "nodes-not-asked"
    assert commands == []
    probe.ask_nodes(enough, cluster("plain"), ROOT)
    assert commands[0][1] == "--nodes=2-2"
    assert "--partition=wide" in commands[0]
    assert list(tmp_path.iterdir()) == []


def test_two_jobs_share_a_run_folder_whatever_its_name(tmp_path):
    def busy(waiting: SlurmJob, output: str = "my runs", **flags_: Any) -> list[str]:
        script = f"{write(waiting)} optim.lr=0.1" if waiting.tasks else str(write(waiting))
        found = replace(
            cluster("plain"),
            jobs=(
                ("7", "RUNNING", "(null)", script),
                ("8", "PENDING", "afterany:7(unfulfilled)", script),
            ),
        )
        job = load_job(
            SlurmJob, None, {**PLAIN, "output": str(tmp_path / output), **flags_}, [BATCH]
        )
        return [
            one.message
            for one in places.folders(job, found, probed=False)
            if one.code == "run-busy"
        ]

    def other(**flags_: Any) -> SlurmJob:
        return load_job(
            SlurmJob, None, {**PLAIN, "output": str(tmp_path / "my runs"), **flags_}, [BATCH]
        )

    one, two = busy(other(name="a"), name="a")
    assert f"job 7 (running) has the run folder {tmp_path}/my runs/a too" in one
    assert "job 8 (pending)" in two
    assert (
        busy(other(name="a"), name="b") == busy(other(name="a"), name="a", after="afterany:8") == []
    )
    assert busy(other(name="a"), name="a", after="afterany:7") == [two]
    # it has begun, and has not ended
    assert busy(other(name="a"), name="a", after="after:8") == [one, two]
    (tmp_path / "link").symlink_to("my runs")
    assert (
        len(busy(other(name="a"), "link", name="a"))
        == len(busy(other(name="a"), "x/../my runs", name="a"))
        == 2
    )
    tasks = other(name="a", array=["train.seed=1", "train.seed=2"])
    assert (
        len(busy(tasks, name="a", array=["train.seed=2", "train.seed=3"]))
        == len(busy(tasks, name="a-seed-1"))
        == 2
    )
    assert busy(tasks, name="a", array=["train.seed=3"]) == []

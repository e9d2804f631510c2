"""Tests of following and stopping Slurm jobs: by recorded answers, and arrays on a real Slurm of
two nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from cluster_slurm import Cluster
from slurm_jobs import private_slurm
from waiting import until

from launch.platforms.slurm import follow as following
from launch.platforms.slurm.tools import fields


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with private_slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found


def array(cluster: Cluster, script: str, tasks: str = "0-2%1") -> str:
    """The number of an array whose tasks fill the cluster."""
    words = (
        "--parsable",
        "-N2",
        "--exclusive",
        f"--array={tasks}",
        f"--output={cluster.folder}/%A_%a.log",
    )
    return cluster.run("sbatch", *words, "--wrap", script).strip()


def test_an_array_that_waited_in_the_queue_is_done_when_its_tasks_are(cluster):
    said: list[str] = []
    number = array(cluster, "printf 'task %s' $SLURM_ARRAY_TASK_ID")
    assert following.follow(number, said.append, poll_s=0.1) == 0
    assert [line for line in said if "pending" in line]
    # a last line without its end is shown too
    assert {f"task {task}" for task in range(3)} <= set(said)


def test_stopping_an_array_lets_its_running_task_save_and_takes_the_others_out(cluster):
    number = array(
        cluster, "trap 'exit 75' USR1; trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    )
    log = cluster.folder / f"{number}_0.log"
    until(lambda: log.exists() and log.read_text())
    said: list[str] = []
    assert following.stop(number, said.append, poll_s=0.1) == 0
    assert f"{number}_0 saves its state" in said
    assert cluster.job(f"{number}_0")["ExitCode"] == "75:0"
    assert not list(cluster.folder.glob(f"{number}_[12].log"))
    assert following.follow(number, said.append, poll_s=0.1) == 75


def test_stopping_one_task_of_an_array_leaves_the_others_in_the_queue(cluster):
    number = array(cluster, "sleep 600")
    until(lambda: cluster.job(f"{number}_0").get("JobState") == "RUNNING")
    try:
        assert following.stop(f"{number}_2", lambda text: None, poll_s=0.1) == 0
        assert cluster.job(f"{number}_1")["JobState"] == "PENDING"
        assert cluster.job(f"{number}_2").get("JobState") in (None, "CANCELLED")
    finally:
        cluster.run("scancel", number)


def test_a_job_that_fails_while_it_is_stopped_is_not_called_stopped(cluster):
    script = "trap 'exit 3' USR1; echo ready; while :; do sleep 0.1; done"
    log = cluster.folder / "failing.log"
    number = cluster.run("sbatch", "--parsable", f"--output={log}", "--wrap", script).strip()
    until(lambda: log.exists() and log.read_text())
    said: list[str] = []
    assert following.stop(number, said.append, poll_s=0.1) == 1
    assert said[-1] == f"{number} failed with exit code 3"


def answers(monkeypatch: pytest.MonkeyPatch, rows: Sequence[Sequence[str]]) -> None:
    """What Slurm says at each look; the last answer is repeated."""
    left = [[fields(row) for row in look] for look in rows]
    monkeypatch.setattr(following, "jobs", lambda number: left.pop(0) if len(left) > 1 else left[0])


PENDING = "JobId=5 ArrayJobId=5 ArrayTaskId=0-2 JobState=PENDING Reason=Priority ExitCode=0:0"


def task(number: int, state: str, code: str = "0:0") -> str:
    return f"JobId={6 + number} ArrayJobId=5 ArrayTaskId={number} JobState={state} ExitCode={code} StdOut=/none"


CANCELLED = "JobId=5 ArrayJobId=5 ArrayTaskId=4294967294 JobState=CANCELLED ExitCode=0:0"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([["JobId=5 JobState=COMPLETED ExitCode=0:0"], []], 0),
        ([[PENDING], []], 2),
        ([[PENDING, task(0, "RUNNING")], [task(0, "COMPLETED")]], 0),
        ([[task(0, "RUNNING"), task(1, "RUNNING")], [task(0, "COMPLETED")]], 2),
        ([[task(0, "FAILED", "1:0"), task(1, "RUNNING")], [task(0, "FAILED", "1:0")]], 1),
        ([[PENDING, task(0, "COMPLETED")], [CANCELLED, task(0, "COMPLETED")]], 75),
        ([["JobId=5 JobState=RUNNING"], ["JobId=5 JobState=PREEMPTED ExitCode=0:15"]], 1),
        ([["JobId=5 JobState=RUNNING"], ["JobId=5 JobState=PREEMPTED ExitCode=75:0"]], 75),
    ],
)
def test_the_exit_code_of_a_follower(rows, expected, monkeypatch):
    answers(monkeypatch, rows)
    assert following.follow("5", lambda text: None, poll_s=0) == expected


def test_a_job_that_leaves_its_state_before_it_is_told_is_told_again(monkeypatch):
    """It starts between the look and scancel, which then refuses."""
    looks = ["PENDING", "RUNNING", "RUNNING", "COMPLETED"]
    monkeypatch.setattr(
        following, "jobs", lambda number: [{"JobId": "5", "JobState": looks[0], "ExitCode": "75:0"}]
    )
    asked: list[str] = []

    def ask(*command: str) -> str:
        asked.append(command[-1] if command[0] == "scontrol" else command[1])
        if looks.pop(0) == "PENDING":
            raise following.SegtrainError("Invalid job id specified", code="slurm-refused")
        return ""

    monkeypatch.setattr(following, "ask", ask)
    assert following.stop("5", lambda text: None, poll_s=0) == 0
    assert asked == ["--state=PENDING", "Requeue=0", "--batch"]

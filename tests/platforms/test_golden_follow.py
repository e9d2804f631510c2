"""Tests of what followers of jobs say, line by line, and of the fixes for errors of clouds."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import golden
import pytest

from launch.platforms.sagemaker import aws_errors, progress
from launch.platforms.sagemaker import follow as aws
from launch.platforms.sagemaker.logs import LogLine
from launch.platforms.slurm import follow as slurm
from launch.platforms.slurm.tools import fields
from launch.platforms.vertex import follow as vertex
from segtrain.errors import SegtrainError

CLOCK = {r"(?m)^\d\d:\d\d:\d\d ": "HH:MM:SS "}
AWAY = "away"  # in place of an answer
LIVES: dict[str, list[Any]] = {
    "one job": [
        "JobId=5 JobState=PENDING Reason=Priority",
        AWAY,
        AWAY,
        "JobId=5 JobState=PENDING Reason=PartitionTimeLimit",
        "JobId=5 JobState=RUNNING Restarts=3 StdOut=LOG",
        "JobId=5 JobState=COMPLETING Reason=x StdOut=LOG",
        "JobId=5 JobState=TIMEOUT ExitCode=0:15 StdOut=LOG",
    ],
    "out of memory": ["JobId=5 JobState=OUT_OF_MEMORY ExitCode=0:125"],
    "lost node": ["JobId=5 JobState=NODE_FAIL ExitCode=1:0"],
    "cancelled": ["JobId=5 JobState=CANCELLED Reason=DependencyNeverSatisfied ExitCode=0:0"],
    "forgotten": ["JobId=5 JobState=RUNNING Reason=None StdOut=LOG", ""],
    "unknown": [""],
    "array": [
        "JobId=5 ArrayJobId=5 ArrayTaskId=0-2%1 JobState=PENDING Reason=Resources",
        "JobId=6 ArrayJobId=5 ArrayTaskId=0 JobState=RUNNING StdOut=LOG\n"
        "JobId=5 ArrayJobId=5 ArrayTaskId=1-2%1 JobState=PENDING Reason=JobArrayTaskLimit",
        "JobId=6 ArrayJobId=5 ArrayTaskId=0 JobState=COMPLETED ExitCode=0:0 StdOut=LOG\n"
        "JobId=7 ArrayJobId=5 ArrayTaskId=1 JobState=FAILED ExitCode=3:0\n"
        "JobId=8 ArrayJobId=5 ArrayTaskId=2 JobState=PREEMPTED ExitCode=75:0",
    ],
}
STOPS: dict[str, list[str]] = {
    "running": ["JobId=5 JobState=RUNNING", "JobId=5 JobState=COMPLETED ExitCode=75:0"],
    "fails": ["JobId=5 JobState=RUNNING", "JobId=5 JobState=FAILED ExitCode=3:0"],
    "suspended": ["JobId=5 JobState=SUSPENDED", "JobId=5 JobState=CANCELLED ExitCode=0:9"],
    "ended": ["JobId=5 JobState=OUT_OF_MEMORY ExitCode=0:125"],
    "unknown": [""],
    "array": [
        "JobId=6 ArrayJobId=5 ArrayTaskId=0 JobState=RUNNING\n"
        "JobId=5 ArrayJobId=5 ArrayTaskId=1-2%1 JobState=PENDING",
        "JobId=6 ArrayJobId=5 ArrayTaskId=0 JobState=COMPLETED ExitCode=75:0\n"
        "JobId=5 ArrayJobId=5 ArrayTaskId=4294967294 JobState=CANCELLED ExitCode=0:0",
    ],
}


def test_lines_of_slurm(monkeypatch, tmp_path):
    said: list[str] = []
    log = tmp_path / "5.log"
    log.write_bytes(b"step 7\nstep 9 \xff\nlast words")

    def play(answers: list[str]) -> None:
        left = [answer.replace("LOG", str(log)) for answer in answers]

        def jobs(number: str) -> list[dict[str, str]]:
            answer = left.pop(0) if len(left) > 1 else left[0]
            if answer == AWAY:
                raise SegtrainError("no answer", code="slurm-away")
            return [fields(row) for row in answer.splitlines()]

        monkeypatch.setattr(slurm, "jobs", jobs)

    def ask(*command: str) -> str:
        said.append(f"$ {' '.join(command)}")
        return ""

    monkeypatch.setattr(slurm, "ask", ask)
    for title, plays, act in (("follow", LIVES, slurm.follow), ("stop", STOPS, slurm.stop)):
        for name, answers in plays.items():
            said.append(f"\n## {title}: {name}")
            play(answers)
            try:
                said.append(f"exit code {act('5', said.append, poll_s=0)}")
            except SegtrainError as error:
                said.append(f"{error.code}: {error}")
    said += ["", *(f"{reason}: {cure}" for reason, cure in slurm.CURES.items())]
    text = "\n".join(said)
    golden.check("follow/slurm.txt", golden.masked(text, {str(log): "LOG", **CLOCK}))


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(1_800_000_000 + seconds, timezone.utc)


def _described(status: str, secondary: str, *ends: float, **more: Any) -> dict[str, Any]:
    names = ("Starting", "Downloading", "Training", "Interrupted", "Restarting", secondary)
    starts = (0.0, *ends)
    changes = [
        {"Status": name, "StartTime": _moment(start), "EndTime": _moment(end)}
        for name, start, end in zip(names, starts, starts[1:])
    ]
    last = {"Status": secondary, "StartTime": _moment(starts[-1]), "StatusMessage": "so it is"}
    return {
        "TrainingJobStatus": status,
        "SecondaryStatus": secondary,
        "SecondaryStatusTransitions": [*changes, last],
        "ResourceConfig": {"InstanceType": "ml.g5.12xlarge", "InstanceCount": 3},
        **more,
    }


GROUPS = {
    "ResourceConfig": {
        "InstanceGroups": [
            {"InstanceGroupName": "gpu", "InstanceType": "ml.g5.12xlarge", "InstanceCount": 2},
            {"InstanceGroupName": "cpu", "InstanceType": "ml.c5.4xlarge", "InstanceCount": 3},
        ],
        "KeepAlivePeriodInSeconds": 1230,
    },
    "HyperParameters": {"sagemaker_distribution_instance_groups": '["gpu"]'},
}
SPOT = {
    "EnableManagedSpotTraining": True,
    "CheckpointConfig": {"S3Uri": "s3://results/check points/"},
    "TrainingTimeInSeconds": 5000,
    "BillableTimeInSeconds": 1750,
}
JOBS = {
    "waits": _described("InProgress", "Starting"),
    "trains": _described("InProgress", "Training", 70, 190, **GROUPS),
    "spot": _described("InProgress", "Interrupted", 70, 190, 3190, **SPOT),
    "done": _described("Completed", "Completed", 70, 190, 3190, **{**SPOT, **GROUPS}),
    "not begun": _described("Stopped", "Stopped"),
    "too long": _described("Stopped", "MaxRuntimeExceeded", 70, 190, **SPOT),
    "too long a wait": _described("Stopped", "MaxWaitTimeExceeded", 70),
    "failed": _described("Failed", "Failed", 70, BillableTimeInSeconds=90, FailureReason="ENOSPC"),
}
LOG = [
    ("algo-10", "hello"),
    ("algo-2", "epoch 1.50/9  step   120/1000  loss 0.4321  61.2 img/s  wait  5%  ETA 2h 05m"),
    ("algo-2", "epoch 1.50  step 120  mIoU 54.10%  pixel accuracy 83.65%"),
    ("algo-2", "step 9/10 without a speed"),
]


def test_lines_of_sagemaker(tmp_path):
    said: list[str] = []
    clients = SimpleNamespace(region="eu-west-1")
    for name, job in JOBS.items():
        said.append(f"\n## {name}")
        view = aws._SageMakerFollower(clients, "job-7", said.append, tmp_path, None, "COME BACK")
        view._changes(job)
        if name == "trains":
            old = [LogLine("algo-2/1", "algo-2", str(number)) for number in range(43)]
            new = [LogLine(f"{host}/1", host, text) for host, text in LOG]
            view._lines([*old, *new])
        for seconds in (300.0, 359.9, 360.0, 1201.0):
            view._tell(job, 1_800_000_000 + seconds)
        if job["TrainingJobStatus"] != "InProgress":
            said.append(f"exit code {view.verdict(job)}")
        rate = progress.price_per_s(job, 2.5 if name == "spot" else None)
        said.append(f"rate {rate or 0:.6f}, billed {progress.billed_s(job, 1_800_004_000)} s")
    said += ["", *(progress.duration(seconds) for seconds in (-1, 59.4, 59.6, 3599, 3600, 7500))]
    text = "\n".join(said)
    golden.check("follow/sagemaker.txt", golden.masked(text, {str(tmp_path): "FOLDER", **CLOCK}))


REASONS = {
    "vertex": [
        "The replica workerpool1-2 exited with a non-zero status of 1. quota",
        "STOCKOUT in us-central1",
        "Quota exceeded",
        "Permission 'storage.objects.get' denied",
        "Failed to pull image",
        "",
    ],
    "aws": [
        "CapacityError: Unable to provision requested ML compute capacity",
        "insufficient instance capacity",
        "the account-level service limit is 0",
        "torch.cuda.OutOfMemoryError: CUDA out of memory",
        "Bus error (core dumped)",
        "OSError: No space left on device",
        "no kernel image is available for execution on the device",
        "ImportError: smdistributed",
        "ModuleNotFoundError: No module named 'timm'",
        "ncclSystemError: System call failed",
        "rank 3: timed out in a collective",
        "could not mount FileSystem fs-1",
        "No S3 objects found under S3 URL",
        "is not authorized to perform: s3:GetObject",
        "CannotPullContainerError",
        "the image does not exist",
        "ExecuteUserScriptError: ExitCode 137",
        "InternalServerError: We encountered an internal error",
        "something else",
    ],
}
MESSAGES = [
    "Could not assume role arn:aws:iam::1:role/a",
    "User is not authorized to perform: iam:PassRole",
    "Requested resource not found.",
    "No S3 objects found under s3://a",
    "The feature is no longer available",
    "InstanceType ml.p3.16xlarge is not supported",
    "The job is in status Stopped",
    "Something else",
]


def test_fixes_of_errors():
    rows = [f"{code}: {aws_errors.cure_of(code, '')}" for code in [*aws_errors.CODES, "Unknown"]]
    for code in ("ValidationException", "AccessDeniedException", "ThrottlingException"):
        rows += ["", f"## {code}"]
        rows += [f"{text}\n   -> {aws_errors.cure_of(code, text)}" for text in MESSAGES]
    rows += ["", "## FailureReason"]
    rows += [f"{text}\n   -> {aws_errors.cure_of_failure(text)}" for text in REASONS["aws"]]
    golden.check("follow/aws-errors.txt", "\n".join(rows))


ARGUMENTS = [{"containerSpec": {"args": ["configs/a.yaml", 'out="gs://street-results/run 7"']}}]
SPEC = {
    "workerPoolSpecs": [{"containerSpec": {"args": ["train.lr=1"]}}],
    "baseOutputDirectory": {"outputUriPrefix": "gs://street-results/jobs/job-7/"},
}


def test_lines_of_vertex():
    pytest.importorskip("google.auth", reason="the extra 'vertex' is not installed")
    said: list[str] = []
    name = "projects/p/locations/us-central1/customJobs/77"
    states = ["PENDING", "RUNNING", AWAY, "RUNNING", "SUCCEEDED"]
    jobs = [
        {"name": name, "state": f"JOB_STATE_{state}", "updateTime": f"2026-11-23T05:00:1{number}Z"}
        for number, state in enumerate(states)
    ]

    def get(_: str) -> dict[str, Any]:
        job = jobs.pop(0)
        if job["state"].endswith(AWAY):
            raise SegtrainError("no answer", code="google-unreachable")
        return {**job, "jobSpec": SPEC}

    def post(_: str, body: dict[str, Any]) -> dict[str, Any]:
        said.append(f"$ {body['filter']}")
        entry = {
            "timestamp": "2026-11-23T05:02:03.5Z",
            "insertId": "a",
            "jsonPayload": {"message": "step 7 \n"},
            "resource": {"labels": {"task_name": "workerpool1-2"}},
        }
        return {"entries": [entry, {"timestamp": "2026-11-23T05:02:04Z", "jsonPayload": {"a": 1}}]}

    clients = SimpleNamespace(
        region="us-central1", vertex=SimpleNamespace(get=get), logging=SimpleNamespace(post=post)
    )
    view = vertex._VertexFollower("p", clients, get(name), said.append)
    code = view.watch(15.0, lambda seconds: said.append(f"(sleeps {seconds} s)"))
    said.append(f"exit code {code}")
    for job in (
        {"state": "JOB_STATE_CANCELLED", "jobSpec": {"workerPoolSpecs": ARGUMENTS}},
        {"state": "JOB_STATE_CANCELLED"},
        *({"state": "JOB_STATE_FAILED", "error": {"message": text}} for text in REASONS["vertex"]),
    ):
        view.job = {"name": name, **job}
        said.append(f"exit code {view._verdict()}\n")
    golden.check("follow/vertex.txt", "\n".join(said))

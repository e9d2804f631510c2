"""The life of a training job: its statuses, log lines, and billable seconds.

A play is a tuple of acts; each lasts some seconds of a fake clock. The names of the statuses and
what follows what are those of DescribeTrainingJob's SecondaryStatusTransitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ENDS = {
    "Completed": "Completed",
    "Failed": "Failed",
    "Stopped": "Stopped",
    "MaxRuntimeExceeded": "Stopped",
    "MaxWaitTimeExceeded": "Stopped",
}
BILLED = ("Downloading", "DownloadingTrainingImage", "Training", "Uploading", "Stopping")
MESSAGES = {
    "Starting": "Preparing the instances for training",
    "Pending": "Training job waiting for capacity",
    "Downloading": "Downloading the training image",
    "Training": "Training image download completed. Training in progress.",
    "Uploading": "Uploading generated training model",
    "Stopping": "Stopping the training job",
    "Interrupted": "Training job interrupted",
    "Stopped": "Training job stopped",
    "Completed": "Training job completed",
    "MaxRuntimeExceeded": "Training job runtime exceeded MaxRuntimeInSeconds provided",
    "MaxWaitTimeExceeded": "Training job exceeded MaxWaitTimeInSeconds provided",
}


@dataclass(frozen=True)
class Act:
    """``lines``: (host, text), written evenly over the act. ``message``: of a Failed act, the
    FailureReason.
    """

    status: str
    seconds: float = 60.0
    message: str = ""
    lines: Sequence[tuple[str, str]] = ()


Play = tuple[Act, ...]


def play(*acts: Act | str) -> Play:
    """Acts, or names of statuses that last a minute. The last one must be an end."""
    whole = tuple(Act(act) if isinstance(act, str) else act for act in acts)
    assert whole[-1].status in ENDS, f"a play ends with one of {list(ENDS)}, not {whole[-1].status}"
    return whole


COMPLETES = play("Starting", "Downloading", "Training", "Uploading", "Completed")
STOPS = play("Stopping", "Uploading", "Stopped")


def hosts_of(request: Mapping[str, Any]) -> list[str]:
    resources = request["ResourceConfig"]
    groups = resources.get("InstanceGroups") or [
        {**(resources.get("InstancePreferences") or [{}])[0], **resources}
    ]
    return [
        f"algo-{number + 1}" for number in range(sum(group["InstanceCount"] for group in groups))
    ]


@dataclass
class Life:
    """One job: what was asked for, when, and what happens at which second of the clock."""

    request: dict[str, Any]
    tags: list[dict[str, str]]
    arn: str
    created: float
    acts: list[tuple[float, Act]] = field(default_factory=list)  # (starts at, act)
    last_change: float = 0.0

    def plan(self, acts: Play, start: float) -> None:
        for act in acts:
            self.acts.append((start, act))
            start += act.seconds

    def begun(self, now: float) -> list[tuple[float, float | None, Act]]:
        """(start, end or None where it goes on, act) of what has happened by ``now``."""
        started = [(start, act) for start, act in self.acts if start <= now]
        ends = [start for start, _ in started[1:]] + [None]
        return [(start, end, act) for (start, act), end in zip(started, ends)]

    def status(self, now: float) -> str:
        """The primary status."""
        names = [act.status for _, _, act in self.begun(now)]
        if names[-1] in ENDS:
            return ENDS[names[-1]]
        return "Stopping" if "Stopping" in names else "InProgress"

    def stop(self, now: float, acts: Play = STOPS) -> None:
        """What was to come does not: ``acts`` follow at once."""
        self.acts = [(start, act) for start, act in self.acts if start <= now]
        self.plan(acts, now)
        self.last_change = now

    def describe(self, now: float, saving: float) -> dict[str, Any]:
        """The answer of DescribeTrainingJob; ``saving``: share of the price that spot saves."""
        begun, status = self.begun(now), self.status(now)
        answer = {
            **self.request,
            "TrainingJobArn": self.arn,
            "CreationTime": self.created,
            "TrainingJobStatus": status,
        }
        answer |= {
            "SecondaryStatus": begun[-1][2].status,
            "LastModifiedTime": max(begun[-1][0], self.last_change),
        }
        answer["SecondaryStatusTransitions"] = [
            {
                "Status": act.status,
                "StartTime": start,
                "StatusMessage": act.message or MESSAGES.get(act.status, ""),
            }
            | ({} if end is None else {"EndTime": end})
            for start, end, act in begun
        ]
        billed = [
            (start, now if end is None else end)
            for start, end, act in begun
            if act.status in BILLED
        ]
        if billed:
            answer["TrainingStartTime"] = billed[0][0]
        if status in ("Completed", "Failed", "Stopped"):
            seconds = round(sum(end - start for start, end in billed))
            spot = self.request.get("EnableManagedSpotTraining", False)
            answer |= {"TrainingTimeInSeconds": seconds, "TrainingEndTime": begun[-1][0]}
            answer["BillableTimeInSeconds"] = round(seconds * (1 - saving)) if spot else seconds
            output = self.request["OutputDataConfig"]["S3OutputPath"].rstrip("/")
            name = self.request["TrainingJobName"]
            answer["ModelArtifacts"] = {"S3ModelArtifacts": f"{output}/{name}/output/model.tar.gz"}
        if status == "Failed":
            answer["FailureReason"] = (
                begun[-1][2].message or "InternalServerError: We encountered an internal error."
            )
        return answer

    def streams(self, now: float) -> dict[str, list[tuple[float, str]]]:
        """Log stream -> (second, line). Every start of training opens a stream a host, as after a
        spot interruption.
        """
        found: dict[str, list[tuple[float, str]]] = {}
        opened, name = None, self.request["TrainingJobName"]
        for start, end, act in self.begun(now):
            if act.status == "Interrupted":
                opened = None
            if act.status == "Training" and opened is None:
                opened = int(start)
                found |= {f"{name}/{host}-{opened}": [] for host in hosts_of(self.request)}
            for index, (host, line) in enumerate(act.lines if opened is not None else ()):
                at = start + act.seconds * index / len(act.lines)
                if at <= (now if end is None else min(end, now)):
                    found[f"{name}/{host}-{opened}"].append((at, line))
        return found

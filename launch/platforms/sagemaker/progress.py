"""Progress, speed, and cost of a job, read from segtrain's own log lines and from
DescribeTrainingJob.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

# Patterns for lines of segtrain/observe/console.py and for the line after an evaluation. Launchers
# may add prefixes.
_STEP = re.compile(r"\bstep +(\d+)/(\d+)\b")
_LOSS = re.compile(r"\bloss +(\S+)")
_SPEED = re.compile(r"([\d.]+) img/s")
_LEFT = re.compile(r"\bETA +(.+?)\s*$")
_SCORE = re.compile(r"\bstep (\d+)  mIoU ([\d.]+)%")
# Statuses that are billed: from the start of the download to the end of the upload. Waiting for
# machines is free.
BILLED = (
    "Downloading",
    "DownloadingTrainingImage",
    "Training",
    "Uploading",
    "Stopping",
    "Restarting",
)


@dataclass(frozen=True)
class Progress:
    step: int = 0
    total: int = 0
    loss: str = ""
    images_per_s: float = math.nan
    left: str = ""  # time left, as the training prints it: "2h 05m"
    miou: float = math.nan  # of the last evaluation, in percent
    scored: int = 0  # step of the last evaluation

    def read(self, line: str) -> Progress:
        """The progress after a line of the log; the same object if the line shows no progress."""
        if score := _SCORE.search(line):
            return replace(self, miou=float(score[2]), scored=int(score[1]))
        step, speed = _STEP.search(line), _SPEED.search(line)
        if not step or not speed:
            return self
        loss, left = _LOSS.search(line), _LEFT.search(line)
        return replace(
            self,
            step=int(step[1]),
            total=int(step[2]),
            loss=loss[1] if loss else "",
            images_per_s=float(speed[1]),
            left=left[1] if left else "",
        )

    def words(self) -> list[str]:
        """The known parts of a status line."""
        parts = []
        if self.total:
            parts = [
                f"step {self.step}/{self.total}",
                f"loss {self.loss}",
                f"{self.images_per_s:.1f} img/s",
            ]
        if math.isfinite(self.miou):
            parts.append(f"mIoU {self.miou:.2f}% (step {self.scored})")
        if self.left:
            parts.append(f"ETA {self.left}")
        return parts


def duration(seconds: float) -> str:
    """A time as text: ``45s``, ``3m 20s``, ``2h 05m``."""
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 60}m {whole % 60:02d}s" if whole >= 60 else f"{whole}s"


def timestamp(moment: Any) -> float:
    """The Unix time of a datetime from boto3."""
    return float(moment.timestamp())


def price_per_s(job: Mapping[str, Any], price: float | None = None) -> float | None:
    """Dollars per second for all machines of a job (a DescribeTrainingJob response); None if a
    price is not known.

    ``price``: $/h of a machine that trains, instead of the price in the table.
    """
    from launch.platforms.sagemaker.instances import INSTANCES

    total, resources = 0.0, job["ResourceConfig"]
    training = json.loads(
        job.get("HyperParameters", {}).get("sagemaker_distribution_instance_groups", "[]")
    )
    others = {
        group["InstanceType"]
        for group in resources.get("InstanceGroups") or ()
        if training and group["InstanceGroupName"] not in training
    }
    for name, count in machines(resources):
        machine = INSTANCES.get(name)
        each = (
            price
            if price is not None and name not in others
            else machine.price
            if machine
            else None
        )
        if each is None:
            return None
        total += each * count
    return total / 3600


def machines(resources: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Type and count of each group of a ResourceConfig.

    With fallback types: the type that SageMaker selected, or the first type before it has selected
    one.
    """
    if groups := resources.get("InstanceGroups"):
        return [(group["InstanceType"], int(group["InstanceCount"])) for group in groups]
    first = (resources.get("InstancePreferences") or [resources])[0]
    name = resources.get("SelectedInstanceType") or first["InstanceType"]
    count = (
        resources.get("SelectedInstanceCount")
        or first.get("InstanceCount")
        or resources["InstanceCount"]
    )
    return [(name, int(count))]


def billed_s(job: Mapping[str, Any], now: float) -> float:
    """Seconds billed so far, before the spot discount. Waiting for machines is free."""
    total = 0.0
    for change in job.get("SecondaryStatusTransitions", []):
        if change["Status"] in BILLED:
            end = timestamp(change["EndTime"]) if "EndTime" in change else now
            total += max(0.0, end - timestamp(change["StartTime"]))
    return total


def money(job: Mapping[str, Any], rate: float | None, now: float) -> str:
    """The cost as text, ``$3.42 so far``; "" if no price is known. For a spot job: an upper bound
    until it ends.
    """
    if rate is None:
        return ""
    bound = "at most " if job.get("EnableManagedSpotTraining") else ""
    return f"{bound}${rate * billed_s(job, now):,.2f} so far"


def bill(job: Mapping[str, Any], rate: float | None) -> str:
    """Time and cost of an ended job as text: seconds of training, billed seconds, savings by spot,
    dollars.
    """
    if "BillableTimeInSeconds" not in job:
        return "nothing is billed: no machine was started"
    trained, billable = job.get("TrainingTimeInSeconds", 0), job["BillableTimeInSeconds"]
    words = f"{duration(trained)} on the machines, {billable:,} billable seconds on each"
    if job.get("EnableManagedSpotTraining") and trained:
        words += f" (spot saved {100 * (1 - billable / trained):.0f}%)"
    return words if rate is None else f"{words}, about ${rate * billable:,.2f}"

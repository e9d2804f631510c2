"""Report of a rehearsal: what the cloud would have shown of this job, and how long it took here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Transition:
    """An entry of DescribeTrainingJob's SecondaryStatusTransitions; seconds since the rehearsal began."""

    status: str
    second: float
    message: str = ""


@dataclass(frozen=True)
class HostEnd:
    """How a host ended: exit code of its container, seconds it ran, files of its /opt/ml/model with their sizes, its
    failure file.
    """

    name: str
    group: str
    type: str
    code: int
    seconds: float
    model: Mapping[str, int] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True)
class Report:
    status: str  # TrainingJobStatus: Completed, Failed or Stopped
    failure_reason: str  # FailureReason; "" where it did not fail
    transitions: tuple[Transition, ...]
    hosts: tuple[HostEnd, ...]
    first_step_s: float | None  # from the start of the containers
    end_s: float  # of the whole rehearsal
    training_s: float  # TrainingTimeInSeconds: Downloading to the end, all attempts
    metrics: Mapping[str, tuple[int, float | None]]  # name -> how many values CloudWatch would have, and the last
    remarks: tuple[str, ...]  # differences from the cloud, and problems of the job that were noticed
    folder: str

    @property
    def exit_code(self) -> int:
        return 1 if self.status == "Failed" else 0

    @property
    def model(self) -> dict[str, int]:
        """What would be in model.tar.gz."""
        return {name: size for host in self.hosts for name, size in host.model.items()}


def save(report: Report, path: Path) -> None:
    path.write_text(json.dumps(asdict(report), indent=1) + "\n")


def load(path: Path) -> Report:
    found: dict[str, Any] = json.loads(path.read_text())
    found["transitions"] = tuple(Transition(**item) for item in found["transitions"])
    found["hosts"] = tuple(HostEnd(**item) for item in found["hosts"])
    found["metrics"] = {name: (count, last) for name, (count, last) in found["metrics"].items()}
    found["remarks"] = tuple(found["remarks"])
    return Report(**found)


def show(report: Report) -> str:
    """The report as text for a terminal."""
    lines = [f"rehearsed: the cloud would have shown {report.status}", ""]
    if report.failure_reason:
        lines += [f"  FailureReason  {_one_line(report.failure_reason)}", ""]
    width = max(len(item.status) for item in report.transitions)
    lines += [f"  {item.second:7.1f} s  {item.status:<{width}}  {item.message}".rstrip() for item in report.transitions]
    first = (
        "no step was seen"
        if report.first_step_s is None
        else f"{report.first_step_s:.1f} s after the containers' start"
    )
    count = len(report.hosts)
    lines += [
        "",
        f"  first step     {first}",
        f"  end            {report.end_s:.1f} s",
        f"  billable       {report.training_s:.0f} s on each of {count} host{'s' * (count > 1)} "
        "(seconds of this machine, not of the cloud's)",
        "",
    ]
    for host in report.hosts:
        model = ", ".join(f"{name} ({size:,} bytes)" for name, size in host.model.items()) or "nothing"
        lines.append(
            f"  {host.name}  {host.group} {host.type}  code {host.code} after {host.seconds:.1f} s; model: {model}"
        )
    lines += [f"  {host.name} says: {_one_line(host.failure)}" for host in report.hosts if host.failure]
    for name, (values, last) in report.metrics.items():
        lines.append(f"  metric {name}: {f'{values} times, last {last:g}' if values else 'never'}")
    lines += ["", *(f"  note: {remark}" for remark in report.remarks), f"  logs of the hosts: {report.folder}/logs"]
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())

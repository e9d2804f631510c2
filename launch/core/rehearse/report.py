"""Report of a rehearsal: what the cloud would have shown of this job, and how long it took here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Transition:
    """A status or an event of the job; seconds since the rehearsal began."""

    status: str
    second: float
    message: str = ""


@dataclass(frozen=True)
class HostEnd:
    """How a host ended: the exit code of each start of its container, the seconds of the last one,
    and its failure file (SageMaker).
    """

    name: str
    group: str
    type: str
    codes: tuple[int, ...]
    seconds: float
    failure: str

    @property
    def code(self) -> int:
        """The exit code of the last start."""
        return self.codes[-1] if self.codes else 0


@dataclass(frozen=True)
class Report:
    """``failed``: the job failed, so the command must not end with 0."""

    status: str  # the job's last status, in the cloud's words
    failed: bool
    failure_reason: str  # as the cloud would show it; "" if the job did not fail
    transitions: tuple[Transition, ...]
    hosts: tuple[HostEnd, ...]
    first_step_s: float | None  # from the start of the containers
    end_s: float  # of the whole rehearsal
    training_s: float  # of all attempts: what would be billable
    model: Mapping[str, int]  # the files of the model -> size in bytes
    # name -> number of values that the cloud would have, and the last
    metrics: Mapping[str, tuple[int, float | None]]
    # differences from the cloud, and problems of the job that were noticed
    remarks: tuple[str, ...]
    folder: str

    @property
    def exit_code(self) -> int:
        return 1 if self.failed else 0


def save(report: Report, path: Path) -> None:
    path.write_text(json.dumps(asdict(report), indent=1) + "\n")


def load(path: Path) -> Report:
    saved: dict[str, Any] = json.loads(path.read_text())
    saved["transitions"] = tuple(Transition(**item) for item in saved["transitions"])
    saved["hosts"] = tuple(
        HostEnd(**{**item, "codes": tuple(item["codes"])}) for item in saved["hosts"]
    )
    saved["metrics"] = {name: (count, last) for name, (count, last) in saved["metrics"].items()}
    saved["remarks"] = tuple(saved["remarks"])
    return Report(**saved)


def show(report: Report) -> str:
    """The report as text for a terminal."""
    lines = [f"rehearsed: the cloud would have shown {report.status}", ""]
    if report.failure_reason:
        lines += [f"  FailureReason  {_one_line(report.failure_reason)}", ""]
    width = max(len(item.status) for item in report.transitions)
    lines += [
        f"  {item.second:7.1f} s  {item.status:<{width}}  {item.message}".rstrip()
        for item in report.transitions
    ]
    seen = report.first_step_s is not None
    first = (
        f"{report.first_step_s:.1f} s after the containers' start" if seen else "no step was seen"
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
        codes = ", ".join(map(str, host.codes)) or "none"
        lines.append(
            f"  {host.name}  {host.group} {host.type}  exit codes {codes}; last start "
            f"{host.seconds:.1f} s"
        )
    lines += [
        f"  {host.name} says: {_one_line(host.failure)}" for host in report.hosts if host.failure
    ]
    lines += [f"  model  {name} ({size:,} bytes)" for name, size in report.model.items()] or [
        "  no model was written"
    ]
    for name, (values, last) in report.metrics.items():
        lines.append(f"  metric {name}: {f'{values} times, last {last:g}' if values else 'never'}")
    lines += [
        "",
        *(f"  note: {remark}" for remark in report.remarks),
        f"  logs of the hosts: {report.folder}/logs",
    ]
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())

"""Report of a rehearsal: the states that the job would have on Vertex AI, its restarts, and its times here."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Transition:
    """A state or an event of the job; seconds since the rehearsal began."""

    state: str
    second: float
    message: str = ""


@dataclass(frozen=True)
class HostEnd:
    """A replica: its worker pool, the exit code of each start of its container, and the seconds of the last one."""

    name: str
    pool: int
    machine: str
    codes: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Report:
    state: str  # JOB_STATE_SUCCEEDED, JOB_STATE_FAILED, or JOB_STATE_CANCELLED
    error: str  # why it failed, or ""
    transitions: tuple[Transition, ...]
    hosts: tuple[HostEnd, ...]
    first_step_s: float | None  # from the start of the containers
    end_s: float
    objects: tuple[tuple[str, int], ...]  # address and size in bytes of each object below AIP_MODEL_DIR
    remarks: tuple[str, ...]
    folder: str

    @property
    def exit_code(self) -> int:
        return 1 if self.state == "JOB_STATE_FAILED" else 0


def save(report: Report, path: Path) -> None:
    path.write_text(json.dumps(asdict(report), indent=1) + "\n")


def load(path: Path) -> Report:
    found: dict[str, Any] = json.loads(path.read_text())
    found["transitions"] = tuple(Transition(**item) for item in found["transitions"])
    found["hosts"] = tuple(HostEnd(**{**item, "codes": tuple(item["codes"])}) for item in found["hosts"])
    found["objects"] = tuple((name, size) for name, size in found["objects"])
    found["remarks"] = tuple(found["remarks"])
    return Report(**found)


def show(report: Report) -> str:
    """The report as text for a user."""
    lines = [f"rehearsed: the cloud would have shown {report.state}", ""]
    if report.error:
        lines += [f"  error  {' '.join(report.error.split())}", ""]
    width = max(len(item.state) for item in report.transitions)
    lines += [f"  {item.second:7.1f} s  {item.state:<{width}}  {item.message}".rstrip() for item in report.transitions]
    seen = report.first_step_s is not None
    first = f"{report.first_step_s:.1f} s after the containers' start" if seen else "no step was seen"
    lines += ["", f"  first step     {first}", f"  end            {report.end_s:.1f} s", ""]
    for host in report.hosts:
        codes = ", ".join(map(str, host.codes)) or "none"
        lines.append(
            f"  {host.name}  pool {host.pool} {host.machine}  exit codes {codes}; last start {host.seconds:.1f} s"
        )
    lines += [f"  model  {name} ({size:,} bytes)" for name, size in report.objects] or ["  no model was written"]
    lines += ["", *(f"  note: {remark}" for remark in report.remarks), f"  logs of the hosts: {report.folder}/logs"]
    return "\n".join(lines)

"""One attempt of a rehearsal: from the start of the containers to the end of the last one, with an optional fault."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.rehearse.cluster import Plant
from launch.rehearse.container import Container
from launch.rehearse.logs import HostLogs

GRACE_S = 120.0  # between SIGTERM and SIGKILL, as documented for StopTrainingJob
FAILED_S = 15.0  # after a host has failed: time for the other hosts to log the cause before they are killed


@dataclass(frozen=True)
class Ending:
    """How an attempt ended. ``why``: "ended" (all hosts ended by themselves, or one failed and the others were killed),
    "stopped", "interrupted", or "timeout".
    """

    why: str
    began: float  # time.monotonic()
    codes: tuple[int, ...]
    ends: tuple[float, ...]
    killed: tuple[str, ...]  # hosts that had to be killed


def run(
    containers: Sequence[Container],
    logs: HostLogs,
    plant: Plant,
    *,
    flag: Path,
    fill_disks: Callable[[], None],
    grace_s: float,
    limit_s: float,
    tell: Callable[[str, str], None],
) -> Ending:
    """Run the containers until all have ended. ``flag``: the file that a planted failure waits for; ``limit_s``:
    MaxRuntimeInSeconds; ``tell``: is called with a status and a message.
    """
    readers = [
        threading.Thread(target=one.read, args=(logs.listener(one.host.name),), daemon=True) for one in containers
    ]
    for reader in readers:
        reader.start()
    began = time.monotonic()
    try:
        why, killed = _watch(containers, logs, plant, began, flag, fill_disks, grace_s, limit_s, tell)
    finally:
        for one in containers:
            one.kill()  # also the processes that process 1 of a container left behind, and everything after Ctrl-C
    for reader in readers:
        reader.join()
    codes = tuple(one.code or 0 for one in containers)
    return Ending(why, began, codes, tuple(one.ended for one in containers), tuple(killed))


def _watch(
    containers: Sequence[Container],
    logs: HostLogs,
    plant: Plant,
    began: float,
    flag: Path,
    fill_disks: Callable[[], None],
    grace_s: float,
    limit_s: float,
    tell: Callable[[str, str], None],
) -> tuple[str, list[str]]:
    """Wait until the last container has ended. Returns why the attempt ended, and the hosts that had to be killed."""
    why, deadline, killed, planted = "ended", math.inf, [], plant.kind in ("", "absent")
    while any(one.code is None for one in containers):
        now = time.monotonic()
        if not planted and why == "ended" and _due(plant, logs):
            planted = True
            why = _act(plant, containers, flag, fill_disks, tell, grace_s)
            if why != "ended":
                deadline = now + (0 if plant.kind == "kill" else grace_s)
        if deadline == math.inf and now - began > limit_s:
            why, deadline = "timeout", now + grace_s
            tell("MaxRuntimeExceeded", f"Training job runtime exceeded MaxRuntimeInSeconds ({limit_s:.0f})")
            _each(containers, "stop")
        if deadline == math.inf and any(one.code for one in containers):
            deadline = now + FAILED_S
        if now >= deadline and (late := [one for one in containers if one.code is None]):
            killed += [one.host.name for one in late if one.host.name not in killed]
            _each(late, "kill")
        time.sleep(0.05)
    return why, killed


def _due(plant: Plant, logs: HostLogs) -> bool:
    if plant.kind in ("fail", "disk"):
        return logs.first_step is not None
    return logs.step >= plant.at


def _act(
    plant: Plant,
    containers: Sequence[Container],
    flag: Path,
    fill_disks: Callable[[], None],
    tell: Callable[[str, str], None],
    grace_s: float,
) -> str:
    """Inject the fault. Returns the reason for which the attempt will end, as in ``Ending``."""
    if plant.kind == "fail":
        flag.touch()
        return "ended"
    if plant.kind == "disk":
        fill_disks()
        return "ended"
    if plant.kind == "helper":
        tell("Training", "The hosts that do not train are stopped (planted)")
        _each([one for one in containers if not one.host.trains], "stop")
        return "ended"
    if plant.kind == "kill":
        tell("Interrupted", "Training job was interrupted: its machines were reclaimed without notice (planted)")
        return "interrupted"
    if plant.kind == "spot":
        tell(
            "Interrupted",
            f"Training job was interrupted: SIGTERM, then {grace_s:.0f} s until the machines go (planted)",
        )
    else:
        tell("Stopping", f"Stopping the training job: SIGTERM, then {grace_s:.0f} s (planted)")
    _each(containers, "stop")
    return "interrupted" if plant.kind == "spot" else "stopped"


def _each(containers: Sequence[Container], what: str) -> None:
    for one in containers:
        if one.code is None:
            getattr(one, what)()


def plant_variable(plant: Plant, parameters: Mapping[str, str], flag: Path) -> str:
    """The value of SEGTRAIN_PLANT for planted/sitecustomize.py; "" if no rank is to fail."""
    program = parameters.get("sagemaker_program", '"train.py"').strip('"')
    return f"{plant.at} {program} {flag}" if plant.kind == "fail" else ""

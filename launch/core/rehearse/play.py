"""The life of a rehearsed job: its containers start, fail, are stopped, and start again. Platforms
are subclasses.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launch.core.findings import Say
from launch.core.rehearse import disks
from launch.core.rehearse.cluster import Fault, RehearsalCluster, RehearsalHost
from launch.core.rehearse.container import Container
from launch.core.rehearse.logs import HostLogs
from launch.core.rehearse.process import RehearsalSpec
from launch.core.rehearse.report import HostEnd, Report, Transition

PAUSE_S = 0.05


@dataclass
class RunningHost:
    """A host and its container, which may be started several times. ``base``: the host's folder on
    this machine.
    """

    host: RehearsalHost
    base: Path
    container: Container | None = None
    due: float = 0.0  # time.monotonic() of the container's next start; 0: no start is planned
    began: float = 0.0
    ended: float = 0.0
    codes: list[int] = field(default_factory=list)
    killed: bool = False  # its last container had to be killed
    failures: int = 0  # times that it ended by itself with an error
    step: int = -1  # the job's training step at its last failure
    failure: str = ""  # the text of its failure file

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def runs(self) -> bool:
        return self.container is not None and self.container.code is None


class Rehearsal:
    """The state of a rehearsal while it runs. A subclass answers as its cloud does; ``metrics`` and
    ``after`` are those of ``HostLogs``.
    """

    PENDING = STOPPING = INTERRUPTED = TIMEOUT = "the platform's name of the status"
    GRACE_S = 0.0  # between SIGTERM and SIGKILL in the cloud
    program = "the program or module of a rank, in which --plant fail raises"

    def __init__(
        self,
        spec: RehearsalSpec,
        stage: RehearsalCluster,
        say: Say,
        metrics: Mapping[str, str],
        after: str = "",
    ) -> None:
        self.spec, self.stage, self.say = spec, stage, say
        self.folder, self.began = Path(spec.folder), time.monotonic()
        self.grace_s = self.GRACE_S if spec.grace_s is None else spec.grace_s
        self.logs = HostLogs(self.folder / "logs", stage.leader.name, say, metrics, after=after)
        self.hosts = [RunningHost(host, self.folder / "hosts" / host.name) for host in stage.hosts]
        self.transitions: list[Transition] = []
        self.remarks = [*spec.said, *stage.said]
        self.first_step_s: float | None = None
        self.training_s = 0.0
        self._readers: list[threading.Thread] = []

    def container(self, running: RunningHost, fault: str) -> Container:
        """Start the container of a host. ``fault``: the value of SEGTRAIN_PLANT, or ""."""
        raise NotImplementedError

    def attempt(self, plant: Fault) -> str:
        """Run the job on one set of machines, by ``watch``. Returns why it ended, as ``watch``
        does.
        """
        raise NotImplementedError

    def on_exit(self, ended: Sequence[RunningHost]) -> str:
        """Answer the end of containers. Returns "ended" if the attempt is over, or ""."""
        raise NotImplementedError

    def lose_machine(self) -> str:
        """Take machines away without notice. Returns why the attempt is over, or ""."""
        raise NotImplementedError

    def status(self, name: str, message: str = "") -> None:
        second = time.monotonic() - self.began
        self.transitions.append(Transition(name, second, message))
        self.say(f"{second:7.1f} s  {name}  {message}".rstrip())

    def run(self, plant: Fault) -> str:
        """Run the job, and once more if its machines are taken away. Returns why it ended."""
        why = self.attempt(plant)
        if why == "interrupted":
            self.status(self.PENDING, "new machines")
            why = self.attempt(Fault())
        return why

    def watch(self, plant: Fault, limit_s: float) -> str:
        """Start the containers, inject the fault, and wait for the end of the attempt.

        Returns "ended", "stopped", "interrupted" (its machines were taken away), or "timeout"
        (after ``limit_s``).
        """
        began = time.monotonic()
        for running in self.hosts:
            running.due = began
        if plant.kind == "late":
            self.hosts[-1].due += plant.at
        try:
            return self._watch(plant, began + limit_s)
        finally:
            for running in self.hosts:
                if running.container is not None:
                    running.container.kill()  # after Ctrl-C
            for reader in self._readers:
                reader.join()
            self._readers.clear()
            self._note_first_step()
            self.training_s += time.monotonic() - began

    def _watch(self, plant: Fault, deadline: float) -> str:
        pending = plant.kind not in ("", "late", "absent")
        fault = f"{plant.at} {self.program} {self._flag}" if plant.kind == "fail" else ""
        while True:
            for running in self.hosts:
                if running.due and time.monotonic() >= running.due:
                    self._start(running, plant, fault)
            self._note_first_step()
            why = ""
            if pending and self._is_due(plant):
                pending = False
                why = self._inject(plant)
            why = why or self.on_exit(self._take_codes())
            if not why and time.monotonic() > deadline:
                self.status(self.TIMEOUT, "the job ran longer than the request allows")
                self.end()
                why = "timeout"
            if why:
                break
            time.sleep(PAUSE_S)
        if pending:
            text = (
                f"--plant {self.spec.plant}: the run ended at step {self.logs.step}, before "
                "the fault was due"
            )
            self.remarks.append(text)
        return why

    @property
    def _flag(self) -> Path:
        """The file that a planted failure waits for."""
        return self.folder / "failure.now"

    def _start(self, running: RunningHost, plant: Fault, fault: str) -> None:
        if plant.kind == "late" and running is self.hosts[-1] and not running.began:
            self.status("LATE", f"{running.name} starts {plant.at} s after the others (planted)")
        running.due, running.killed = 0.0, False
        self.logs.heading(running.name, f"start {len(running.codes) + 1}")
        running.container = self.container(running, fault)
        running.began = time.monotonic()
        listener = self.logs.listener(running.name)
        reader = threading.Thread(target=running.container.read, args=(listener,), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _note_first_step(self) -> None:
        if self.first_step_s is None and self.logs.first_step is not None:
            self.first_step_s = self.logs.first_step - min(
                running.began for running in self.hosts if running.began
            )

    def _is_due(self, plant: Fault) -> bool:
        if plant.kind in ("fail", "disk"):
            return self.logs.first_step is not None
        return self.logs.step >= plant.at

    def _inject(self, plant: Fault) -> str:
        """Inject the fault. Returns why the attempt is over, or ""."""
        if plant.kind == "fail":
            self._flag.touch()
        elif plant.kind == "disk":
            self.say(
                f"{time.monotonic() - self.began:7.1f} s  the disk of each host is full from "
                "here on (planted)"
            )
            for running in self.hosts:
                disks.fill(running.base)
        elif plant.kind == "helper":
            helping = [running for running in self.hosts if not running.host.trains]
            self.status("HELPER", "the hosts that do not train are stopped (planted)")
            self._stop(helping)
        elif plant.kind == "kill":
            return self.lose_machine()
        else:
            stopped = plant.kind == "stop"
            until = "" if stopped else " until the machines go"
            message = f"SIGTERM, then {self.grace_s:.0f} s{until} (planted)"
            self.status(self.STOPPING if stopped else self.INTERRUPTED, message)
            self.end()
            return "stopped" if stopped else "interrupted"
        return ""

    def _take_codes(self) -> list[RunningHost]:
        """Record the exit codes of containers that have ended since the last call, and return their
        hosts.
        """
        ended = []
        for running in self.hosts:
            if running.container is not None and (code := running.container.code) is not None:
                # ends processes that the container's first process left behind
                running.container.kill()
                running.codes.append(code)
                running.ended = running.container.ended
                running.container = None
                ended.append(running)
        return ended

    def _stop(self, hosts: Sequence[RunningHost]) -> None:
        for running in hosts:
            if running.runs and running.container is not None:
                running.container.stop()

    def kill(self) -> None:
        """Kill all containers that still run."""
        for running in self.hosts:
            if running.runs and running.container is not None:
                running.killed = True
                running.container.kill()
        self.wait(math.inf)

    def end(self) -> None:
        """Send SIGTERM to all containers, and SIGKILL to those that still run after the time of
        grace.
        """
        self._stop(self.hosts)
        self.wait(self.grace_s)
        self.kill()

    def wait(self, limit_s: float) -> None:
        """Wait until all containers have ended, at most ``limit_s`` seconds."""
        deadline = time.monotonic() + limit_s
        self._take_codes()
        while (
            any(running.container is not None for running in self.hosts)
            and time.monotonic() < deadline
        ):
            time.sleep(PAUSE_S)
            self._take_codes()

    def report(self, status: str, failure_reason: str, model: Mapping[str, int]) -> Report:
        return Report(
            status=status,
            failed=bool(failure_reason),
            failure_reason=failure_reason,
            transitions=tuple(self.transitions),
            hosts=tuple(
                HostEnd(
                    running.name,
                    running.host.group,
                    running.host.type,
                    tuple(running.codes),
                    running.ended - running.began,
                    running.failure,
                )
                for running in self.hosts
            ),
            first_step_s=self.first_step_s,
            end_s=time.monotonic() - self.began,
            training_s=self.training_s,
            model=model,
            metrics={
                name: (len(values), values[-1] if values else None)
                for name, values in self.logs.values.items()
            },
            remarks=tuple(self.remarks),
            folder=str(self.folder),
        )

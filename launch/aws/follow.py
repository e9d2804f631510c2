"""Following and stopping a job: logs, status, speed, mIoU, and cost until it ends.

Nothing here is needed by the job: a follower that goes away leaves it running, and another one can come back to it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.aws import progress as told
from launch.aws.cloud import Clients
from launch.aws.cures import cure_of_failure, explain, passing
from launch.aws.fetch import fetch
from launch.aws.job import COMMAND
from launch.aws.logs import LogLine, Logs, keep, log_file, natural
from segtrain.errors import EXIT_RESUMABLE, SegtrainError

_ENDED = ("Completed", "Failed", "Stopped")
_FAILED = 1
_LEFT = 130  # as a shell says it of Ctrl-C
_EVERY_S = 60.0  # between status lines while nothing but the step changes
_SCARCE_S = 900.0  # after so long without a machine it is said that the wait costs nothing
_BACKLOG = 40  # lines of each host that are shown of what was printed before the first look


def follow(
    clients: Clients,
    name: str,
    *,
    say: Callable[[str], None],
    folder: Path,
    price: float | None = None,
    poll_s: float = 10.0,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Watch until the job ends, then fetch what it left into ``folder``. ``price``: $/h of a machine, None: the
    table's.

    0: completed; 75: stopped with its state saved, the same command goes on; 1: failed; 130: left running by Ctrl-C.
    """
    back = _back(clients, name)
    view = _View(clients, name, say, folder, price, back)
    try:
        job = view.watch(poll_s, now, sleep)
    except KeyboardInterrupt:
        say(f"left: {name} goes on, and is billed. Come back: {back}")
        say(f"stop it gently: {back.replace('--attach', '--stop')}")
        return _LEFT
    code = view.verdict(job)
    try:
        _write(folder / "job.json", job)
        return code if fetch(clients, job, folder, say) else code or _FAILED
    except KeyboardInterrupt:
        say(f"left: the job has ended; fetch what it left: {back}")
        return _LEFT


@dataclass
class _View:
    clients: Clients
    name: str
    say: Callable[[str], None]
    folder: Path
    price: float | None
    back: str  # how to come back
    progress: told.Progress = field(default_factory=told.Progress)
    main: str = ""  # the host of rank 0: the one that prints steps
    hosts: set[str] = field(default_factory=set)  # those that have printed
    many: bool = False  # the job has more than one host: lines begin with theirs
    status: tuple[Any, ...] = ()  # what was last said of the status
    said_at: float = 0.0
    offline: bool = False
    begun: set[str] = field(default_factory=set)  # log files of this look
    looked: bool = False  # the first look at the logs is over

    def watch(self, poll_s: float, now: Callable[[], float], sleep: Callable[[float], None]) -> dict[str, Any]:
        """Say what is new until the job has ended; its last description."""
        logs = Logs(self.clients.logs, self.name)
        known: dict[str, Any] | None = None
        while True:
            described = self._try(
                lambda: self.clients.sagemaker.describe_training_job(TrainingJobName=self.name), known is None
            )
            if described is not None:
                known = dict(described)
                self._changes(known)
            self._lines(self._try(logs.read, first=False) or [])
            assert known is not None  # the first call raises
            if known["TrainingJobStatus"] in _ENDED and described is not None:
                sleep(min(poll_s, 5.0))  # the last lines arrive after the status
                self._lines(self._try(logs.read, first=False) or [])
                return known
            self._tell(known, now())
            sleep(poll_s)

    def _try(self, call: Callable[[], Any], first: bool) -> Any:
        """The answer; None where the network is gone or AWS is busy, once it has answered before."""
        try:
            answer = call()
        except Exception as error:
            if first or not passing(error):
                cause = explain(error, self.name)
                raise cause if first else SegtrainError(f"{cause} (the job goes on; come back: {self.back})") from None
            if not self.offline:
                self.say(f"AWS does not answer ({type(error).__name__}): the job goes on, trying again")
            self.offline = True
            return None
        self.offline = False
        return answer

    def _changes(self, job: Mapping[str, Any]) -> None:
        """New transitions of the status, and new words about the last one."""
        changes = job.get("SecondaryStatusTransitions", [])
        self.many = sum(count for _, count in told.machines(job["ResourceConfig"])) > 1
        seen = [(change["Status"], change["StartTime"], change.get("StatusMessage", "")) for change in changes]
        for status, since, message in seen:
            if (status, since, message) not in self.status and status not in _ENDED:
                clock = since.astimezone().strftime("%H:%M:%S")
                self.say(f"{clock} {status}{f': {message}' if message else ''}")
                if status == "Interrupted":
                    self.say(
                        "         AWS took the spot machines back: the job waits for others and resumes from "
                        "its checkpoints"
                    )
        self.status = tuple(seen)

    def _lines(self, lines: Sequence[LogLine]) -> None:
        keep(lines, self.folder / "logs", self.begun)
        scores = self.progress.scored, self.progress.miou
        for line in lines:
            after = self.progress.read(line.text)
            if after is not self.progress:
                self.progress, self.main = after, line.host
        if (self.progress.scored, self.progress.miou) != scores:
            self.said_at = 0.0  # a new score is told at once
        self.hosts |= {line.host for line in lines}
        for host in sorted(self.hosts, key=lambda host: (host != self.main, natural(host))):
            self._show(host, [line for line in lines if line.host == host])
        self.looked = True

    def _show(self, host: str, lines: list[LogLine]) -> None:
        earlier = 0 if self.looked else max(0, len(lines) - _BACKLOG)
        if earlier:
            self.say(f"{host}: {earlier} earlier lines are in {log_file(self.folder / 'logs', lines[0].stream)}")
        width = max(len(other) for other in self.hosts)
        before = f"{host:<{width}} | " if self.many else ""
        for line in lines[earlier:]:
            self.say(f"{before}{line.text}")

    def _tell(self, job: Mapping[str, Any], moment: float) -> None:
        """One line: status, step, speed, mIoU, money."""
        if moment - self.said_at < _EVERY_S:
            return
        self.said_at = moment
        status = job["SecondaryStatus"]
        change = (job.get("SecondaryStatusTransitions") or [{}])[-1]
        since = moment - told.timestamp(change["StartTime"]) if "StartTime" in change else 0.0
        parts = [f"-- {status} {told.duration(since)}"]
        parts += self.progress.words() if status in ("Training", "Stopping", "Uploading") else []
        parts.append(told.money(job, told.price_per_s(job, self.price), moment))
        if status in ("Starting", "Pending", "Interrupted") and since > _SCARCE_S:
            parts.append(f"no free machines yet: waiting costs nothing, --stop {self.name} ends it")
        self.say("  ".join(part for part in parts if part))

    def verdict(self, job: Mapping[str, Any]) -> int:
        """How it ended, what it cost, what to do next; the exit code."""
        status, secondary = job["TrainingJobStatus"], job["SecondaryStatus"]
        self.say(f"{secondary}: {told.bill(job, told.price_per_s(job, self.price))}")
        if words := self.progress.words():
            self.say(f"last     {'  '.join(words)}")
        if seconds := job["ResourceConfig"].get("KeepAlivePeriodInSeconds"):
            self.say(
                f"warm     the machines stay for {told.duration(seconds)} and are billed; the next job of the "
                "same shape starts on them"
            )
        if status == "Failed":
            reason = job.get("FailureReason", "no reason is given")
            self.say(f"reason   {reason}")
            self.say(f"cure     {cure_of_failure(reason)}")
            return _FAILED
        return 0 if status == "Completed" else self._stopped(job, secondary)

    def _stopped(self, job: Mapping[str, Any], secondary: str) -> int:
        longer = {"MaxRuntimeExceeded": "a longer --max-run", "MaxWaitTimeExceeded": "a longer --max-wait"}.get(
            secondary
        )
        kept = job.get("CheckpointConfig", {}).get("S3Uri")
        if longer:
            self.say(f"reason   the job reached its time limit: give {longer}")
        if not kept:
            self.say("state    not kept: only a job with --checkpoints s3://BUCKET/PREFIX/ can go on where it stopped")
            return _FAILED
        self.say(f"state    {kept}: the same command with --checkpoints {kept} goes on from it")
        return EXIT_RESUMABLE


def stop(clients: Clients, name: str, say: Callable[[str], None]) -> int:
    """Ask SageMaker to stop the job gently, and say what happens then. 0 also where it has ended by itself."""
    try:
        job = clients.sagemaker.describe_training_job(TrainingJobName=name)
        status = job["TrainingJobStatus"]
        if status == "InProgress":
            clients.sagemaker.stop_training_job(TrainingJobName=name)
    except Exception as error:
        raise explain(error, f"StopTrainingJob of {name}") from None
    attach = _back(clients, name)
    if status in _ENDED:
        say(f"{name} has ended already ({job['SecondaryStatus']}); what it left: {attach}")
        return 0
    say(
        f"{name} {'is stopping already' if status == 'Stopping' else 'stops'}: its ranks have 120 s to end the "
        "step and save their state"
    )
    kept = job.get("CheckpointConfig", {}).get("S3Uri")
    say(
        f"state    {kept}: the same command with --checkpoints {kept} goes on from it"
        if kept
        else "state    no --checkpoints were given: the training cannot be continued, what it has written is uploaded"
    )
    say(f"billing  goes on until the status is Stopped; look: {attach}")
    return 0


def _back(clients: Clients, name: str) -> str:
    return f"{COMMAND} --attach {name} --region {clients.region}"


def _write(path: Path, job: Mapping[str, Any]) -> None:
    """The last description of the job, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {key: value for key, value in job.items() if key != "ResponseMetadata"}
    path.write_text(json.dumps(plain, indent=2, default=str) + "\n", encoding="utf-8")

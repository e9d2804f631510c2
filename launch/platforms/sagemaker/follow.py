"""Following and stopping a job: logs, status, speed, mIoU, and cost until it ends.

The job does not depend on this process: if this process ends, the job keeps running, and can be
followed again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from launch.core.findings import Say
from launch.platforms.sagemaker import progress as job_progress
from launch.platforms.sagemaker.aws_errors import cure_of_failure, explain, explained, passing
from launch.platforms.sagemaker.cloud import AwsClients
from launch.platforms.sagemaker.fetch import fetch
from launch.platforms.sagemaker.job import COMMAND
from launch.platforms.sagemaker.logs import LogLine, Logs, keep, log_file, natural
from segtrain.errors import EXIT_RESUMABLE, SegtrainError

_ENDED = ("Completed", "Failed", "Stopped")
_FAILED = 1
_LEFT = 130  # exit code after Ctrl-C, the same as a shell's
_EVERY_S = 60.0  # between status lines, unless there is a new score
# after this long without a machine, the status line says that waiting costs nothing
_SCARCE_S = 900.0
_BACKLOG = 40  # earlier lines of each host that are shown when following begins


def follow(
    clients: AwsClients,
    name: str,
    *,
    say: Say,
    folder: Path,
    price: float | None = None,
    poll_s: float = 10.0,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Watch until the job ends, then fetch its results into ``folder``. ``price``: $/h of a
    machine; None: as in the table.

    Returns 0: completed; 75: stopped with its state saved, so that the same command resumes it; 1:
    failed, stopped without saved state, or results not fetched; 130: Ctrl-C, which does not stop
    the job.
    """
    back = _back(clients, name)
    view = _SageMakerFollower(clients, name, say, folder, price, back)
    try:
        job = view.watch(poll_s, now, sleep)
    except KeyboardInterrupt:
        say(f"left: {name} keeps running, and is billed. Come back: {back}")
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
class _SageMakerFollower:
    clients: AwsClients
    name: str
    say: Say
    folder: Path
    price: float | None
    back: str  # the command that follows the job again
    progress: job_progress.Progress = field(default_factory=job_progress.Progress)
    main: str = ""  # the host of rank 0, which prints the steps
    hosts: set[str] = field(default_factory=set)  # hosts that have printed
    many: bool = False  # the job has more than one host: each line begins with its host's name
    status: tuple[Any, ...] = ()  # the status transitions that were already shown
    said_at: float = 0.0
    offline: bool = False
    # log streams that this process has begun to write to files
    begun: set[str] = field(default_factory=set)
    looked: bool = False  # the logs were read at least once

    def watch(
        self, poll_s: float, now: Callable[[], float], sleep: Callable[[float], None]
    ) -> dict[str, Any]:
        """Report what is new until the job has ended. Returns its last description."""
        logs = Logs(self.clients.logs, self.name)
        latest: dict[str, Any] | None = None
        while True:
            described = self._try(
                lambda: self.clients.sagemaker.describe_training_job(TrainingJobName=self.name),
                latest is None,
            )
            if described is not None:
                latest = dict(described)
                self._changes(latest)
            self._lines(self._try(logs.read, first=False) or [])
            assert latest is not None  # the first call raises
            if latest["TrainingJobStatus"] in _ENDED and described is not None:
                sleep(min(poll_s, 5.0))  # the last log lines arrive after the final status
                self._lines(self._try(logs.read, first=False) or [])
                return latest
            self._tell(latest, now())
            sleep(poll_s)

    def _try(self, call: Callable[[], Any], first: bool) -> Any:
        """The result of ``call``; None if the network is down or AWS is busy. The ``first`` call
        raises instead.
        """
        try:
            answer = call()
        except Exception as error:
            if first or not passing(error):
                cause = explain(error, self.name)
                raise (
                    cause
                    if first
                    else SegtrainError(
                        f"{cause} (the job goes on; come back: {self.back})",
                        code="follow-interrupted",
                    )
                ) from None
            if not self.offline:
                self.say(
                    f"AWS does not answer ({type(error).__name__}): the job goes on, trying again"
                )
            self.offline = True
            return None
        self.offline = False
        return answer

    def _changes(self, job: Mapping[str, Any]) -> None:
        """Report new status transitions, and new messages of the last one."""
        changes = job.get("SecondaryStatusTransitions", [])
        self.many = sum(count for _, count in job_progress.machines(job["ResourceConfig"])) > 1
        seen = [
            (change["Status"], change["StartTime"], change.get("StatusMessage", ""))
            for change in changes
        ]
        for status, since, message in seen:
            if (status, since, message) not in self.status and status not in _ENDED:
                clock = since.astimezone().strftime("%H:%M:%S")
                self.say(f"{clock} {status}{f': {message}' if message else ''}")
                if status == "Interrupted":
                    self.say(
                        "         AWS took the spot machines back: the job waits for others and "
                        "resumes from its checkpoints"
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
            self.said_at = 0.0  # a new score is reported at once
        self.hosts |= {line.host for line in lines}
        for host in sorted(self.hosts, key=lambda host: (host != self.main, natural(host))):
            self._show(host, [line for line in lines if line.host == host])
        self.looked = True

    def _show(self, host: str, lines: list[LogLine]) -> None:
        earlier = 0 if self.looked else max(0, len(lines) - _BACKLOG)
        if earlier:
            self.say(
                f"{host}: {earlier} earlier lines are in "
                f"{log_file(self.folder / 'logs', lines[0].stream)}"
            )
        width = max(len(other) for other in self.hosts)
        before = f"{host:<{width}} | " if self.many else ""
        for line in lines[earlier:]:
            self.say(f"{before}{line.text}")

    def _tell(self, job: Mapping[str, Any], moment: float) -> None:
        """Print a status line (status, step, speed, mIoU, cost) if it is time for one."""
        if moment - self.said_at < _EVERY_S:
            return
        self.said_at = moment
        status = job["SecondaryStatus"]
        change = (job.get("SecondaryStatusTransitions") or [{}])[-1]
        since = (
            moment - job_progress.timestamp(change["StartTime"]) if "StartTime" in change else 0.0
        )
        parts = [f"-- {status} {job_progress.duration(since)}"]
        parts += self.progress.words() if status in ("Training", "Stopping", "Uploading") else []
        parts.append(job_progress.money(job, job_progress.price_per_s(job, self.price), moment))
        if status in ("Starting", "Pending", "Interrupted") and since > _SCARCE_S:
            parts.append(f"no free machines yet: waiting costs nothing, --stop {self.name} ends it")
        self.say("  ".join(part for part in parts if part))

    def verdict(self, job: Mapping[str, Any]) -> int:
        """Report how the job ended, what it cost, and what to do next. Returns the exit code."""
        status, secondary = job["TrainingJobStatus"], job["SecondaryStatus"]
        self.say(
            f"{secondary}: {job_progress.bill(job, job_progress.price_per_s(job, self.price))}"
        )
        if words := self.progress.words():
            self.say(f"last     {'  '.join(words)}")
        if seconds := job["ResourceConfig"].get("KeepAlivePeriodInSeconds"):
            self.say(
                f"warm     the machines stay for {job_progress.duration(seconds)} and are billed; "
                "the next job of the same shape starts on them"
            )
        if status == "Failed":
            reason = job.get("FailureReason", "no reason is given")
            self.say(f"reason   {reason}")
            self.say(f"cure     {cure_of_failure(reason)}")
            return _FAILED
        return 0 if status == "Completed" else self._stopped(job, secondary)

    def _stopped(self, job: Mapping[str, Any], secondary: str) -> int:
        longer = {
            "MaxRuntimeExceeded": "a longer --max-run",
            "MaxWaitTimeExceeded": "a longer --max-wait",
        }.get(secondary)
        checkpoints = job.get("CheckpointConfig", {}).get("S3Uri")
        if longer:
            self.say(f"reason   the job reached its time limit: give {longer}")
        if not checkpoints:
            self.say(
                "state    not kept: only a job with --checkpoints s3://BUCKET/PREFIX/ can go on "
                "where it stopped"
            )
            return _FAILED
        self.say(
            f"state    {checkpoints}: the same command with --checkpoints {quote(checkpoints)} "
            "goes on from it"
        )
        return EXIT_RESUMABLE


def stop(clients: AwsClients, name: str, say: Say) -> int:
    """Ask SageMaker to stop the job gently, and say what happens then. Returns 0, even if it has
    already ended.
    """
    with explained(f"StopTrainingJob of {name}"):
        job = clients.sagemaker.describe_training_job(TrainingJobName=name)
        status = job["TrainingJobStatus"]
        if status == "InProgress":
            clients.sagemaker.stop_training_job(TrainingJobName=name)
    attach = _back(clients, name)
    if status in _ENDED:
        say(f"{name} has ended already ({job['SecondaryStatus']}); what it left: {attach}")
        return 0
    say(
        f"{name} {'is stopping already' if status == 'Stopping' else 'stops'}: its ranks have 120 "
        "s to end the step and save their state"
    )
    checkpoints = job.get("CheckpointConfig", {}).get("S3Uri")
    say(
        f"state    {checkpoints}: the same command with --checkpoints {quote(checkpoints)} "
        "goes on from it"
        if checkpoints
        else (
            "state    no --checkpoints were given: the training cannot be continued, what it "
            "has written is uploaded"
        )
    )
    say(f"billing  goes on until the status is Stopped; look: {attach}")
    return 0


def _back(clients: AwsClients, name: str) -> str:
    return f"{COMMAND} --attach {quote(name)} --region {clients.region}"


def _write(path: Path, job: Mapping[str, Any]) -> None:
    """Write the last description of the job, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {key: value for key, value in job.items() if key != "ResponseMetadata"}
    path.write_text(json.dumps(plain, indent=2, default=str) + "\n", encoding="utf-8")

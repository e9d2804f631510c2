"""Following and stopping a Slurm job: its states and the lines of its log until it ends.

Nothing here is needed by the job: a follower that goes away leaves it running, and another one can
come back to it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from launch.core.findings import Say
from launch.platforms.slurm.job import COMMAND
from launch.platforms.slurm.tools import ask, jobs
from segtrain.errors import EXIT_ERROR, EXIT_RESUMABLE, ConfigError, SegtrainError

POLL_S = 5.0
# COMPLETING and REQUEUED are not among them: the job may go on.
ENDED = frozenset(
    (
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "BOOT_FAIL",
        "DEADLINE",
        "REVOKED",
    )
    + ("PREEMPTED",)
)
_FORGOTTEN = "FORGOTTEN"  # not a state of Slurm: it was known, and is no longer
_LEFT = 130  # as a shell says it of Ctrl-C
_WAITING = "waiting"  # the tasks of an array that have not started, which Slurm shows as one
_NO_TASK = "4294967294"  # how Slurm numbers them when they are cancelled
# Why a job waits, or how it ended -> what helps.
CURES = {
    "PartitionTimeLimit": "--max-run is longer than the partition allows: scontrol show partition",
    "PartitionNodeLimit": "--nodes is more than the partition has, or than are up: sinfo",
    "DependencyNeverSatisfied": "the job of --after has failed: cancel this one with scancel",
    "JobLaunchFailure": "the node could not start the script: do the folders of --output and the "
    "working directory exist there",
    "TIMEOUT": "the state was not saved within --notice: make it longer",
    "OUT_OF_MEMORY": "--memory, or fewer data.workers",
    "NODE_FAIL": "submit it again: it goes on from its newest checkpoint",
    "PREEMPTED": "submit it again: it goes on from its newest checkpoint",
}


@dataclass
class _Task:
    """One job, or one task of an array, as it was last seen."""

    shown: str
    state: str = ""
    code: str = ""
    log: Path | None = None
    read: int = 0
    pending: bytes = b""  # a line that is not complete


@dataclass
class _SlurmFollower:
    number: str
    say: Say
    tasks: dict[str, _Task] = field(default_factory=dict)
    away: bool = False

    def poll(self) -> bool:
        """Say what is new. Returns whether the job has ended, or is forgotten."""
        try:
            records = jobs(self.number)
        except SegtrainError as error:
            if error.code != "slurm-away":
                raise
            if not self.away:
                self.say("slurmctld does not answer: the job goes on, trying again")
            self.away = True
            return False
        self.away = False
        if not records and not self.tasks:
            raise ConfigError(
                f"Slurm knows no job {self.number}, or has forgotten it (MinJobAge): squeue --me "
                "lists those that it knows; the run folder has the log and slurm/history.txt",
                code="job-unknown",
                found=self.number,
            )
        several = len(records) > 1
        keys = [_key(job) for job in records]
        for key, job in zip(keys, records):
            if key == _WAITING:
                self._state(self.tasks.setdefault(key, _Task(job["ArrayTaskId"])), job, several)
                continue
            task = self.tasks.setdefault(key, _Task(key))
            if job.get("JobState") in ENDED:  # its last lines come before its end
                self._log(task, job, several)
            self._state(task, job, several)
            self._log(task, job, several)
        if records and _WAITING not in keys:
            self.tasks.pop(_WAITING, None)  # all of them have started
        for key, task in self.tasks.items():
            if key not in keys and task.state not in ENDED:
                task.state = _FORGOTTEN
        return all(task.state in (*ENDED, _FORGOTTEN) for task in self.tasks.values())

    def _state(self, task: _Task, job: dict[str, str], several: bool) -> None:
        state, reason = job.get("JobState", ""), job.get("Reason", "None")
        text = (
            f"{state} ({reason})"
            if reason not in ("None", "") and state not in ("RUNNING", "COMPLETING")
            else state
        )
        if job.get("Restarts", "0") != "0" and state == "RUNNING":
            text += f", restart {job['Restarts']}"
        if text != task.state and state != task.state:
            head = f"task {task.shown}: " if several else ""
            self.say(f"{time.strftime('%H:%M:%S')} {head}{text.replace(state, _plain(state), 1)}")
            if cure := CURES.get(reason) or CURES.get(state):
                self.say(f"cure     {cure}")
        task.state, task.code = state if state in ENDED else text, job.get("ExitCode", "")

    def _log(self, task: _Task, job: dict[str, str], several: bool) -> None:
        """New whole lines of the log."""
        task.log = Path(job["StdOut"]) if job.get("StdOut") else None
        try:
            with open(task.log or "", "rb") as file:
                file.seek(task.read)
                content = file.read()
        except OSError:
            return
        task.read += len(content)
        *lines, task.pending = (task.pending + content).split(b"\n")
        for line in lines:
            self.say(f"{f'{task.shown} | ' if several else ''}{line.decode(errors='replace')}")

    def verdict(self) -> int:
        """0: all are done; 75: some were stopped with their state saved; 2: the end of some is not
        known; 1: some failed.
        """
        worst = 0
        for task in self.tasks.values():
            if task.pending:
                self.say(task.pending.decode(errors="replace"))
            level, words = _outcome(task.state, task.code)
            worst = max(worst, level)
            if level:
                self.say(
                    f"{f'task {task.shown} ' if task.shown else ''}{words}; log "
                    f"{task.log or '(none)'}"
                )
        return (0, EXIT_RESUMABLE, EXIT_ERROR, 1)[worst]


def _plain(state: str) -> str:
    """OUT_OF_MEMORY as "out of memory"."""
    return state.lower().replace("_", " ")


def _key(job: dict[str, str]) -> str:
    """The number of the task; "" for a job without an array."""
    task = job.get("ArrayTaskId", "") if "ArrayJobId" in job else ""
    return _WAITING if task == _NO_TASK or (task and not task.isdigit()) else task


def _outcome(state: str, code: str) -> tuple[int, str]:
    """0: done, 1: stopped, 2: not known, 3: failed; and words for it. ``code``: EXIT:SIGNAL, as
    Slurm shows it.
    """
    status, _, signal = code.partition(":")
    if state == "COMPLETED":
        return 0, "done"
    if state == _FORGOTTEN:
        return (
            2,
            (
                "is no longer known to Slurm (MinJobAge): history.txt in the run folder says how "
                "it ended"
            ),
        )
    if status == str(EXIT_RESUMABLE) or state == "CANCELLED":
        return 1, "stopped; submit it again to go on"
    by_signal = status in ("", "0") and signal not in ("", "0")
    return (
        3,
        f"{_plain(state)} {f'by signal {signal}' if by_signal else f'with exit code {status}'}",
    )


def follow(number: str, say: Say, poll_s: float = POLL_S) -> int:
    """Watch until the job ends. 0: done; 75: stopped, its state is saved; 1: failed; 2: Slurm has
    forgotten how it ended; 130: left by Ctrl-C.
    """
    view = _SlurmFollower(number, say)
    try:
        while not view.poll():
            time.sleep(poll_s)
    except KeyboardInterrupt:
        say(
            f"left: job {number} goes on. Come back: {COMMAND} --attach {number}    stop it: "
            f"{COMMAND} --stop {number}"
        )
        return _LEFT
    return view.verdict()


def stop(number: str, say: Say, poll_s: float = 1.0) -> int:
    """Let a job save its state and end, also if it would queue itself again, and wait for that. Of
    an array, each task.

    0: it has ended, or had already; 1: it failed meanwhile; 130: left by Ctrl-C, when all have been
    told.
    """
    signaled: set[tuple[str, str]] = set()
    ended: dict[str, int] = {}
    while True:
        records = jobs(number)
        if not records and not signaled:
            raise ConfigError(
                f"Slurm knows no job {number}: squeue --me", code="job-unknown", found=number
            )
        for job in records:
            name, state = _name(job, number), job.get("JobState", "")
            before = [step for task, step in signaled if task == name]
            if state in ENDED:
                if name not in ended:
                    ended[name], words = _outcome(state, job.get("ExitCode", ""))
                    if "RUNNING" in before:
                        say(f"{name} {words}")
                    elif not before:
                        ended[name] = 0
                        say(f"{name} has ended already ({_plain(state)})")
            elif state not in before and not (before and state == "COMPLETING"):
                try:
                    say(_tell(name, state))
                except SegtrainError:
                    if state in [record.get("JobState") for record in jobs(name)]:
                        raise
                    continue  # it has gone on to another state
                signaled.add((name, state))
        if all(_name(job, number) in ended for job in records):
            return 1 if 3 in ended.values() else 0
        try:
            time.sleep(poll_s)
        except KeyboardInterrupt:
            say(f"left: job {number} has been told to stop")
            return _LEFT


def _name(job: dict[str, str], number: str) -> str:
    """What scancel calls a job, one task of an array, or all that wait (as ``number`` of the array
    or one of them).
    """
    key = _key(job)
    return f"{job['ArrayJobId']}_{key}" if key.isdigit() else number


def _tell(name: str, state: str) -> str:
    """Tell a job, by its state, to end. Returns what was done."""
    if state == "RUNNING":
        ask("scontrol", "update", f"JobId={name}", "Requeue=0")
        ask("scancel", "--batch", "--signal=USR1", name)
        return f"{name} saves its state"
    # of an array, not the tasks that run; of one task, the state would select all that wait
    if state == "PENDING":
        ask("scancel", *([] if "_" in name else ["--state=PENDING"]), name)
        return f"{name} is taken out of the queue (pending)"
    ask("scancel", name)
    return f"{name} is cancelled ({state.lower()})"

"""Follows a Vertex AI job (its states and log lines, until it ends), or stops it.

The job does not depend on this process: if the process ends, the job goes on, and any other process
can follow it.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from launch.core.findings import Say
from launch.platforms.vertex.cloud import GoogleClients, back, cancel, find
from segtrain.errors import EXIT_RESUMABLE, SegtrainError

ENDED = ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_EXPIRED")
_PASSING = ("google-unreachable", "google-quota")
_DENIED = ("google-denied", "google-not-found")
_LEFT = 130  # the exit code that shells use for Ctrl-C
_PAGE = 1000
# the lines of one replica may arrive this much after newer lines of others
_LATE = timedelta(seconds=60)
# A part of a job's error message -> the fix. The first match wins. After a failure of the training
# itself, the message may hold any of its own words, so that this comes first.
CURES = (
    ("non-zero", "the last lines of the replica's log say why: the text above names the replica"),
    (
        "STOCKOUT",
        (
            "no machines are free there: try later, another --region, or --scheduling flex-start "
            "--max-wait 12h"
        ),
    ),
    (
        "quota",
        (
            "ask for more quota (console: IAM, Quotas, custom_model_training), or fewer --hosts, "
            "or another --region"
        ),
    ),
    (
        "permission",
        (
            "give the job's service account the right that is named, or choose another with "
            "--service-account"
        ),
    ),
    ("image", "check --image, and that the service agent of Vertex AI may read its repository"),
)


def follow(
    project: str,
    clients: GoogleClients,
    name: str,
    *,
    say: Say,
    poll_s: float = 15.0,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Follow a job until it ends. Returns 0: succeeded; 75: cancelled, but it has checkpoints; 1:
    failed, or cancelled without checkpoints; 130: Ctrl-C ended the following, and the job goes on.
    """
    view = _VertexFollower(project, clients, find(project, clients, name), say)
    again = back(view.number, project, clients.region)
    try:
        return view.watch(poll_s, sleep)
    except SegtrainError as error:
        error.args = (f"{error} (the job goes on; come back: {again})",)
        raise
    except KeyboardInterrupt:
        say(f"left: {view.shown} goes on, and is billed. Come back: {again}")
        say(f"stop it: {back(view.number, project, clients.region, 'stop')}")
        return _LEFT


def stop(project: str, clients: GoogleClients, name: str, say: Say) -> int:
    """Cancel a job, and tell what happens to it. Returns 0, also if the job has already ended."""
    job = find(project, clients, name)
    shown = job.get("displayName", name)
    if job.get("state") in ENDED:
        say(f"{shown} has ended already ({_plain(job['state'])})")
        return 0
    cancel(clients, job["name"])
    say(f"{shown} is being cancelled; Vertex AI does not promise its processes the time to save")
    say(f"state    the newest checkpoint stays: {resume(job)}")
    return 0


def resume(job: Mapping[str, Any]) -> str:
    """A text that tells how a new job can continue from this job's checkpoints."""
    uri = checkpoints(job)
    return (
        f"the same command with --checkpoints {shlex.quote(uri)} goes on from it"
        if uri
        else "none was kept in a bucket"
    )


def checkpoints(job: Mapping[str, Any]) -> str:
    """The gs:// address of a job's run folder; "" for none."""
    spec = job.get("jobSpec", {})
    for pool in spec.get("workerPoolSpecs", ())[:1]:
        for word in pool.get("containerSpec", {}).get("args", ()):
            key, _, text = word.partition("=")
            if key == "out":
                # segtrain sends the value as JSON; other tools may send it without quotes
                with suppress(ValueError):
                    text = json.loads(text)
                return str(text)
    folder = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "").rstrip("/")
    return f"{folder}/checkpoints" if folder else ""


@dataclass
class _VertexFollower:
    project: str
    clients: GoogleClients
    job: dict[str, Any]
    say: Say
    state: str = ""
    # times and IDs of the log lines that were shown recently
    seen: set[tuple[str, str]] = field(default_factory=set)
    newest: str = ""  # the time of the newest log line, in whole seconds
    since: str = ""  # a time; no new log line is expected to be older
    offline: bool = False
    unreadable: bool = False  # the caller may not read the log

    @property
    def shown(self) -> str:
        return str(self.job.get("displayName", self.number))

    @property
    def number(self) -> str:
        return str(self.job["name"].rpartition("/")[2])

    def watch(self, poll_s: float, sleep: Callable[[float], None]) -> int:
        while True:
            self._state()
            ended = self.job.get("state") in ENDED
            if ended:
                sleep(min(poll_s, 5.0))  # the last lines arrive after the state
            self._log()
            if ended:
                return self._verdict()
            sleep(poll_s)
            self.job = self._try(lambda: self.clients.vertex.get(self.job["name"])) or self.job

    def _try(self, call: Callable[[], Any]) -> Any:
        """The answer of ``call``, or None if Google does not answer for now. The job itself goes on
        meanwhile.
        """
        try:
            answer = call()
        except SegtrainError as error:
            if error.code not in _PASSING:
                raise
            if not self.offline:
                self.say("Google does not answer: the job goes on, trying again")
            self.offline = True
            return None
        self.offline = False
        return answer

    def _state(self) -> None:
        state = self.job.get("state", "JOB_STATE_UNSPECIFIED")
        if state != self.state:
            self.say(f"{self.job.get('updateTime', '')[11:19]} {_plain(state)}".strip())
            self.state = state

    def _log(self) -> None:
        """Show new log lines, if the caller may read the log: the right to run jobs does not
        include that.
        """
        if self.unreadable:
            return
        try:
            self._try(self._lines)
        except SegtrainError as error:
            if error.code not in _DENIED:
                raise
            self.unreadable = True
            self.say(
                "the job's log cannot be read, only its state is shown (roles/logging.viewer is "
                f"needed): {error}"
            )

    def _lines(self) -> None:
        """Show new log lines in the order of their times. Each call also asks for the last minute
        again.
        """
        wanted = f'resource.type="ml_job" AND resource.labels.job_id="{self.number}"'
        if self.since:
            wanted += f' AND timestamp>="{self.since}"'
        body = {
            "resourceNames": [f"projects/{self.project}"],
            "filter": wanted,
            "orderBy": "timestamp asc",
            "pageSize": _PAGE,
        }
        while True:
            answer = self.clients.logging.post("entries:list", body)
            for entry in answer.get("entries", ()):
                self._line(entry)
            if not answer.get("nextPageToken"):
                break
            body["pageToken"] = answer["nextPageToken"]
        if self.newest:
            self.since = f"{(datetime.fromisoformat(self.newest) - _LATE).isoformat()}Z"
            self.seen = {
                (moment, mark) for moment, mark in self.seen if moment[:19] >= self.since[:19]
            }

    def _line(self, entry: Mapping[str, Any]) -> None:
        mark = (entry["timestamp"], entry.get("insertId", ""))
        if mark in self.seen:
            return
        self.seen.add(mark)
        # A host with a fast clock writes times in the future: with these, later lines of other
        # hosts would be missed.
        self.newest = max(
            self.newest,
            min(entry["timestamp"], entry.get("receiveTimestamp", entry["timestamp"]))[:19],
        )
        text = _text(entry)
        place = entry.get("resource", {}).get("labels", {}).get("task_name", "")
        self.say(f"{place} | {text.rstrip()}" if place else text.rstrip())

    def _verdict(self) -> int:
        state = self.job["state"]
        if state == "JOB_STATE_SUCCEEDED":
            folder = (
                self.job.get("jobSpec", {})
                .get("baseOutputDirectory", {})
                .get("outputUriPrefix", "")
            )
            self.say(f"model    {folder.rstrip('/')}/model/, run folder {checkpoints(self.job)}")
            return 0
        if state == "JOB_STATE_CANCELLED":
            self.say(f"state    {resume(self.job)}")
            return EXIT_RESUMABLE if checkpoints(self.job) else 1
        reason = self.job.get("error", {}).get("message", "no reason is given")
        self.say(f"reason   {reason}")
        cure = next(
            (cure for word, cure in CURES if word.lower() in reason.lower()),
            "the job's log says more",
        )
        self.say(f"cure     {cure}")
        self.say(f"state    {resume(self.job)}")
        return 1


def _text(entry: Mapping[str, Any]) -> str:
    """The text of a log line. If a program prints a JSON object, that is the payload, with any
    ``message`` or none.
    """
    payload = entry.get("jsonPayload", {})
    text = entry.get("textPayload", payload.get("message", payload or ""))
    return text if isinstance(text, str) else json.dumps(payload)


def _plain(state: str) -> str:
    return state.removeprefix("JOB_STATE_").lower()

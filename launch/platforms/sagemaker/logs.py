"""Reader of the CloudWatch log streams of a job's hosts. Each read continues where the last one
ended.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GROUP = "/aws/sagemaker/TrainingJobs"
_HOST = re.compile(r"/(.+?)-\d+$")  # NAME/algo-1-1795284314
_NUMBER = re.compile(r"(\d+)")


@dataclass(frozen=True)
class LogLine:
    stream: str
    host: str
    text: str


@dataclass
class Logs:
    """The logs of a job. A restart after an interruption writes to new streams, which ``read``
    finds as well.
    """

    client: Any
    job: str
    _tokens: dict[str, str] = field(default_factory=dict)  # stream -> token of its next page

    def read(self) -> list[LogLine]:
        """The new lines: host by host, and in order for each host. Empty until the first host has
        printed.
        """
        try:
            pages = self.client.get_paginator("describe_log_streams").paginate(
                logGroupName=GROUP, logStreamNamePrefix=f"{self.job}/"
            )
            streams = [stream["logStreamName"] for page in pages for stream in page["logStreams"]]
        except self.client.exceptions.ResourceNotFoundException:
            return []  # the first job of an account: the log group does not exist yet
        return [line for stream in sorted(streams, key=natural) for line in self._rest(stream)]

    def _rest(self, stream: str) -> list[LogLine]:
        lines: list[LogLine] = []
        match = _HOST.search(stream)
        host = match[1] if match else stream
        while True:
            token = self._tokens.get(stream)
            place = {"nextToken": token} if token else {}
            page = self.client.get_log_events(
                logGroupName=GROUP, logStreamName=stream, startFromHead=True, **place
            )
            for event in page["events"]:
                # A progress bar redraws itself after a carriage return: keep only its last state.
                text = event["message"].rstrip("\r\n").rsplit("\r", 1)[-1]
                lines.append(LogLine(stream, host, text))
            self._tokens[stream] = page["nextForwardToken"]
            if page["nextForwardToken"] == token:  # the same token again: no more events for now
                return lines


def natural(name: str) -> list[int | str]:
    """A key that sorts algo-10 after algo-2."""
    return [int(part) if part.isdigit() else part for part in _NUMBER.split(name)]


def keep(lines: Sequence[LogLine], folder: Path, begun: set[str]) -> None:
    """Append the lines to one file per stream in ``folder``, and add the streams to ``begun``.

    A stream that is not in ``begun`` overwrites the file that an earlier process left: every
    process reads the streams from their beginning.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stream in dict.fromkeys(line.stream for line in lines):
        text = "".join(f"{line.text}\n" for line in lines if line.stream == stream)
        with log_file(folder, stream).open(
            "a" if stream in begun else "w", encoding="utf-8"
        ) as target:
            target.write(text)
        begun.add(stream)


def log_file(folder: Path, stream: str) -> Path:
    return folder / (stream.rsplit("/", 1)[-1] + ".log")

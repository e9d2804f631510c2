"""A strict server on loopback for SageMaker, FSx, Service Quotas, and CloudWatch Logs.

Every request is checked against botocore's own service model; nothing that was sent is dropped; a
job's life is played by a script (tests/kit/cloud/life.py) on a fake clock, which goes on with each
DescribeTrainingJob (``per_describe`` seconds) and with ``tick``.

    with CloudEndpoint(plays={"mine": play("Starting", Act("Failed", message="..."))}) as cloud:
        for key, value in environment(cloud.url).items(): monkeypatch.setenv(key, value)
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cloud.life import COMPLETES, ENDS, Life, Play
from cloud.lustre import Lustre, Refusal
from launch.platforms.sagemaker.service_model import violations

# X-Amz-Target's prefix -> (botocore's name of the service, name in the signature's scope)
SERVICES = {
    "SageMaker": ("sagemaker", "sagemaker"),
    "AWSSimbaAPIService_v20180301": ("fsx", "fsx"),
    "ServiceQuotasV20190624": ("service-quotas", "servicequotas"),
    "Logs_20140328": ("logs", "logs"),
}
GROUP = "/aws/sagemaker/TrainingJobs"
ACCOUNT = "123456789012"
INTERVALS = (100, 200, 500, 1000, 5000, 60000)
_SCOPE = re.compile(r"^AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([a-z0-9-]+)/([a-z-]+)/aws4_request")


class Refused(Exception):
    """An error as AWS words it."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


class CloudEndpoint(Lustre):
    """``jobs``: name -> Life.

    ``plays``: name or longest matching prefix ("" for all) -> Play. ``calls``: what came in.
    """

    def __init__(
        self,
        plays: Mapping[str, Play] | None = None,
        per_describe: float = 60.0,
        saving: float = 0.7,
    ) -> None:
        super().__init__()
        self.plays: dict[str, Play] = {"": COMPLETES, **(plays or {})}
        self.jobs: dict[str, Life] = {}
        self.file_systems: list[dict[str, Any]] = []  # as DescribeFileSystems answers
        # of ServiceCode sagemaker, as ListServiceQuotas answers
        self.quotas: list[dict[str, Any]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.per_describe, self.saving = per_describe, saving
        self.clock = 1_800_000_000.0
        self.page = 10_000  # log events in an answer
        self._refusals: dict[str, list[Refused | None]] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"cloud": self})
        )
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> CloudEndpoint:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def now(self) -> float:
        return self.clock

    def tick(self, seconds: float) -> None:
        """Let time pass: what a test gives as ``sleep``."""
        self.clock += seconds

    def refuse(
        self, operation: str, code: str, message: str = "", times: int = 1, status: int = 400
    ) -> None:
        """The next ``times`` calls of ``operation`` are refused."""
        self._refusals.setdefault(operation, []).extend(
            [Refused(code, message or code, status)] * times
        )

    def lose(self, operation: str) -> None:
        """The next call is carried out, but its answer is lost on the way."""
        self._refusals.setdefault(operation, []).append(None)

    def answer(
        self, target: str, scope: tuple[str, str] | None, body: bytes
    ) -> dict[str, Any] | None:
        """One request -> its answer; None where it is lost. Raises Refused."""
        prefix, _, operation = target.partition(".")
        if prefix not in SERVICES or not hasattr(self, f"_{operation}"):
            raise Refused("UnknownOperationException", f"{target} is not played here")
        service, signed = SERVICES[prefix]
        if scope is None or scope[1] != signed:
            raise Refused(
                "InvalidSignatureException",
                f"the request is signed for {scope}, not for {signed}",
                403,
            )
        request = json.loads(body)
        with self._lock:
            self.calls.append((operation, request))
            planned = self._refusals.get(operation) or [...]
            fate = planned.pop(0)
            if isinstance(fate, Refused):
                raise fate
            try:
                if found := violations(request, operation=operation, service=service):
                    raise Refused(
                        "ValidationException",
                        f"{len(found)} validation errors detected: " + "; ".join(found),
                    )
                done: dict[str, Any] = getattr(self, f"_{operation}")(request, scope[0])
            except Refusal as refusal:
                raise Refused(*refusal.args) from None
            except Refused:
                if fate is not None:
                    raise
            return None if fate is None else done

    def _job(self, request: Mapping[str, Any]) -> Life:
        if request["TrainingJobName"] not in self.jobs:
            raise Refused("ValidationException", "Requested resource not found.")
        return self.jobs[request["TrainingJobName"]]

    def _CreateTrainingJob(self, request: dict[str, Any], region: str) -> dict[str, Any]:
        name = request["TrainingJobName"]
        arn = f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{name}"
        if name in self.jobs:
            raise Refused(
                "ResourceInUse",
                f"Training job names must be unique within an AWS account and region ({arn})",
            )
        # the real answer has no tags either
        kept = {key: value for key, value in request.items() if key != "Tags"}
        life = Life(kept, request.get("Tags", []), arn, self.clock, last_change=self.clock)
        life.plan(
            self.plays[max((key for key in self.plays if name.startswith(key)), key=len)],
            self.clock,
        )
        self.jobs[name] = life
        return {"TrainingJobArn": arn}

    def _DescribeTrainingJob(self, request: dict[str, Any], region: str) -> dict[str, Any]:
        answer = self._job(request).describe(self.clock, self.saving)
        self.clock += self.per_describe
        return answer

    def _StopTrainingJob(self, request: dict[str, Any], region: str) -> dict[str, Any]:
        life = self._job(request)
        if (status := life.status(self.clock)) in ENDS.values():
            raise Refused(
                "ValidationException",
                f"The request was rejected because the training job is in status {status}.",
            )
        if status != "Stopping":
            life.stop(self.clock)
        return {}

    def _UpdateTrainingJob(self, request: dict[str, Any], region: str) -> dict[str, Any]:
        life = self._job(request)
        interval = request.get("ProfilerConfig", {}).get("ProfilingIntervalInMilliseconds")
        if interval is not None and interval not in INTERVALS:
            raise Refused(
                "ValidationException",
                f"ProfilingIntervalInMilliseconds {interval} is not one of {INTERVALS}",
            )
        if {"ProfilerConfig", "RemoteDebugConfig"} & set(request) and life.status(
            self.clock
        ) != "InProgress":
            raise Refused(
                "ValidationException", f"the training job is in status {life.status(self.clock)}"
            )
        for key, value in request.items():
            kept = life.request.get(key)
            life.request[key] = (
                {**kept, **value} if isinstance(kept, dict) and isinstance(value, dict) else value
            )
        life.last_change = self.clock
        return {"TrainingJobArn": life.arn}

    def _ListTrainingJobs(self, request: dict[str, Any], region: str) -> dict[str, Any]:
        found = []
        for name, life in self.jobs.items():
            told = life.describe(self.clock, self.saving)
            if (
                request.get("NameContains", "") in name
                and request.get("StatusEquals", told["TrainingJobStatus"])
                == (told["TrainingJobStatus"])
            ):
                keys = (
                    "TrainingJobName",
                    "TrainingJobArn",
                    "CreationTime",
                    "LastModifiedTime",
                    "TrainingJobStatus",
                )
                found.append({key: told[key] for key in keys})
        found.sort(
            key=lambda summary: summary["CreationTime"],
            reverse=request.get("SortOrder") != "Ascending",
        )
        return _page("TrainingJobSummaries", found, request, 10)

    def _CreateFileSystem(self, request: dict[str, Any], region: str) -> dict[str, Any]:
        return self.create_file_system(request)

    def _CreateDataRepositoryAssociation(
        self, request: dict[str, Any], region: str
    ) -> dict[str, Any]:
        return self.associate(request)

    def _DescribeDataRepositoryAssociations(
        self, request: dict[str, Any], region: str
    ) -> dict[str, Any]:
        self.settle()
        wanted = request.get("AssociationIds", [one["AssociationId"] for one in self.associations])
        return _page(
            "Associations",
            [one for one in self.associations if one["AssociationId"] in wanted],
            request,
            25,
        )

    def _DescribeDataRepositoryTasks(self, request: dict[str, Any], region: str) -> dict[str, Any]:
        return _page("DataRepositoryTasks", self.tasks_of(request), request, 25)

    def _DescribeFileSystems(self, request: dict[str, Any], region: str) -> dict[str, Any]:
        self.settle()
        wanted, known = (
            request.get("FileSystemIds", []),
            {fs["FileSystemId"]: fs for fs in self.file_systems},
        )
        for name in wanted:
            if name not in known:
                raise Refused("FileSystemNotFound", f"File system '{name}' does not exist.")
        return _page("FileSystems", [known[name] for name in wanted or known], request, 100)

    def _ListServiceQuotas(self, request: dict[str, Any], region: str) -> dict[str, Any]:
        if request["ServiceCode"] != "sagemaker":
            raise Refused(
                "NoSuchResourceException", f"The service {request['ServiceCode']} does not exist."
            )
        return _page("Quotas", self.quotas, request, 100)

    def _streams(self, request: Mapping[str, Any]) -> dict[str, list[tuple[float, str]]]:
        found: dict[str, list[tuple[float, str]]] = {}
        for life in self.jobs.values():
            found |= life.streams(self.clock)
        # Before an account's first job has logged, the group itself is absent.
        if not found or request.get("logGroupName") != GROUP:
            raise Refused("ResourceNotFoundException", "The specified log group does not exist.")
        return found

    def _DescribeLogStreams(self, request: dict[str, Any], region: str) -> dict[str, Any]:
        prefix = request.get("logStreamNamePrefix", "")
        streams = [
            {"logStreamName": name}
            for name in sorted(self._streams(request))
            if name.startswith(prefix)
        ]
        return _page("logStreams", streams, request, 50, "nextToken", "limit")

    def _GetLogEvents(self, request: dict[str, Any], region: str) -> dict[str, Any]:
        streams = self._streams(request)
        if request["logStreamName"] not in streams:
            raise Refused("ResourceNotFoundException", "The specified log stream does not exist.")
        if not request.get("startFromHead"):
            raise Refused("InvalidParameterException", "read backwards: not played here")
        lines = streams[request["logStreamName"]]
        first = int(request.get("nextToken", "f/0").removeprefix("f/"))
        last = min(first + request.get("limit", self.page), len(lines))
        events = [
            {"timestamp": int(1000 * at), "message": text, "ingestionTime": int(1000 * at)}
            for at, text in lines[first:last]
        ]
        # At the end of a stream the same token comes back.
        return {
            "events": events,
            "nextForwardToken": f"f/{last}",
            "nextBackwardToken": f"b/{first}",
        }


def _page(
    key: str,
    items: list[Any],
    request: Mapping[str, Any],
    size: int,
    token: str = "NextToken",
    limit: str = "MaxResults",
) -> dict[str, Any]:
    first = int(request.get(token, "0"))
    last = first + request.get(limit, size)
    return {key: items[first:last]} | ({token: str(last)} if last < len(items) else {})


class _Handler(BaseHTTPRequestHandler):
    cloud: CloudEndpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        scope = _SCOPE.match(self.headers.get("Authorization", ""))
        try:
            answer = self.cloud.answer(
                self.headers.get("X-Amz-Target", ""), (scope[1], scope[2]) if scope else None, body
            )
        except Refused as refused:
            self._send(refused.status, {"__type": refused.code, "message": refused.message})
            return
        if answer is None:
            self.close_connection = True
        else:
            self._send(200, answer)

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("x-amzn-RequestId", "00000000-0000-0000-0000-000000000000")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

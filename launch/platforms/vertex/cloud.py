"""Calls to Google Cloud for a job: the project, the upload of its code, its submission, and its
cancellation.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from launch.platforms.vertex.job import COMMAND, VertexJob
from launch.platforms.vertex.request import LABEL, default_bucket, parent
from segtrain.errors import ConfigError, SegtrainError

if TYPE_CHECKING:
    from segtrain.platforms.vertex.google_api import GoogleApi

VERTEX = "aiplatform"
# After an unclear answer to a submission, the list of jobs is searched. A new job appears there
# after a moment.
TRIES, SETTLE_S = 4, 5.0
# codes of errors after which the job may have been created
UNCLEAR = ("google-unreachable", "google-not-json")
RESOURCE = re.compile(r"projects/([^/]+)/locations/([^/]+)/customJobs/(\d+)")


@dataclass
class GoogleClients:
    """Clients of Google Cloud's services. ``endpoint``: the address of a test server for all of
    them, such as http://127.0.0.1:PORT; "": Google's own.
    """

    region: str
    endpoint: str = ""
    patience_s: float = 60.0
    _made: dict[str, GoogleApi] = field(default_factory=dict)

    def service(self, name: str, version: str, patience_s: float | None = None) -> GoogleApi:
        from segtrain.platforms.vertex.google_api import GoogleApi, vertex_url

        host = f"{name}.dev" if name.endswith(".pkg") else f"{name}.googleapis.com"
        own = vertex_url(self.region).removesuffix("/v1") if name == VERTEX else f"https://{host}"
        url = f"{self.endpoint or own}/{version}".rstrip("/")
        key = f"{name} {version} {patience_s}"
        if key not in self._made:
            self._made[key] = GoogleApi(url, self.patience_s if patience_s is None else patience_s)
        return self._made[key]

    @property
    def vertex(self) -> GoogleApi:
        return self.service(VERTEX, "v1")

    @property
    def storage(self) -> GoogleApi:
        return self.service("storage", "storage/v1")

    @property
    def logging(self) -> GoogleApi:
        return self.service("logging", "v2")

    @property
    def project(self) -> str:
        """The project of the credentials; "" if they name none."""
        return self.vertex.project or ""


def fill(job: VertexJob, clients: GoogleClients) -> VertexJob:
    """The job with a project: its own, or that of the credentials. Raises ConfigError if neither is
    set.
    """
    project = job.project or clients.project
    if not project:
        raise ConfigError(
            "no project is set, and the credentials name none: give --project ID, or set "
            "GOOGLE_CLOUD_PROJECT",
            code="project-missing",
        )
    return replace(job, project=project)


def split_uri(uri: str) -> tuple[str, str]:
    """``gs://bucket/a/b`` as (``bucket``, ``a/b``). Raises ConfigError for an address that is not
    gs://BUCKET/...
    """
    bucket, _, key = uri.removeprefix("gs://").partition("/")
    if not uri.startswith("gs://") or not bucket:
        raise ConfigError(
            f"{uri!r} is not in Cloud Storage: write gs://BUCKET/FOLDER",
            code="place-not-gs",
            found=uri,
        )
    return bucket, key


def upload(job: VertexJob, clients: GoogleClients, path: Path, uri: str) -> None:
    """Upload one file. Creates the project's default bucket if it does not exist; any other bucket
    must exist.
    """
    bucket, key = split_uri(uri)
    if bucket == default_bucket(job):
        _make(job, clients, bucket)
    from segtrain.platforms.vertex.google_api import NotFound

    api = clients.service("storage", "")
    place = f"upload/storage/v1/b/{quote(bucket)}/o"
    try:
        api.post(place, path.read_bytes(), uploadType="media", name=key)
    except NotFound:
        raise ConfigError(
            f"there is no bucket {bucket!r} for the code ({uri}): gcloud storage buckets create "
            f"gs://{shlex.quote(bucket)} --location={job.region}",
            code="bucket-missing",
            bucket=bucket,
        ) from None


def _make(job: VertexJob, clients: GoogleClients, bucket: str) -> None:
    from segtrain.platforms.vertex.google_api import AlreadyThere, NotFound

    try:
        clients.storage.get(f"b/{quote(bucket)}", fields="name")
    except NotFound:
        body = {
            "name": bucket,
            "location": job.region,
            "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},
        }
        try:
            clients.storage.post("b", body, project=job.project)
        except AlreadyThere:
            # another launcher of this project may have made it just now
            with contextlib.suppress(SegtrainError):
                clients.storage.get(f"b/{quote(bucket)}", fields="name")
                return
            raise ConfigError(
                f"the name of the default bucket, {bucket!r}, belongs to somebody else: "
                "--output gs://BUCKET/FOLDER",
                code="bucket-taken",
                bucket=bucket,
            ) from None


def submit(
    job: VertexJob,
    clients: GoogleClients,
    request: Mapping[str, Any],
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Send the job and return its resource name.

    After an unclear answer, search for the job by its label before sending it again, so that it
    never runs twice. Raises SegtrainError, with the code ``job-maybe-sent`` if it is not known
    whether the job runs.
    """
    once = clients.service(VERTEX, "v1", patience_s=0.0)
    for _ in range(TRIES):
        try:
            return str(once.post(f"{parent(job)}/customJobs", request)["name"])
        except SegtrainError as error:
            if error.code not in UNCLEAR:
                raise
            problem = error
        sleep(SETTLE_S)
        try:
            there = sent_already(job, clients, request)
        except SegtrainError as error:
            problem = error
            break
        if there:
            return there
    name = request["displayName"]
    raise SegtrainError(
        f"{name} may have been sent, and is billed if it runs ({problem}). Stop it: "
        f"{back(name, job.project, job.region, 'stop')}",
        code="job-maybe-sent",
        name=name,
        reason=str(problem),
    ) from None


def sent_already(job: VertexJob, clients: GoogleClients, request: Mapping[str, Any]) -> str:
    """The resource name of the job with the request's label; "" for none."""
    wanted = f'labels.{LABEL}="{request["labels"][LABEL]}"'
    jobs = list(clients.vertex.pages(f"{parent(job)}/customJobs", "customJobs", filter=wanted))
    return str(jobs[0]["name"]) if jobs else ""


def back(number: str, project: str, region: str, action: str = "attach") -> str:
    """The command that follows a job again, or stops it (``action``). ``number``: of the job, or
    its name.
    """
    return (
        f"{COMMAND} --{action} {shlex.quote(number)} --project {shlex.quote(project)} "
        f"--region {shlex.quote(region)}"
    )


def find(project: str, clients: GoogleClients, name: str) -> dict[str, Any]:
    """A job by its number or its display name. Raises ConfigError."""
    from segtrain.platforms.vertex.google_api import NotFound

    folder = f"projects/{project}/locations/{clients.region}/customJobs"
    if name.isdigit():
        try:
            return clients.vertex.get(f"{folder}/{name}")
        except NotFound:
            jobs = []
    else:
        jobs = list(clients.vertex.pages(folder, "customJobs", filter=f'display_name="{name}"'))
    if not jobs:
        raise ConfigError(
            f"there is no job {name!r} in project {project}, region {clients.region}: gcloud ai "
            f"custom-jobs list --project={shlex.quote(project)} "
            f"--region={shlex.quote(clients.region)}",
            code="job-missing",
            found=name,
            project=project,
            region=clients.region,
        )
    return jobs[0]


def cancel(clients: GoogleClients, name: str) -> None:
    clients.vertex.post(f"{name}:cancel", {})

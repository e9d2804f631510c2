"""Submits training to Vertex AI as a custom job: checks it, rehearses it on this machine, sends it,
and follows it.

python launch/vertex.py --machine n1-standard-32 --accelerator NVIDIA_TESLA_T4:4 --hosts 2 --dry-run
python launch/vertex.py --job configs/jobs/vertex.yaml --rehearse
python launch/vertex.py --job configs/jobs/vertex.yaml train.duration=80ep
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    # A script's folder comes first in sys.path, where its files would hide packages such as
    # sagemaker and ray.
    sys.path[0] = str(ROOT)

from launch.core import console  # noqa: E402
from launch.core.findings import agreed, errors, refused, tell  # noqa: E402
from launch.core.flags import refuse_flags  # noqa: E402
from launch.core.job import flag_fields, load_job  # noqa: E402
from launch.platforms.vertex import follow as following  # noqa: E402
from launch.platforms.vertex.arguments import FAULTS, build_parser  # noqa: E402
from launch.platforms.vertex.bundle import build  # noqa: E402
from launch.platforms.vertex.cloud import (  # noqa: E402
    RESOURCE,
    GoogleClients,
    back,
    fill,
    submit,
    upload,
)
from launch.platforms.vertex.job import COMMAND, VertexJob  # noqa: E402
from launch.platforms.vertex.preflight.machines import ranks  # noqa: E402
from launch.platforms.vertex.preflight.online import online  # noqa: E402
from launch.platforms.vertex.prepare import Source, prepare, sound  # noqa: E402
from launch.platforms.vertex.request import DEFAULT_REGION, code_place  # noqa: E402
from segtrain.errors import EXIT_ERROR, ConfigError  # noqa: E402


def main(arguments: list[str] | None = None, command: str = COMMAND) -> int:
    """Run the command line and return its exit code. ``command``: the command's name in the
    help.
    """
    return console.run(_act, build_parser(command), arguments)


def _act(flags: dict[str, Any]) -> int:
    refuse_flags(flags)
    if {"attach", "stop"} & set(flags):
        return _come_back(flags)
    job_flags = dict(flags)
    if flags.get("rehearse") and "job" in flags:
        job_flags.pop("hosts", None)  # the request stays that of the file
    job = load_job(VertexJob, flags.get("job"), job_flags, flags.get("overrides", []))
    if not {"job", "config"} & set(flags):
        job = console.spread(job, ranks(job))
    if flags.get("dry_run"):
        _, request, findings = prepare(job)
        return console.dry_run(json.dumps(request, indent=2), findings)
    return _rehearse(job, flags) if flags.get("rehearse") else _send(job, flags)


def request(job: Source, settings: Sequence[str] = ()) -> dict[str, Any]:
    """The request body for projects.locations.customJobs.create.

    ``job``: a job file, its keys as a mapping, or a VertexJob. ``settings``: section.key=value.
    Sends nothing to Google. Raises ConfigError if a check finds an error, and prints warnings on
    stderr.
    """
    return sound(job, settings)


def _rehearse(job: VertexJob, flags: dict[str, Any]) -> int:
    from launch.platforms.vertex.rehearse.run import rehearse

    job, request, findings = prepare(job)
    if refused(findings, "not rehearsed"):
        return EXIT_ERROR
    spec = console.rehearsal(
        job, flags, FAULTS, "bundle.tar.gz", build, flag_fields(VertexJob, flags).get("hosts")
    )
    return rehearse(job, request, spec, console.out).exit_code


def _send(job: VertexJob, flags: dict[str, Any]) -> int:
    # report what can be checked without a project, before looking for one
    located, _, said = prepare(job)
    if refused([finding for finding in said if finding.code != "placeholder"], "nothing was sent"):
        return EXIT_ERROR
    clients = GoogleClients(located.region)
    job, request, findings = prepare(fill(located, clients))
    if not errors(findings):  # with errors, requests to Google are not needed
        findings += online(job, request, clients)
    if refused(findings, "nothing was sent", said):
        return EXIT_ERROR
    name = request["displayName"]
    if not agreed(f"send {name} to {job.project}, {job.region}?", "yes" in flags):
        return 1
    if job.start == "bundle":
        with tempfile.TemporaryDirectory() as scratch:
            bundle = Path(scratch) / "bundle.tar.gz"
            build(job, bundle)
            upload(job, clients, bundle, code_place(job, name))
    try:
        resource = submit(job, clients, request)
        console.out(f"sent {resource}")
        if "no_follow" not in flags:
            return following.follow(job.project, clients, resource, say=console.out)
    except KeyboardInterrupt:
        stop = back(name, job.project, job.region, "stop")
        tell(f"interrupted: {name} may have been sent, and is billed if it runs. Stop it: {stop}")
        return 130
    console.out(f"follow it: {back(resource.rpartition('/')[2], job.project, job.region)}")
    return 0


def _come_back(flags: dict[str, Any]) -> int:
    from segtrain.platforms.vertex.google_api import known_project, known_region

    console.refuse_others(flags, ("attach", "stop", "project", "region"))
    action = "stop" if "stop" in flags else "attach"
    name, project, region = flags[action], flags.get("project", ""), flags.get("region", "")
    if whole := RESOURCE.fullmatch(name):  # as it was printed when the job was sent
        project, place, name = whole.groups()
        if region not in ("", place):
            raise ConfigError(
                f"--{action} {whole[0]} is in {place}: leave --region {region} out",
                code="job-elsewhere",
                found=region,
                expected=place,
            )
        region = place
    clients = GoogleClients(region or known_region() or DEFAULT_REGION)
    project = fill(VertexJob(project=project or known_project()), clients).project
    if action == "stop":
        return following.stop(project, clients, name, console.out)
    return following.follow(project, clients, name, say=console.out)


if __name__ == "__main__":
    console.script(main)

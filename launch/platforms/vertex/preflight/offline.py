"""The checks of a Vertex AI job that need no account, and ask Google nothing."""

from __future__ import annotations

from collections.abc import Iterator

from launch.core import job_checks
from launch.core.findings import Finding, error, warning
from launch.core.job_checks import Files
from launch.core.requirements import requirements
from launch.platforms.vertex import bundle
from launch.platforms.vertex.images import VertexImageChoice
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.preflight.machines import machines
from launch.platforms.vertex.preflight.names import names, network, times
from launch.platforms.vertex.preflight.places import places
from launch.platforms.vertex.preflight.training import training


def offline(job: VertexJob, *, choice: VertexImageChoice) -> list[Finding]:
    """All offline findings, with those about the image (``choice``). A check that cannot run here
    leaves a note.
    """
    findings = [
        *names(job),
        *machines(job),
        *places(job),
        *times(job),
        *network(job),
        *choice.findings,
    ]
    files, missing = job_checks.bundled(job, lambda: dict(bundle.contents(job)))
    findings += missing
    if files:
        findings += _requirements(job, files, choice)
    if job.program != "train.py":
        findings.append(
            error(
                "program",
                f"program={job.program!r}: on Vertex AI the ranks are processes of "
                "segtrain.platforms.vertex",
                "--start image with an image of your own that starts your program",
            )
        )
    findings += training(job, set(files))
    return list(dict.fromkeys(findings))


def _requirements(job: VertexJob, files: Files, choice: VertexImageChoice) -> Iterator[Finding]:
    text = files["requirements.txt"]
    assert isinstance(text, bytes)
    yield from requirements(text.decode(), choice.uri, choice.torch)
    if job.requirements and job.start == "image":
        yield warning(
            "requirements-unused",
            f"requirements={job.requirements!r} with start=image: nothing is installed there",
            "put the packages into the image",
        )

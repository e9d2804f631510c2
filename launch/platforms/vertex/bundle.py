"""The code bundle of a Vertex AI job: the shared bundle, plus the package that reads and writes
buckets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launch.core import bundle
from launch.core.forecast import PLAN, plan_file
from launch.platforms.vertex.job import VertexJob


def contents(job: VertexJob) -> list[tuple[str, Path | bytes]]:
    """The files of the bundle, as ``launch.core.bundle.contents`` returns them. Every job needs the
    package for buckets: event files and the model go to one.
    """
    return bundle.contents(job, packages=("buckets",))


def build(job: VertexJob, target: Path) -> dict[str, Any]:
    """Write the bundle of a job, with what is predicted for it. Returns the number of files, bytes,
    and the SHA-256.
    """
    from launch.platforms.vertex.preflight.training import predicted, read

    files = contents(job)
    if job.like and (plan := plan_file(job, read(job).config, predicted)):
        files.append((PLAN, plan))
    return bundle.write(files, target)

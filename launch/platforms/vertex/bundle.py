"""The code bundle of a Vertex AI job: the shared bundle, plus the package that reads and writes
buckets.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from launch.core import bundle
from launch.core.forecast import PLAN
from launch.platforms.vertex.job import VertexJob


def contents(root: Path, job: VertexJob) -> list[tuple[str, Path | bytes]]:
    """The files of the bundle, as ``launch.core.bundle.contents`` returns them."""
    return bundle.contents(root, job, packages=packages(root))


def build(root: Path, job: VertexJob, target: Path) -> dict[str, Any]:
    """Write the bundle of a job, with what is predicted for it. Returns the number of files, bytes,
    and the SHA-256.
    """
    from launch.platforms.vertex.preflight.training import plan_file

    plan = plan_file(job, root)
    more: list[tuple[str, Path | bytes]] = [(PLAN, plan)] if plan else []
    return bundle.write(sorted([*contents(root, job), *more], key=lambda item: item[0]), target)


def packages(root: Path) -> list[str]:
    """The package that reads and writes buckets. Every job needs it: event files and the model go
    to a bucket.
    """
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    extra = re.search(r'^buckets = \["([^"]+)"\]', text, re.MULTILINE)
    return [extra[1]] if extra else []

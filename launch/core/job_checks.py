"""Checks that the jobs of several platforms need: times, restarts, results inside the data,
secrets, the bundle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.core import preflight
from launch.core.findings import Finding, error, warning
from launch.core.forecast import plan_findings
from launch.core.job import Job, config_file
from segtrain.errors import SegtrainError

if TYPE_CHECKING:
    from segtrain.config import Config

Files = Mapping[str, "Path | bytes"]


def short_run(job: Job, least_s: int) -> Iterator[Finding]:
    if job.max_run < least_s:
        yield warning(
            "max-run-short",
            f"max_run={job.max_run} s is short: the start alone takes minutes, and a number "
            "without a unit is seconds",
            f"--max-run {job.max_run}{'h' if job.max_run <= 72 else 'm'}, if that was meant",
        )


def resume_off(config: Config, level: Callable[..., Finding], restart: str) -> Iterator[Finding]:
    """A finding of ``level`` if a ``restart`` would begin the training again."""
    if not config.checkpoint.resume:
        yield level(
            "resume-off",
            f"checkpoint.resume=false: {restart} would begin the training again",
            "leave checkpoint.resume out",
        )


def results_in_data(key: str, data: str, results: Mapping[str, str]) -> Iterator[Finding]:
    """A warning for each place of results inside the data of ``key``: a later run would read them
    as data.
    """
    for name, place in results.items():
        if place and data and f"{place.rstrip('/')}/".startswith(f"{data.rstrip('/')}/"):
            yield warning(
                "results-in-data",
                f"{name}={place!r} is inside {key}={data!r}: a later run would read what this "
                "one has written",
                f"give --{name} a place beside the data",
            )


def secrets(places: Mapping[str, Mapping[str, Any]], cure: str) -> Iterator[Finding]:
    """A warning for each value that looks like a secret, by the kind of its place."""
    for kind, values in places.items():
        for key, value in values.items():
            if preflight.looks_secret(key, str(value)):
                yield warning(
                    "secret",
                    f"{kind} {key}=(hidden) looks like a secret: everybody who may see the job "
                    "can read it, forever",
                    cure,
                )


def bundled(job: Job, root: Path, contents: Callable[[], Files]) -> tuple[Files, list[Finding]]:
    """The files of the code bundle, or an error why it cannot be made."""
    try:
        return contents(), []
    except SegtrainError as problem:
        # the check of the config reports the missing file
        if not os.path.isfile(config_file(job, root)):
            return {}, []
        return {}, [error("bundle", str(problem), "fix it in the job, or restore the file")]


def trains(
    job: Job,
    config: Config,
    machines: preflight.Machines,
    predicted: Callable[[Any, Config], Any],
) -> Iterator[Finding]:
    """Whether the config suits the machines, and what is predicted of time and cost."""
    yield from preflight.batch(config, machines)
    yield from preflight.hardware(config, machines)
    yield from plan_findings(partial(predicted, job, config), config)

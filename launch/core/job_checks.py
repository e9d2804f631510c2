"""Checks that the jobs of several platforms need: times, restarts, results inside the data,
secrets, the bundle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.core import preflight
from launch.core.findings import Finding, error, warning
from launch.core.forecast import Predictor, plan_findings
from launch.core.job import ALONE, Job, config_file
from segtrain.errors import SegtrainError

if TYPE_CHECKING:
    from segtrain.config import Config

Files = Mapping[str, "Path | bytes"]


def short_run(job: Job, least_s: int) -> Iterator[Finding]:
    if job.max_run < least_s:
        yield (warning if job.max_run else error)(
            "max-run-short",
            f"max_run={job.max_run} s is short: the start alone takes minutes, and a number "
            "without a unit is seconds",
            f"--max-run {job.max_run or 1}{'h' if job.max_run <= 72 else 'm'}, if that was meant",
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


def bundled(job: Job, contents: Callable[[], Files]) -> tuple[Files, list[Finding]]:
    """The files of the code bundle, or an error why it cannot be made."""
    try:
        return contents(), []
    except SegtrainError as problem:
        # the check of the config reports the missing file
        if not os.path.isfile(config_file(job)):
            return {}, []
        return {}, [error("bundle", str(problem), "fix it in the job, or restore the file")]


def trains(
    job: Job,
    read: preflight.Read,
    machines: preflight.Machines,
    predicted: Predictor,
    bundled: Collection[str],
) -> Iterator[Finding]:
    """Whether the config can be read, suits the machines, and names files that travel with the
    job; and what is predicted of time and cost. ``bundled``: the names of these files, if known.
    """
    yield from read.findings
    if read.config is not None:
        yield from preflight.batch(read.config, machines)
        yield from preflight.hardware(read.config, machines)
        yield from plan_findings(job, read.config, predicted)
        yield from preflight.trackers(job, read.config)
        yield from preflight.files(job, bundled)


def missing_weights(
    job: Job,
    config: Config,
    held: Callable[[str], bool],
    mounted: str,
    cure: Callable[[str, str], str],
) -> Iterator[Finding]:
    """A finding for each place of weights that the container does not have: the bundle has only
    code. ``held``: whether the job brings a place; ``mounted``: a folder that hides what the image
    has there; ``cure``: of a setting and its place.
    """
    for key, place in preflight.files_of_weights(config):
        if held(place):
            continue
        own = bool(job.image) and os.path.isabs(place) and not place.startswith(mounted)
        yield (warning if own else error)(
            "weights-missing",
            f"{key}={place!r}: weights do not travel with the code, and the container has no such "
            f"file{f', unless {job.image} holds it' if own else ''}",
            cure(key, place),
        )


def one_process(job: Job, hosts: int, gpus: int, machine: str) -> Iterator[Finding]:
    """Findings for a strategy of one process on several hosts, or on a host of several GPUs."""
    if job.strategy in ALONE and hosts > 1:
        yield error(
            "strategy-hosts",
            f"strategy={job.strategy} is one process, but {hosts} hosts are asked for: each would "
            "train a model of its own",
            "--strategy ddp, or one host",
        )
    elif job.strategy == "single" and gpus > 1:
        yield warning(
            "gpus-idle",
            f"strategy=single uses one of the {gpus} GPUs of {machine}; all are paid for",
            "--strategy ddp, or a type with one GPU",
        )


def no_smddp(job: Job) -> Iterator[Finding]:
    if job.strategy == "smddp":
        yield error(
            "strategy-smddp", "strategy=smddp is a library of SageMaker's images", "--strategy ddp"
        )


def unset(settings: Sequence[str], level: Callable[..., Finding]) -> Iterator[Finding]:
    """A finding of ``level`` for settings that still have a placeholder, each with its value."""
    if settings:
        yield level(
            "placeholder",
            f"still to be set before this can be sent: {', '.join(settings)}",
            "name yours, by flags or in the job's file",
        )

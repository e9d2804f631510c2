"""Checks of the training config for a Slurm job: its ranks, its data, its time, and the run folders
of an array.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launch.core import job_checks, preflight
from launch.core import job_values as values
from launch.core.findings import Finding, error, note, warning
from launch.core.forecast import on_nodes, plan_file, plan_findings
from launch.core.job import ALONE
from launch.core.preflight import Machines, Read, files_of_weights
from launch.platforms.slurm.job import SlurmJob
from segtrain.errors import ConfigError

if TYPE_CHECKING:
    from segtrain.config import Config
    from segtrain.insight.plan.offers import Offers


def offline(job: SlurmJob) -> list[Finding]:
    """Everything that can be found wrong without asking the cluster."""
    findings = [*_strategy(job), *_time(job), *_array(job), *preflight.variables(job)]
    for task in job.tasks or ((),):
        try:
            findings += _trained(_of_task(job, task))
        except ConfigError as problem:
            findings.append(error("config", str(problem), "fix the setting of the array"))
    return list(dict.fromkeys(findings))


def plan_files(job: SlurmJob) -> list[tuple[Path, bytes]]:
    """What is predicted for the run in each run folder of the job; empty for a run without a
    prediction.
    """
    files = []
    for run, task in zip(job.runs(), job.tasks or ((),)):
        task_job = _of_task(job, task)
        config = _read(task_job).config
        files.append((run, plan_file(task_job, config, _predicted)))
    return files


def _of_task(job: SlurmJob, task: tuple[str, ...]) -> SlurmJob:
    """The job of one task of an array. Raises ConfigError."""
    pairs = [setting.partition("=") for setting in task]
    settings = {key: values.scalar(text, key) for key, _, text in pairs}
    return replace(job, settings={**job.settings, **settings})


def _read(job: SlurmJob) -> Read:
    return preflight.read_config(job, job.data, "/FOLDER")


def _predicted(job: SlurmJob, config: Config) -> Offers:
    gpu = job.gpus.type if job.gpus else None
    return on_nodes(job, config, job.nodes, job.local_ranks, job.cpus * job.local_ranks, gpu)


def _trained(job: SlurmJob) -> Iterator[Finding]:
    """What is wrong with the training of a job, or of one task of an array."""
    read = _read(job)
    yield from read.findings
    if read.config is None:
        return
    yield from preflight.data(
        job, job.data, read, "--data FOLDER, on a file system that all nodes see"
    )
    yield from _weights(read.config)
    yield from preflight.download(
        read.config, note, "without a network, nodes need it in HF_HOME or a file", ""
    )
    hosts = machines(job)
    yield from preflight.batch(read.config, hosts)
    yield from preflight.hardware(read.config, hosts)
    if job.requeue:
        yield from job_checks.resume_off(read.config, error, "a job that is queued again")
    if job.like:
        yield from plan_findings(job, read.config, _predicted)


def machines(job: SlurmJob) -> Machines:
    gpus = job.gpus.count if job.gpus else 0
    name = f"partition {job.partition}" if job.partition else "nodes of the default partition"
    hosts = Machines(name, job.nodes, job.ranks, job.local_ranks, gpus, job.cpus * job.local_ranks)
    if job.gpus is None:
        return replace(hosts, type="a job that asks for no GPU")
    return replace(hosts, gpu=job.gpus.type)


def _strategy(job: SlurmJob) -> Iterator[Finding]:
    yield from job_checks.no_smddp(job)
    if job.strategy in ALONE and job.ranks > 1:
        yield error(
            "strategy-ranks",
            f"strategy={job.strategy} is one process, and the job starts {job.ranks}: each would "
            "train a model of its own in the same run folder",
            "--strategy ddp" + (", or --procs 1" if job.nodes == 1 else ", or --nodes 1 --procs 1"),
        )
    elif job.strategy == "single" and job.gpus and job.gpus.count > 1:
        cure = "--gpus 1, or --strategy ddp without --procs"
        yield warning("gpus-idle", f"strategy=single uses one of {job.gpus.count} GPUs", cure)


def _time(job: SlurmJob) -> Iterator[Finding]:
    limit = -(-job.max_run // 60) * 60
    if not job.notice:
        yield error(
            "notice-none",
            "notice=0: the time limit would end the job without a signal, and the steps since its "
            "last checkpoint are trained again",
            "--notice 120",
        )
    elif job.notice >= limit - 60:
        yield error(
            "notice-over-limit",
            f"notice={job.notice} s before a limit of {limit} s (Slurm may be 60 s early): the job "
            "would stop as soon as it starts, and never get anywhere",
            f"--max-run {job.notice + 600}, or a shorter --notice",
        )
    elif job.notice < 20:
        yield warning(
            "notice-short",
            f"notice={job.notice} s: a checkpoint may take longer, and what is not saved is "
            "trained again",
            "--notice 120",
        )
    if job.notice < limit - 60:
        yield from job_checks.short_run(job, 300)


def _array(job: SlurmJob) -> Iterator[Finding]:
    for task in job.tasks:
        for setting in task:
            if setting.partition("=")[0] == "out":
                yield error(
                    "array-out",
                    f"array: {setting}: the run folder of a task is "
                    f"{job.output}/{job.name}-SETTINGS, and two tasks in "
                    "one folder overwrite each other's checkpoints",
                    "leave out= away",
                )
            elif setting.startswith("parallel.strategy="):
                yield error(
                    "array-strategy", f"array: {setting}: all tasks have one strategy", "--strategy"
                )
            elif (key := setting.partition("=")[0]) in job.settings:
                yield warning(
                    "array-over-setting",
                    f"{key}={job.settings[key]}: the tasks of the array have values of their own",
                    f"leave out {key}, or the array",
                )


def _weights(config: Config) -> Iterator[Finding]:
    for key, place in files_of_weights(config):
        if not os.path.exists(place):
            yield error(
                "weights-missing",
                f"{key}={place!r}: there is no such file",
                "the path of one that nodes see",
            )

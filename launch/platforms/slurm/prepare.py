"""A Slurm job made ready to be submitted: what is wrong with its description, its script, and its
files.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

from launch.core.job import config_file
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.script import (
    config_for,
    flags,
    job_folder,
    options,
    sbatch_script,
    script_folder,
    srun,
    training,
)
from segtrain.errors import ConfigError

SCRIPT = "job.sh"


def refuse(job: SlurmJob, terminal: bool = False) -> None:
    """Raises ConfigError for a job that cannot be written as a script, or, with ``terminal``,
    trained in this one.
    """
    for key, fix in (
        ("image", "start the container in --setup, or give --python a wrapper that does"),
        ("requirements", "install them into the environment that all nodes see"),
        ("program", "leave it out; to run another program, edit the script that --dry-run prints"),
    ):
        value = getattr(job, key)
        if value != getattr(SlurmJob(), key):
            text = (
                f"{key}={value!r}: a Slurm job runs `segtrain train` in an environment that "
                f"is there already: {fix}"
            )
            raise ConfigError(text, code="not-on-slurm", key=key, found=value)
    if terminal and job.tasks:
        raise ConfigError(
            "--interactive runs one job in this terminal, and an array is several: leave "
            "--interactive, or array and seeds, out",
            code="flags-together",
            found=["--interactive", "--array"],
        )
    if job.bind == "task" and job.start == "node":
        raise ConfigError(
            "bind=task with start=node: torchrun starts the processes of a node, and each must see "
            "all its GPUs: --bind node, or --start task",
            code="bind-torchrun",
            found=job.bind,
        )
    if job.array and job.seeds:
        raise ConfigError(
            "array and seeds both list the tasks: write the seeds into array, as train.seed=1",
            code="tasks-twice",
            found=list(job.seeds),
        )
    folders = [run.name for run in job.runs()]
    for folder in folders:
        if folders.count(folder) > 1:
            raise ConfigError(
                f"two tasks of the array have the run folder {folder}: give each its own settings",
                code="tasks-equal",
                found=folder,
            )
    if "out" in job.settings:
        text = f"out={job.settings['out']}: the run folder is OUTPUT/NAME: use --output and --name"
        raise ConfigError(text, code="out-on-slurm", found=job.settings["out"])
    for word in (*flags(job), f"--config={job.config}"):
        if re.search(r"[\x00-\x1f\x7f]", word):
            text = (
                f"{word!r}: a line of the script: take the line break or control character "
                "out of the name"
            )
            raise ConfigError(text, code="flag-line-break", found=word)


def write(job: SlurmJob) -> Path:
    """Write the script, and the config beside it. Returns the script's place. Raises
    ConfigError.
    """
    from segtrain.base.files import writing

    folder = script_folder(job)
    script = folder / SCRIPT
    texts = {script: sbatch_script(job).encode()}
    try:
        if job.config:
            texts[Path(config_for(job))] = config_file(job).read_bytes()
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in texts.items():
            with writing(path) as file:
                file.write(content)
        script.chmod(0o755)
    except OSError as error:
        raise ConfigError(
            f"cannot write the job's script into {folder}: {error.strerror}: choose another "
            "--output",
            code="output-not-writable",
            file=str(folder),
        ) from None
    return script


def by_hand(job: SlurmJob) -> str:
    """Shell that makes what a script of a dry run needs, the folder of its log and its copy of the
    config, and submits it.
    """
    words = ["mkdir", "-p", str(script_folder(job) if job.config else job_folder(job))]
    copy = ["cp", str(config_file(job).resolve()), config_for(job)]
    submit = ["sbatch", *dependency(job), "FILE"]
    return " && ".join(map(shlex.join, [words, *([copy] if job.config else []), submit]))


def dependency(job: SlurmJob) -> list[str]:
    """The flags of sbatch for the job that this one waits for."""
    return [f"--dependency={job.after}", "--kill-on-invalid-dep=yes"] if job.after else []


def interactive(job: SlurmJob, inside: bool) -> list[str]:
    """The command that trains in this terminal. ``inside``: in an allocation that is there
    already.
    """
    job = replace(job, start="task")
    config = str(config_file(job).resolve()) if job.config else ""
    # An allocation that is there may be of another size.
    size = [f"--nodes={job.nodes}", f"--ntasks={job.ranks}", f"--ntasks-per-node={job.local_ranks}"]
    # Ctrl-C goes to the ranks at once, which save their state.
    ranks = [*srun(job), *size, "--disable-status", *training(job, config), f"out={job.runs()[0]}"]
    return ranks if inside else ["salloc", *options(job), *ranks]

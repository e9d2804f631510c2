"""Command-line flags for Slurm jobs. Only given flags are in the result; the job file decides about
the others.
"""

from __future__ import annotations

import argparse

from launch.core.flags import FlagParser
from launch.platforms.slurm.job import SlurmJob

ACTIONS = ("dry_run", "interactive", "attach", "stop", "no_follow", "no_probe")
EPILOG = """section.key=value changes a setting of the training config, as with `segtrain train`.

--dry-run prints the sbatch script, which is plain shell: keep it, edit it, and submit it with
sbatch. If its time limit, a preemption, or the failure of a node stops a job, it queues itself
again and goes on where it was.
"""
# Names of sbatch's flags -> names here.
CALLED_HERE = {
    "--job-name": "--name",
    "--time": "--max-run",
    "--gres": "--gpus",
    "--gpus-per-node": "--gpus",
    "--gpus-per-task": "--gpus with --bind task",
    "--gpu-bind": "--bind",
    "--ntasks": "--nodes and --procs",
    "--ntasks-per-node": "--procs",
    "--cpus-per-task": "--cpus",
    "--mem": "--memory",
    "--mem-per-cpu": "--memory",
    "--mem-per-gpu": "--memory",
    "--dependency": "--after",
    "--signal": "--notice",
    "--requeue": "requeue in the job file",
    "--no-requeue": "requeue: false in the job file",
    "--open-mode": "nothing: a restart appends to the log",
    "--chdir": "the folder in which you start this command",
    "--test-only": "--dry-run",
    "--wait": "the default: this command follows the job",
}
# Flags of other tools, and those of sbatch that the script does not set.
OF_OTHERS = {
    "--mail-type": "--sbatch=--mail-type=...",
    "--mail-user": "--sbatch=--mail-user=...",
    "--export": "--env",
    "--wrap": "section.key=value",
    "--hosts": "--nodes",
    "--instances": "--nodes",
}


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of all flags. A flag that is not given leaves no attribute, so that the job file
    decides.
    """
    description = "Train on a Slurm cluster: check a job, submit it, and follow it."
    return FlagParser(command, SlurmJob, ACTIONS, description, EPILOG, {**CALLED_HERE, **OF_OTHERS})

"""One command from the head node of a Slurm cluster to a training job: look first, then submit and
follow.

python launch/slurm.py --partition gpu --nodes 2 --gpus 4 --dry-run
python launch/slurm.py --job configs/jobs/slurm.yaml train.duration=80ep
python launch/slurm.py --partition gpu --gpus 1 --interactive
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    # A script's folder comes first in sys.path, where its files would hide packages such as
    # sagemaker and ray.
    sys.path[0] = str(ROOT)

from launch.core import console  # noqa: E402
from launch.core.findings import refused, tell  # noqa: E402
from launch.core.flags import refuse_flags  # noqa: E402
from launch.core.forecast import keep  # noqa: E402
from launch.core.job import load_job  # noqa: E402
from launch.platforms.slurm import follow as following  # noqa: E402
from launch.platforms.slurm.arguments import build_parser  # noqa: E402
from launch.platforms.slurm.job import COMMAND, SlurmJob  # noqa: E402
from launch.platforms.slurm.preflight.online import online  # noqa: E402
from launch.platforms.slurm.preflight.training import offline, plan_files  # noqa: E402
from launch.platforms.slurm.prepare import by_hand, dependency, interactive, refuse, write  # noqa: E402
from launch.platforms.slurm.script import environment, sbatch_script  # noqa: E402
from launch.platforms.slurm.tools import submit  # noqa: E402
from segtrain.errors import EXIT_ERROR, ConfigError  # noqa: E402


def main(arguments: list[str] | None = None, command: str = COMMAND) -> int:
    """The command line. ``command``: how it was called, for the help."""
    return console.run(_act, build_parser(command), arguments)


def _act(flags: dict[str, Any]) -> int:
    refuse_flags(flags, ())
    if {"attach", "stop"} & set(flags):
        return _come_back(flags)
    job = load_job(SlurmJob, flags.get("job"), flags, flags.get("overrides", []))
    refuse(job, terminal="interactive" in flags)
    if flags.get("dry_run"):
        return _dry_run(job, flags)
    return _interactive(job) if flags.get("interactive") else _send(job, flags)


def _dry_run(job: SlurmJob, flags: dict[str, Any]) -> int:
    """The script on stdout, what is wrong with it on stderr."""
    findings = online(job, probe=False, terminal="interactive" in flags)
    if flags.get("interactive"):
        _say_left_out(job)
        return console.dry_run(shlex.join(interactive(job, "SLURM_JOB_ID" in os.environ)), findings)
    by_hand_too = f"to submit it by hand: {by_hand(job)}"
    return console.dry_run(sbatch_script(job).rstrip("\n"), findings, by_hand_too)


def _interactive(job: SlurmJob) -> int:
    """Become salloc and srun, which train in this terminal."""
    inside = "SLURM_JOB_ID" in os.environ
    if refused(offline(job) if inside else online(job, probe=False, terminal=True), "not started"):
        return EXIT_ERROR
    words = interactive(job, inside)
    _say_left_out(job)
    _keep_plans(job)
    tell(shlex.join(words))
    variables = {key: os.path.expandvars(value) for key, value in environment(job).items()}
    if "PYTHONPATH" in variables:
        variables["PYTHONPATH"] = os.pathsep.join(
            [variables["PYTHONPATH"], *filter(None, [os.environ.get("PYTHONPATH")])]
        )
    os.environ.update(variables)
    try:
        os.execvp(words[0], words)
    except FileNotFoundError:
        text = f"there is no {words[0]} here: run this on a host of the Slurm cluster"
        raise ConfigError(text, code="slurm-missing", found=words[0]) from None


def _say_left_out(job: SlurmJob) -> None:
    """Name the parts of a batch script that an interactive job does not have."""
    for flag, present in (
        ("--setup", job.setup),
        ("--after", job.after),
        ("--start node", job.start == "node"),
    ):
        if present:
            tell(f"note: {flag} is for batch jobs alone: nothing of it is done here")


def _send(job: SlurmJob, flags: dict[str, Any]) -> int:
    if refused(online(job, probe="no_probe" not in flags), "nothing was submitted"):
        return EXIT_ERROR
    script = write(job)
    _keep_plans(job)
    try:
        number = submit(script, dependency(job))
    except KeyboardInterrupt:
        tell(
            "interrupted: the job may have been submitted: `squeue --me` shows it, scancel stops it"
        )
        return 130
    console.out(
        f"submitted job {number} with {script}; run folder {', '.join(map(str, job.runs()))}"
    )
    if flags.get("no_follow"):
        console.out(f"follow it: {COMMAND} --attach {number}    stop it: {COMMAND} --stop {number}")
        return 0
    return following.follow(number, console.out)


def _keep_plans(job: SlurmJob) -> None:
    """Write what is predicted into the run folders, for `segtrain plan --record`."""
    for run, plan in plan_files(job) if job.like else ():
        keep(plan, run)


def _come_back(flags: dict[str, Any]) -> int:
    console.refuse_others(flags, ("attach", "stop"))
    for key in ("stop", "attach"):
        if key in flags and not re.fullmatch(r"\d+(_\d+)?", flags[key]):
            text = f"--{key} {flags[key]!r}: must be the number of a job, such as 4711 or 4711_2"
            raise ConfigError(text, code="job-number", found=flags[key])
    if "stop" in flags:
        return following.stop(flags["stop"], console.out)
    return following.follow(flags["attach"], console.out)


if __name__ == "__main__":
    console.script(main)

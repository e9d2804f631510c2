"""What comes along from the host that submits (variables, limits), and the flags that the script
already has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

from launch.core.findings import Finding, error, warning
from launch.platforms.slurm.arguments import CALLED_HERE
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.preflight.state import SlurmState

# Variables of sbatch that win against the lines of a script -> the field of a job that they may
# stand for.
STAND_FOR = {
    "SBATCH_PARTITION": "partition",
    "SBATCH_ACCOUNT": "account",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_CONSTRAINT": "constraint",
}
# Those that change what the script relies on.
OVERRIDE = (
    *(
        "SBATCH_TIMELIMIT",
        "SBATCH_SIGNAL",
        "SBATCH_NO_REQUEUE",
        "SBATCH_REQUEUE",
        "SBATCH_WAIT",
        "SBATCH_OPEN_MODE",
    ),
    *(
        "SBATCH_OUTPUT",
        "SBATCH_ERROR",
        "SBATCH_ARRAY_INX",
        "SBATCH_JOB_NAME",
        "SBATCH_GRES",
        "SBATCH_GPUS",
    ),
    *("SBATCH_GPUS_PER_NODE", "SBATCH_GPUS_PER_TASK", "SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU"),
    *("SBATCH_MEM_PER_GPU", "SBATCH_CPUS_PER_TASK"),
)
# Short flags of sbatch that the script has by itself, or that change what it relies on, and their
# long names.
SHORT = {
    "-J": "--job-name",
    "-p": "--partition",
    "-A": "--account",
    "-q": "--qos",
    "-N": "--nodes",
    "-n": "--ntasks",
    "-c": "--cpus-per-task",
    "-G": "--gpus",
    "-W": "--wait",
    "-t": "--time",
    "-C": "--constraint",
    "-w": "--nodelist",
    "-x": "--exclude",
    "-o": "--output",
    "-D": "--chdir",
    "-a": "--array",
    "-d": "--dependency",
}
# Limits that Slurm carries to the ranks -> code, flag of ulimit, unit, and what a rank needs; None:
# no limit at all.
LIMITS = {
    "CPU": ("cpu", "-t", "s of CPU time", None),
    "AS": ("memory", "-v", "bytes of address space", None),
    "DATA": ("memory", "-d", "bytes of data", None),
    "FSIZE": ("file-size", "-f", "bytes in a file", None),
    "NPROC": ("processes", "-u", "processes and threads", 1024),
    "NOFILE": ("files", "-n", "open files", 4096),
    "MEMLOCK": ("locked", "-l", "bytes of locked memory", 64 * 2**20),
}


@dataclass(frozen=True)
class SubmitHost:
    """``limits``: name -> soft and hard limit, None for none; ``command``: sbatch or salloc, each
    of which has variables of its own.
    """

    folder: Path = field(default_factory=Path.cwd)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    limits: Mapping[str, tuple[int | None, int | None]] = field(default_factory=lambda: _limits())
    command: str = "sbatch"


def _limits() -> dict[str, tuple[int | None, int | None]]:
    """Those of this process; {} on a system without them."""
    try:
        import resource
    except ImportError:
        return {}
    limits = {}
    for name in LIMITS:
        soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        limits[name] = (None if soft < 0 else soft, None if hard < 0 else hard)
    return limits


def completed(job: SlurmJob, here: SubmitHost) -> SlurmJob:
    """The job as Slurm reads it: with the partition and so on of the user's variables, where it
    names none.
    """
    names = {name.replace("SBATCH", here.command.upper()): key for name, key in STAND_FOR.items()}
    defaults: dict[str, Any] = {
        key: here.environ[name] for name, key in names.items() if here.environ.get(name)
    }
    return replace(job, **{key: text for key, text in defaults.items() if not getattr(job, key)})


def variables(job: SlurmJob, here: SubmitHost) -> Iterator[Finding]:
    if here.command == "salloc":  # whose flags win against its variables
        return
    for name, key in STAND_FOR.items():
        value = here.environ.get(name, "")
        if value and value != getattr(job, key):
            yield error(
                "sbatch-variable",
                f"{name}={value} is set, and wins against {key}={getattr(job, key)!r} in a script",
                f"unset {name}, or --{key} {value}",
            )
    meant = "SBATCH_REQUEUE" if job.requeue else "SBATCH_NO_REQUEUE"
    for name in OVERRIDE:
        if name in here.environ and name != meant:
            yield error(
                "sbatch-variable",
                f"{name}={here.environ[name]} is set, and wins against the script, which "
                "relies on its own",
                f"unset {name}, and use a flag of this command",
            )
    export = here.environ.get("SBATCH_EXPORT", "ALL")
    exports = [flag.partition("=")[2] for flag in job.sbatch if flag.startswith("--export=")]
    for text in (*exports, *([export] if export != "ALL" else [])):
        if not text.startswith("ALL"):
            yield warning(
                "export",
                f"export={text}: of the variables of your shell, the training gets only what a "
                "login gives it",
                "leave it out, or name what the training needs with --env KEY=VALUE and --setup",
            )
    inside = here.environ.get("SLURM_JOB_ID")
    if inside:
        yield warning(
            "inside-a-job",
            f"this is inside job {inside}: its variables (SLURM_*) come along with a job that "
            "is submitted here",
            "submit on the login node, or use --interactive to train in this allocation",
        )


def flags(job: SlurmJob) -> Iterator[Finding]:
    for text in job.sbatch:
        name, value = [*re.split(r"[= ]", text, maxsplit=1), ""][:2]
        own = _own(SHORT.get(text[:2], name))
        if not text.startswith("-"):
            yield error(
                "sbatch-flag-form",
                f"sbatch={text!r}: sbatch would stop at this line",
                "--sbatch=--mail-type=END",
            )
        elif own:
            cure = CALLED_HERE.get(own, own)
            yield error(
                "sbatch-flag", f"sbatch={text!r}: the script has a line for this already", cure
            )
        elif name in ("--error", "-e") and value and not os.path.isdir(Path(value).parent):
            yield error(
                "log-folder",
                f"sbatch={text!r}: there is no folder {Path(value).parent}, so that Slurm fails "
                "the job at once, and without a log",
                f"mkdir -p {quote(str(Path(value).parent))}, or leave it out: the log lies in "
                "the run folder",
            )


def _own(name: str) -> str:
    """The flag that the script has by itself for one of sbatch, whose beginning sbatch takes for
    the flag; or "".
    """
    for own in (*CALLED_HERE, *SHORT.values(), "--reservation"):
        if name == own or (len(name) > 4 and own.startswith(name)):
            return own
    return ""


def limits(job: SlurmJob, here: SubmitHost, cluster: SlurmState) -> Iterator[Finding]:
    """Limits of this shell that Slurm gives to the ranks."""
    carried = cluster.config.get("PropagateResourceLimits", "ALL").upper()
    spared = cluster.config.get("PropagateResourceLimitsExcept", "").upper()
    registers = job.efa or job.interface.startswith("ib")  # memory, which must be locked
    for name, (soft, hard) in here.limits.items():
        code, flag, unit, least = LIMITS[name]
        limit = hard if name == "NOFILE" else soft  # the script raises the soft one
        alone = carried not in ("ALL", "(NULL)") and name not in carried.split(",")
        if (
            limit is None
            or alone
            or name in spared.split(",")
            or (name == "MEMLOCK" and not registers)
        ):
            continue
        if least is None or limit < least:
            yield (error if name == "CPU" else warning)(
                f"limit-{code}",
                f"this shell allows a process {limit} {unit} (ulimit {flag}), and Slurm carries "
                "the limit to the nodes (PropagateResourceLimits)",
                f"ulimit {flag} unlimited, on a host that allows it, then submit again",
            )

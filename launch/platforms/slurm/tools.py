"""Calls of Slurm's own commands: sbatch, scontrol, squeue, scancel. An answer is text; a refusal is
a ConfigError.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from segtrain.errors import ConfigError, SegtrainError

TIMEOUT_S = 60.0
# What scontrol shows of a job: KEY=VALUE words, of which values may hold spaces.
_FIELD = re.compile(r"(?:^| )([A-Za-z][\w:/]*)=")
AWAY = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "Zero Bytes were transmitted",
)


def ask(*command: str) -> str:
    """The output of a command of Slurm. Raises ConfigError where it is missing, SegtrainError where
    it fails.
    """
    if shutil.which(command[0]) is None:
        raise ConfigError(
            f"there is no {command[0]} here: run this on a host of the Slurm cluster (its head or "
            "login node), or use --dry-run, and submit the script there",
            code="slurm-missing",
            found=command[0],
        )
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        text = (
            f"{command[0]} gave no answer within {TIMEOUT_S:g} s: is slurmctld running "
            "(scontrol ping)?"
        )
        raise SegtrainError(text, code="slurm-away", found=command[0]) from None
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split())
        code = "slurm-away" if any(words in reason for words in AWAY) else "slurm-refused"
        raise SegtrainError(f"{' '.join(command[:3])}: {reason}", code=code, found=reason)
    return done.stdout


def submit(script: Path, flags: Sequence[str] = ()) -> str:
    """Submit a script, and return the job's number. Raises SegtrainError, also where it is not
    known what happened.
    """
    try:
        said = ask("sbatch", "--parsable", *flags, str(script))
    except SegtrainError as error:
        if error.code != "slurm-away":
            raise
        text = (
            f"{error}; the job may have been submitted all the same: look at squeue --me "
            "before you try again"
        )
        raise SegtrainError(text, code="slurm-away", found=str(script)) from None
    # beside what a wrapper of the site prints
    number = re.search(r"^(\d+)(;.*)?$", said, re.MULTILINE)
    if number is None:
        text = f"sbatch gave no job number, but {said.strip()[:200]!r}: look at squeue --me"
        raise SegtrainError(text, code="sbatch-answer", found=said)
    return number[1]


def fields(text: str) -> dict[str, str]:
    """``JobId=3 JobName=a b Command=(null)`` as a mapping."""
    matches = list(_FIELD.finditer(text))
    ends = [match.start() for match in matches[1:]] + [len(text)]
    return {match[1]: text[match.end() : end].strip() for match, end in zip(matches, ends)}


def jobs(number: str) -> list[dict[str, str]]:
    """What Slurm knows of a job, one mapping for each task of an array; [] where it has forgotten
    it.
    """
    try:
        answer = ask("scontrol", "-o", "show", "job", number)
    except SegtrainError as error:
        if re.search(r"Invalid job id|Job \S+ not found", str(error)):
            return []
        raise
    return [fields(line) for line in answer.splitlines() if line.startswith("JobId=")]

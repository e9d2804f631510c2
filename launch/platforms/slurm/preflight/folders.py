"""Checks of the folders of a Slurm job: the run folder, its file system and room, the data, and who
else writes.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from shlex import quote

from launch.core import job_checks
from launch.core.bundle import all_settings
from launch.core.findings import Finding, error, warning
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.preflight.state import SlurmState
from launch.platforms.slurm.prepare import SCRIPT
from launch.platforms.slurm.script import FOLDER

LEAST_MB = 2048  # where no checkpoint tells how large one is


def existing(place: str | Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    path = Path(place).absolute()
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return path


def folders(job: SlurmJob, cluster: SlurmState, probed: bool) -> Iterator[Finding]:
    """``probed``: whether nodes were asked what they see, so that nothing needs to be guessed from
    here.
    """
    place = existing(job.output)
    if not os.path.isdir(place):
        yield error("output-file", f"output={job.output!r}: {place} is a file", "--output FOLDER")
    elif not os.access(place, os.W_OK | os.X_OK):
        yield error(
            "output-not-writable",
            f"output={job.output!r}: you may not write into {place}",
            "another --output",
        )
    else:
        yield from _room(job, place)
    if not probed:
        yield from data_folder(job, warning if job.setup else error)  # its lines may bring the data
    results = {"output": os.path.abspath(job.output)}
    yield from job_checks.results_in_data("data", local_data(job), results)
    # Another job of this user with one of the run folders, which waits or runs.
    ours = {run.resolve() for run in job.runs()}
    over = _ended_before(
        job.after, {number.partition("_")[0]: after for number, _, after, _ in cluster.jobs}
    )
    for number, state, _, script in cluster.jobs:
        after = number.partition("_")[0]
        if after in over:
            continue  # this job starts when that one has ended
        for run in sorted(ours & {run.resolve() for run in _runs_of(script)}):
            yield error(
                "run-busy",
                f"job {number} ({state.lower()}) has the run folder {run} too: two jobs in one "
                "folder overwrite each other's checkpoints",
                f"--name another, or --after afterany:{after}, or scancel {quote(after)}",
            )


def free_mb(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize // 2**20


def _room(job: SlurmJob, place: Path) -> Iterator[Finding]:
    """Room for the checkpoints that a run keeps, by the size of one that is there."""
    free = free_mb(place)
    sizes = [
        file.stat().st_size
        for run in job.runs()
        for file in run.glob("checkpoints/step-*")
        if file.is_file()
    ]
    keep = job.settings.get("checkpoint.keep", 2)
    # the best one, and the one that is being written
    copies = (keep if isinstance(keep, int) else 2) + 2
    runs = len(job.runs())
    needed = max(0, max(sizes) * copies * runs - sum(sizes)) // 2**20 if sizes else LEAST_MB * runs
    if free < needed:
        contents = (
            f"{copies} checkpoints of {max(sizes) / 2**20:,.0f} MB" if sizes else "its checkpoints"
        )
        yield (error if free < needed // 10 else warning)(
            "room",
            f"output={job.output!r}: {free:,} MB are free in {place}, and "
            f"{'each run' if runs > 1 else 'the run'} needs room for {contents} ({needed:,} MB more"
            f"{' in all' if runs > 1 else ''})",
            "remove old runs, or another --output",
        )


def local_data(job: SlurmJob) -> str:
    """The folder of the job's data set; "" for one in a bucket, and for generated images."""
    settings = all_settings(job)
    data = str(job.data or settings.get("data.root") or "")
    if not data or "://" in data or settings.get("data.layout", "scenes") == "scenes":
        return ""
    return os.path.abspath(os.path.expanduser(data))


def data_folder(job: SlurmJob, level: Callable[..., Finding]) -> Iterator[Finding]:
    """A finding of ``level`` if this host does not have the data set of the job."""
    if (data := local_data(job)) and not os.path.exists(data):
        yield level(
            "data-not-there",
            f"data={data!r}: there is no such folder here",
            "--data FOLDER that all nodes see",
        )


def _ended_before(after: str, others: Mapping[str, str]) -> set[str]:
    """Numbers of the jobs that have ended when one with this dependency starts. ``others``: number
    -> dependency.
    """
    ended, new = set[str](), [after]
    while new:
        # With "?" between them, one of the jobs suffices.
        text = new.pop()
        numbers = (
            set()
            if "?" in text
            else set(re.findall(r"\bafter(?:any|ok|notok):(\d+)", text)) - ended
        )
        ended |= numbers
        new += [others[number] for number in numbers & set(others)]
    return ended


def _runs_of(command: str) -> set[Path]:
    """The run folders of a job with this command, if the launcher wrote its script; else empty."""
    match = re.match(rf"(.*)/{re.escape(SCRIPT)}( |$)", command)
    if not match:
        return set()
    folder = Path(match[1]).parent  # the script is in a folder of its description
    if folder.name == FOLDER:
        return {folder.parent}
    try:
        text = Path(match[1], SCRIPT).read_text(encoding="utf-8")
    except OSError:
        return set()
    tasks = re.findall(r"^  \d+\) (run=.*?); settings=", text, re.M)
    return {Path(shlex.split(task)[0].removeprefix("run=")) for task in tasks}

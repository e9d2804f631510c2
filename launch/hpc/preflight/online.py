"""Everything that is wrong with a Slurm job, as far as a host that may submit it can tell."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from launch.cures import tried
from launch.findings import Finding, error, errors, note, warning
from launch.hpc.follow import ENDED
from launch.hpc.job import SlurmJob
from launch.hpc.preflight.folders import folders
from launch.hpc.preflight.here import Here, completed, flags, limits, variables
from launch.hpc.preflight.nodes import nodes
from launch.hpc.preflight.partitions import accounts, partitions
from launch.hpc.preflight.probe import Told, answers, ask_nodes
from launch.hpc.preflight.site import site
from launch.hpc.preflight.state import Cluster, listed, read
from launch.hpc.preflight.training import offline
from launch.hpc.script import sbatch_script
from launch.hpc.tools import ask, jobs
from launch.job import ROOT
from segtrain.errors import SegtrainError

MOUNTS, EXPORTS = Path("/proc/mounts"), Path("/var/lib/nfs/etab")
# sbatch takes a job that needs nodes which are away: only its test refuses it.
_AWAY = ("down, drained or reserved", "DOWN, DRAINED or reserved", "busy")


def look(job: SlurmJob, probe: bool = True, terminal: bool = False) -> list[Finding]:
    """``probe``: run a short srun on the nodes; ``terminal``: the job is for salloc. Without Slurm here, its checks
    are left out, and a note says so.
    """
    here = Here(command="salloc" if terminal else "sbatch")
    job = completed(job, here)
    findings = tried(job, [*offline(job, ROOT), *flags(job)], lambda one: [*offline(one, ROOT), *flags(one)])
    findings += _shell(job)
    try:
        cluster = read(ask)
    except SegtrainError as problem:
        cure = "on a host that submits"
        return [*findings, note("slurm-not-asked", f"the cluster is not asked: {problem}", cure)]
    return list(dict.fromkeys([*findings, *of_cluster(job, cluster, here, probe and not errors(findings))]))


def of_cluster(job: SlurmJob, cluster: Cluster, here: Here, probe: bool) -> list[Finding]:
    ruled = partial(rules, cluster=cluster, here=here, now=datetime.now())
    findings = [*tried(job, ruled(job), ruled), *_after(job)]
    told: Told = {}
    if probe and not errors(findings):
        told, said = ask_nodes(job, cluster, here.folder)
        findings += [*said, *answers(job, told, here.folder, _version())]
    findings += folders(job, here, cluster, _text(MOUNTS), bool(told), _text(EXPORTS))
    if not errors(findings):
        findings += _tested(job)
    return findings


def rules(job: SlurmJob, cluster: Cluster, here: Here, now: datetime) -> list[Finding]:
    """What follows from what Slurm says of itself."""
    findings = [*_of_partitions(job, cluster, now), *variables(job, here), *limits(job, here, cluster)]
    findings += [note("not-asked", f"{what} could not be checked: {why}") for what, why in cluster.refused.items()]
    return findings


def _of_partitions(job: SlurmJob, cluster: Cluster, now: datetime) -> list[Finding]:
    """Slurm starts a job in any partition of its list. So what keeps it out of one of them is a warning, while another
    one takes it; sbatch refuses an unknown one.
    """
    each = [
        [*partitions(one, cluster), *accounts(one, cluster), *nodes(one, cluster), *site(one, cluster, now)]
        for one in (replace(job, partition=name) for name in listed(job.partition) or ("",))
    ]
    taken = any(not errors(found) for found in each)
    return list(dict.fromkeys(
        replace(finding, level="warning")
        if taken and finding.level == "error" and finding.code != "partition-unknown"
        else finding
        for found in each for finding in found
    ))  # fmt: skip


def _shell(job: SlurmJob) -> list[Finding]:
    """bash reads the script without running it."""
    try:
        done = subprocess.run(["bash", "-n"], input=sbatch_script(job), capture_output=True, text=True, check=False)
    except OSError as problem:
        return [note("shell-not-asked", f"the script is not checked by bash: {problem}")]
    if not done.returncode:
        return []
    words = " ".join(done.stderr.split())
    return [error("setup-shell", f"setup={list(job.setup)}: the script is not valid shell: {words}", "fix its quotes")]


def _after(job: SlurmJob) -> list[Finding]:
    """Slurm takes the number of a job that it does not know, and starts this one at once."""
    kind, _, number = job.after.partition(":")
    if not number:
        return []
    try:
        states = [one.get("JobState", "") for one in jobs(number)]
    except SegtrainError as problem:
        return [note("not-asked", f"after={job.after!r} could not be checked: {problem}")]
    if not states:
        return [error(
            "after-unknown",
            f"after={job.after!r}: Slurm knows no job {number} (any more), and would start this one at once",
            "squeue --me for its number; leave --after out if that job is done",
        )]  # fmt: skip
    bad = [state for state in states if state in ENDED and (state == "COMPLETED") == (kind == "afternotok")]
    if bad and kind in ("afterok", "afternotok"):
        return [error(
            "after-never",
            f"after={job.after!r}: job {number} has ended ({bad[0].lower()}), so that this one would never start",
            "leave --after out, or --after another job",
        )]  # fmt: skip
    return []


def _tested(job: SlurmJob) -> list[Finding]:
    """Slurm's own judgment, which submits nothing."""
    try:
        done = subprocess.run(
            ["sbatch", "--test-only"], input=sbatch_script(job), capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return [note("not-asked", f"sbatch --test-only could not be asked: {problem}")]
    if not done.returncode:
        return []
    words = " ".join((done.stderr or done.stdout).split())
    level = warning if any(away in words for away in _AWAY) else error
    return [level("sbatch-refuses", f"sbatch --test-only: {words}", "change what it names")]


def _text(place: Path) -> str:
    try:
        return place.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _version() -> str:
    import segtrain

    return segtrain.__version__

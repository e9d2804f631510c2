"""Everything that is wrong with a Slurm job, as far as a host that may submit it can tell."""

from __future__ import annotations

import subprocess
from dataclasses import replace

from launch.core.findings import Finding, error, errors, note, warning
from launch.platforms.slurm.follow import ENDED
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.preflight.cluster_settings import cluster_settings
from launch.platforms.slurm.preflight.folders import data_folder, folders
from launch.platforms.slurm.preflight.nodes import nodes
from launch.platforms.slurm.preflight.partitions import partitions
from launch.platforms.slurm.preflight.probe import Replies, answers, ask_nodes
from launch.platforms.slurm.preflight.state import Node, SlurmState, listed, read
from launch.platforms.slurm.preflight.submit_host import (
    SubmitHost,
    completed,
    flags,
    limits,
    variables,
)
from launch.platforms.slurm.preflight.training import offline
from launch.platforms.slurm.script import sbatch_script
from launch.platforms.slurm.tools import ask, jobs
from segtrain.errors import SegtrainError

# sbatch takes a job that needs nodes which are away: only its test refuses it, in words that differ
# by its release.
_AWAY = ("down, drained or reserved", "DOWN, DRAINED or reserved", "busy")
_UNAVAILABLE = "node configuration is not available"


def online(job: SlurmJob, probe: bool = True, terminal: bool = False) -> list[Finding]:
    """``probe``: run a short srun on the nodes; ``terminal``: the job is for salloc. Without Slurm
    here, its checks are left out, and a note says so.
    """
    here = SubmitHost(command="salloc" if terminal else "sbatch")
    job = completed(job, here)
    findings = [*offline(job), *flags(job), *_shell(job)]
    try:
        cluster = read(ask)
    except SegtrainError as problem:
        findings += data_folder(job, warning)  # this host may not have the cluster's disks
        cure = "on a host that submits"
        return [*findings, note("slurm-not-asked", f"the cluster is not asked: {problem}", cure)]
    return list(
        dict.fromkeys([*findings, *of_cluster(job, cluster, here, probe and not errors(findings))])
    )


def of_cluster(job: SlurmJob, cluster: SlurmState, here: SubmitHost, probe: bool) -> list[Finding]:
    findings = [*rules(job, cluster, here), *_after(job)]
    if not errors(findings):
        findings += _tested(job, cluster)
    replies: Replies = {}
    if probe and not errors(findings):
        replies, said = ask_nodes(job, cluster, here.folder)
        findings += [*said, *answers(job, replies, here.folder, _version())]
    findings += folders(job, cluster, bool(replies))
    return findings


def rules(job: SlurmJob, cluster: SlurmState, here: SubmitHost) -> list[Finding]:
    """What follows from what Slurm says of itself."""
    findings = [*_of_partitions(job, cluster), *variables(job, here), *limits(job, here, cluster)]
    findings += [
        note("not-asked", f"{what} could not be checked: {why}")
        for what, why in cluster.refused.items()
    ]
    return findings


def _of_partitions(job: SlurmJob, cluster: SlurmState) -> list[Finding]:
    """Slurm starts a job in any partition of its list. So what keeps it out of one of them is a
    warning, while another one takes it.
    """
    each = [
        [
            *partitions(variant, cluster),
            *nodes(variant, cluster),
            *cluster_settings(variant, cluster),
        ]
        for variant in (replace(job, partition=name) for name in listed(job.partition) or ("",))
    ]
    taken = any(not errors(findings) for findings in each)
    return list(
        dict.fromkeys(
            replace(finding, level="warning") if taken and finding.level == "error" else finding
            for findings in each
            for finding in findings
        )
    )


def _shell(job: SlurmJob) -> list[Finding]:
    """bash reads the script without running it."""
    try:
        done = subprocess.run(
            ["bash", "-n"], input=sbatch_script(job), capture_output=True, text=True, check=False
        )
    except OSError as problem:
        return [note("shell-not-asked", f"the script is not checked by bash: {problem}")]
    if not done.returncode:
        return []
    words = " ".join(done.stderr.split())
    return [
        error(
            "setup-shell",
            f"setup={list(job.setup)}: the script is not valid shell: {words}",
            "fix its quotes",
        )
    ]


def _after(job: SlurmJob) -> list[Finding]:
    """Slurm takes the number of a job that it does not know, and starts this one at once."""
    kind, _, number = job.after.partition(":")
    if not number:
        return []
    try:
        states = [record.get("JobState", "") for record in jobs(number)]
    except SegtrainError as problem:
        return [note("not-asked", f"after={job.after!r} could not be checked: {problem}")]
    if not states:
        return [
            error(
                "after-unknown",
                f"after={job.after!r}: Slurm knows no job {number} (any more), and would start "
                "this one at once",
                "squeue --me for its number; leave --after out if that job is done",
            )
        ]
    bad = [
        state
        for state in states
        if state in ENDED and (state == "COMPLETED") == (kind == "afternotok")
    ]
    if bad and kind in ("afterok", "afternotok"):
        return [
            error(
                "after-never",
                f"after={job.after!r}: job {number} has ended ({bad[0].lower()}), so that this "
                "one would never start",
                "leave --after out, or --after another job",
            )
        ]
    return []


def _tested(job: SlurmJob, cluster: SlurmState) -> list[Finding]:
    """Slurm's own judgment, which submits nothing. A job whose nodes are away now may wait for
    them.
    """
    try:
        done = subprocess.run(
            ["sbatch", "--test-only"],
            input=sbatch_script(job),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return [note("not-asked", f"sbatch --test-only could not be asked: {problem}")]
    if not done.returncode:
        return []
    words = " ".join((done.stderr or done.stdout).split())
    away = _away(job, cluster) if _UNAVAILABLE in words else ""
    if away or any(text in words for text in _AWAY):
        return [
            warning(
                "sbatch-refuses",
                f"sbatch --test-only: {words}; {away}",
                "wait for these nodes, or use others",
            )
        ]
    return [
        error(
            "sbatch-refuses",
            f"sbatch --test-only: {words}",
            f"change what it names: {_offer(job, cluster)}",
        )
    ]


def _away(job: SlurmJob, cluster: SlurmState) -> str:
    """The nodes of the job's partitions on which no job starts now, and reservations, which may
    hold others.
    """
    there = _nodes(job, cluster)
    states = [
        (
            f"{node.name} is {'+'.join(sorted(node.state)).lower()} {node.fields.get('Reason', '')}"
        ).rstrip()
        for node in there
        if node.away
    ]
    names = {node.name for node in there}
    held = [
        f"{reservation['ReservationName']} holds {reservation.get('Nodes', '')} "
        f"until {reservation.get('EndTime', '')}"
        for reservation in cluster.reservations
        if reservation["ReservationName"] != job.reservation
        and names & _hosts(reservation.get("Nodes", ""))
    ]
    return "; ".join([*states, *held])


def _hosts(text: str) -> set[str]:
    from segtrain.platforms.slurm.hosts import expand_hosts

    try:
        return set(expand_hosts(text))
    except ValueError:  # (null)
        return set()


def _nodes(job: SlurmJob, cluster: SlurmState) -> list[Node]:
    chosen = [cluster.partition(name) for name in listed(job.partition) or ("",)]
    return [
        node
        for partition in chosen
        if partition is not None
        for node in cluster.nodes_of(partition)
    ]


def _offer(job: SlurmJob, cluster: SlurmState) -> str:
    """What the partition of the job has, or which partitions there are."""
    there = _nodes(job, cluster)
    if not there:
        return f"the partitions are {', '.join(partition.name for partition in cluster.partitions)}"
    cores, memory = max(node.cpus for node in there), max(node.memory_mb for node in there)
    gpus = sorted({node.fields.get("Gres", "") for node in there if node.gpus})
    return (
        f"there are {len(there)} nodes of at most {cores} cores, {memory} MB, and "
        f"{', '.join(gpus) or 'no GPU'}"
    )


def _version() -> str:
    import segtrain

    return segtrain.__version__

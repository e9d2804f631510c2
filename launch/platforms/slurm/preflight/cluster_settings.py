"""Checks of a cluster's settings against a Slurm job: what happens at a preemption, a time limit,
and a stop.
"""

from __future__ import annotations

from collections.abc import Iterator

from launch.core.findings import Finding, error, warning
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.preflight.partitions import used_qos
from launch.platforms.slurm.preflight.state import Partition, SlurmState, listed, seconds
from segtrain.errors import EXIT_RESUMABLE

SAVE_S = 20  # a checkpoint of a large model on a busy file system


def cluster_settings(job: SlurmJob, cluster: SlurmState) -> Iterator[Finding]:
    # Slurm itself queues a job again whose exit code is in these lists, also one that was told to
    # stop.
    for key in ("RequeueExit", "RequeueExitHold"):
        if EXIT_RESUMABLE in _codes(cluster.config.get(key, "")):
            held = " and held" if key == "RequeueExitHold" else ""
            yield warning(
                "requeue-exit",
                f"{key}={cluster.config[key]} of the cluster has {EXIT_RESUMABLE}, with which a "
                f"job ends that was told to stop: it is queued again{held}",
                "end a job with scancel, not with --stop, or ask the administrator to take the "
                "code out",
            )
    wait = cluster.seconds("KillWait")
    if wait < SAVE_S:
        yield warning(
            "kill-wait-short",
            f"KillWait={wait} s of the cluster: scancel, and a requeue by an administrator, leave "
            f"a job that long to save its state, and a checkpoint may take {SAVE_S} s",
            f"--stop instead of scancel, or ask for KillWait={SAVE_S + 10}",
        )
    partition = cluster.partition(job.partition)
    if partition is not None:
        yield from _preemption(job, cluster, partition)
    most = cluster.config.get("MaxArraySize", "")
    if most.isdigit() and len(job.tasks) > int(most):  # their numbers begin at 0
        yield error(
            "array-size",
            f"an array of {len(job.tasks)} tasks: the cluster takes {most} (MaxArraySize={most})",
            "several jobs with a part of the tasks each",
        )


def _codes(text: str) -> set[int]:
    codes: set[int] = set()
    for part in listed(text):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            codes |= set(range(int(first), int(last or first) + 1))
    return codes


def preempted(job: SlurmJob, cluster: SlurmState, partition: Partition) -> tuple[str, int] | None:
    """How Slurm takes the nodes of the job away for another one, and after how many seconds; None:
    it never does.
    """
    kind = cluster.config.get("PreemptType", "")
    mode = cluster.config.get("PreemptMode", "OFF")
    if "partition_prio" in kind:
        own = {node.name for node in cluster.nodes_of(partition)}
        tier = _tier(partition)
        above = [higher for higher in cluster.partitions if _tier(higher) > tier]
        if not any(node.name in own for higher in above for node in cluster.nodes_of(higher)):
            return None
        mode = partition.fields.get("PreemptMode", mode)
        grace = seconds_of(partition.fields.get("GraceTime", "0"))
    elif "qos" in kind:
        name, table = used_qos(job, cluster), cluster.qos or {}
        if not any(name in listed(row.get("Preempt", "")) for row in table.values()):
            return None
        own_mode = table.get(name, {}).get("PreemptMode", "cluster").upper()
        mode = mode if own_mode in ("CLUSTER", "") else own_mode
        grace = seconds(table.get(name, {}).get("GraceTime", "")) or 0
    else:
        return None
    modes = [part for part in mode.upper().split(",") if part not in ("GANG", "WITHIN")]
    return None if modes in ([], ["OFF"]) else (modes[0], grace)


def seconds_of(text: str) -> int:
    """GraceTime, which Slurm shows as a number of seconds."""
    return int(text) if text.isdigit() else 0


def _tier(partition: Partition) -> int:
    return seconds_of(partition.fields.get("PriorityTier", "1"))


def _preemption(job: SlurmJob, cluster: SlurmState, partition: Partition) -> Iterator[Finding]:
    preemption = preempted(job, cluster, partition)
    if preemption is None:
        return
    mode, grace = preemption
    if mode == "CANCEL" and not grace:
        yield warning(
            "preempt-cancel",
            f"partition {partition.name} cancels a job for one of higher priority "
            "(PreemptMode=CANCEL, GraceTime=0): it is not queued again",
            "submit it again by hand when it was cancelled, or another --partition",
        )
    elif mode == "SUSPEND":
        yield warning(
            "preempt-suspend",
            f"partition {partition.name} suspends a job for one of higher priority: its ranks keep "
            "the GPUs' memory, and their connections time out after parallel.timeout_s",
            "another --partition, or a longer parallel.timeout_s",
        )
    elif grace + (cluster.seconds("KillWait") if mode == "REQUEUE" else 0) < SAVE_S:
        yield warning(
            "grace-short",
            f"partition {partition.name} takes nodes away {grace} s after it says so (GraceTime; "
            f"KillWait={cluster.seconds('KillWait')} s), and a checkpoint may take {SAVE_S} s: the "
            "steps since the last one are trained again",
            "a smaller checkpoint.every, or ask for a longer GraceTime",
        )
    if mode == "REQUEUE" and not job.requeue:
        yield warning(
            "requeue-off",
            f"requeue=false, and partition {partition.name} takes nodes away for jobs of higher "
            "priority: the job is cancelled then",
            "leave requeue out",
        )

"""Checks of what Slurm would give a job without a word: GPUs that idle, one core for each, too
little memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from launch.core.findings import Finding, error, warning
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.preflight.state import Node, Partition, SlurmState, megabytes

LEAST_MB = 1500  # of a rank: the libraries alone take most of it


def nodes(job: SlurmJob, cluster: SlurmState) -> Iterator[Finding]:
    partition = cluster.partition(job.partition)
    there: Sequence[Node] = cluster.nodes_of(partition) if partition else ()
    if partition is None or not there:
        return
    yield from _gpus(job, partition, there)
    yield from _cores(job, cluster, partition, there)
    yield from _memory(job, cluster, partition, there)


def _gpus(job: SlurmJob, partition: Partition, there: Sequence[Node]) -> Iterator[Finding]:
    have = [node.gpus for node in there]
    most = max(sum(counts.values()) for counts in have)
    if job.gpus is None or not job.gpus.count:
        if all(have) and job.settings.get("train.device") != "cpu":
            yield warning(
                "gpus-not-asked",
                f"no GPU is asked for, and each node of partition {partition.name} has {most}: the "
                "ranks would train on CPUs, or on GPUs of other jobs where nothing confines them",
                f"--gpus {most}",
            )
        return
    if job.local_ranks > job.gpus.count:
        yield error(
            "ranks-over-gpus",
            f"procs={job.local_ranks} processes on each node for {job.gpus.count} GPUs: each "
            "needs one of its own",
            f"--procs {job.gpus.count}, or --gpus {job.local_ranks}",
        )
    elif job.local_ranks < job.gpus.count and job.strategy not in ("single", "dp"):
        yield warning(
            "gpus-idle",
            f"procs={job.local_ranks}: {job.gpus.count - job.local_ranks} of {job.gpus.count} GPUs "
            "of each node would idle",
            f"--gpus {job.local_ranks}, or leave --procs out",
        )


def _cores(
    job: SlurmJob, cluster: SlurmState, partition: Partition, there: Sequence[Node]
) -> Iterator[Finding]:
    defaults = partition.fields.get("JobDefaults", "") + cluster.config.get("JobDefaults", "")
    whole = job.exclusive or "cons" not in cluster.config.get("SelectType", "cons_tres")
    if (
        job.gpus is None
        or job.cpus
        or whole
        or "DefCpuPerGPU" in defaults
        or not all(node.gpus for node in there)
    ):
        return
    share = max(node.cpus for node in there) // max(sum(node.gpus.values()) for node in there)
    if share > 1:
        yield warning(
            "cores-one",
            "cpus is not given: Slurm gives each process one core, which also decodes the "
            "images of its GPU",
            f"--cpus {share}: the share of a GPU on these nodes",
        )


def memory_mb(job: SlurmJob, cluster: SlurmState, partition: Partition) -> int | None:
    """Memory of the job on each node; 0 where it takes all of it; None where Slurm does not count
    memory.
    """
    if "MEMORY" not in cluster.config.get("SelectTypeParameters", "").upper():
        return None
    if job.memory:
        return megabytes(job.memory)
    for fields in (partition.fields, cluster.config):
        per_gpu = re.search(r"DefMemPerGPU=(\d+)", fields.get("JobDefaults", ""))
        if per_gpu and job.gpus and job.gpus.count:
            return int(per_gpu[1]) * job.gpus.count
        per_cpu, per_node = fields.get("DefMemPerCPU", ""), fields.get("DefMemPerNode", "")
        if per_cpu.isdigit() and int(per_cpu):
            return int(per_cpu) * job.local_ranks * max(1, job.cpus)
        if per_node.isdigit() and int(per_node):
            return int(per_node)
    return 0


def _memory(
    job: SlurmJob, cluster: SlurmState, partition: Partition, there: Sequence[Node]
) -> Iterator[Finding]:
    most, requested = max(node.memory_mb for node in there), memory_mb(job, cluster, partition)
    said = f"memory={job.memory}" if job.memory else "the default memory of the partition"
    if requested is None or (not requested and (job.exclusive or _fills(job, there))):
        return
    elif not requested:
        yield warning(
            "memory-whole-node",
            "memory is not given, and the cluster has no default: a job with a part of a node "
            f"takes all {most} MB of it, waits until the node is empty, and keeps others away",
            f"--memory {max(LEAST_MB, most * job.local_ranks // max(1, _parts(there)))}M",
        )
    elif requested < LEAST_MB * job.local_ranks:
        yield warning(
            "memory-small",
            f"{said} is {requested} MB of a node for {job.local_ranks} processes: each needs "
            f"{LEAST_MB} MB for its libraries alone, and Slurm kills a job that takes more than it "
            "asked for",
            f"--memory {min(most, 2 * LEAST_MB * job.local_ranks)}M or more",
        )


def _parts(there: Sequence[Node]) -> int:
    """Into how many ranks a node divides: its GPUs, or its cores."""
    return max(sum(node.gpus.values()) or node.cpus for node in there)


def _fills(job: SlurmJob, there: Sequence[Node]) -> bool:
    """Whether the job leaves no GPU, or no core, for another one."""
    gpus = job.gpus.count if job.gpus else 0
    return any(
        gpus >= sum(node.gpus.values())
        if node.gpus
        else job.local_ranks * max(1, job.cpus) >= node.cpus
        for node in there
    )

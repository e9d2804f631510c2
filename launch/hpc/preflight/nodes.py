"""Checks of the nodes of a Slurm job: those that it may get, their GPUs, cores, and memory, and how many are up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from launch.findings import Finding, error, errors, warning
from launch.hpc.job import SlurmJob
from launch.hpc.preflight.partitions import WAITS, used_account
from launch.hpc.preflight.state import Cluster, Node, Partition, listed, megabytes
from segtrain.errors import closest

LEAST_MB = 1500  # of a rank: the libraries alone take most of it


def nodes(job: SlurmJob, cluster: Cluster) -> Iterator[Finding]:
    partition = cluster.partition(job.partition)
    there: Sequence[Node] = cluster.nodes_of(partition) if partition else ()
    if partition is None or not there:
        return
    named = list(_named(job, cluster, partition, there))
    yield from named
    there = _chosen(job, there)
    if not there and not errors(named):
        yield error(
            "nodes-none-left",
            f"constraint={job.constraint!r}, exclude={job.exclude!r}: no node of partition {partition.name} is left",
            "fewer features in --constraint, or fewer nodes in --exclude",
        )
    if not there:
        return
    findings = [
        *_gpus(job, cluster, partition, there),
        *_cores(job, cluster, partition, there),
        *_memory(job, cluster, partition, there),
    ]
    yield from findings
    if not any(finding.level == "error" for finding in findings):
        yield from _enough(job, partition, there)
    yield from _reservation(job, cluster)


def hosts(text: str) -> list[str]:
    """The names that ``n[1-2],m1`` stands for; the text itself where it is no such list."""
    from segtrain.parallel.slurm_hosts import expand_hosts

    try:
        return expand_hosts(text)
    except ValueError:
        return [text]


def _named(job: SlurmJob, cluster: Cluster, partition: Partition, there: Sequence[Node]) -> Iterator[Finding]:
    all_names, own = [node.name for node in cluster.nodes], [node.name for node in there]
    for key in ("nodelist", "exclude"):
        for name in hosts(getattr(job, key)) if getattr(job, key) else ():
            if name not in all_names:
                near = closest(name, own, 0.4) or own[0]
                yield error(
                    "node-unknown", f"{key}={getattr(job, key)!r}: the cluster has no node {name}", f"--{key} {near}"
                )
            elif key == "nodelist" and name not in own:
                yield error(
                    "node-other-partition",
                    f"nodelist={job.nodelist!r}: {name} is not in partition {partition.name}",
                    f"--nodelist of {', '.join(own)}, or another --partition",
                )
    known = {feature for node in there for feature in node.features}
    for feature in _features(job.constraint):
        if feature not in known:
            similar = closest(feature, known, 0.4)
            yield error(
                "constraint-unknown",
                f"constraint={job.constraint!r}: no node of partition {partition.name} has the feature {feature!r}"
                + (f"; there are {', '.join(sorted(known))}" if known else ""),
                f"--constraint {similar}" if similar else "leave --constraint out",
            )


def _features(constraint: str) -> list[str]:
    return [word for word in re.split(r"[&|,\[\]()*]", constraint) if word and not word.isdigit()]


def _chosen(job: SlurmJob, there: Sequence[Node]) -> list[Node]:
    """The nodes that the job's own words leave. A constraint is understood where it is a list of features."""
    excluded = set(hosts(job.exclude)) if job.exclude else set()
    wanted = set(_features(job.constraint)) if not re.search(r"[|\[(*]", job.constraint) else set()
    return [node for node in there if node.name not in excluded and wanted <= set(node.features)]


def _gpus(job: SlurmJob, cluster: Cluster, partition: Partition, there: Sequence[Node]) -> Iterator[Finding]:
    have = [node.gpus for node in there]
    most = max(sum(found.values()) for found in have)
    if job.gpus is None or not job.gpus.count:
        if all(have) and job.settings.get("train.device") != "cpu":
            yield warning(
                "gpus-not-asked",
                f"no GPU is asked for, and each node of partition {partition.name} has {most}: the ranks would train "
                "on CPUs, or on GPUs of other jobs where nothing confines them",
                f"--gpus {most}",
            )
        return
    if not most:
        others = [one.name for one in cluster.partitions if any(node.gpus for node in cluster.nodes_of(one))]
        yield error(
            "gpus-none",
            f"gpus={job.gpus}: no node of partition {partition.name} has a GPU",
            f"--partition {' or '.join(others)}" if others else "leave --gpus out: no partition has GPUs",
        )
        return
    kinds = sorted({kind for found in have for kind in found if kind})
    if job.gpus.type and job.gpus.type not in kinds:
        near = closest(job.gpus.type.lower(), kinds, 0.3) or next(iter(kinds), "")
        yield error(
            "gpus-type",
            f"gpus={job.gpus}: partition {partition.name} has "
            + (f"GPUs of the type {', '.join(kinds)}" if kinds else "GPUs without a type"),
            f"--gpus {near}:{job.gpus.count}" if near else f"--gpus {job.gpus.count}",
        )
        return
    most = max(found.get(job.gpus.type, 0) if job.gpus.type else sum(found.values()) for found in have)
    if job.gpus.count > most:
        yield error(
            "gpus-count",
            f"gpus={job.gpus}: a node of partition {partition.name} has {most}",
            f"--gpus {f'{job.gpus.type}:' if job.gpus.type else ''}{most}, and more --nodes",
        )
    if job.local_ranks > job.gpus.count:
        yield error(
            "ranks-over-gpus",
            f"procs={job.local_ranks} processes on each node for {job.gpus.count} GPUs: each needs one of its own",
            f"--procs {job.gpus.count}, or --gpus {job.local_ranks}",
        )
    elif job.local_ranks < job.gpus.count and job.strategy not in ("single", "dp"):
        yield warning(
            "gpus-idle",
            f"procs={job.local_ranks}: {job.gpus.count - job.local_ranks} of {job.gpus.count} GPUs of each node would "
            "idle",
            f"--gpus {job.local_ranks}, or leave --procs out",
        )


def cores_of_rank(job: SlurmJob, cluster: Cluster) -> int | None:
    """Cores of each process; None where it gets all of its node, or as many as the site gives for a GPU."""
    whole = job.exclusive or "cons" not in cluster.config.get("SelectType", "cons_tres")
    partition = cluster.partition(job.partition)
    given = (partition.fields.get("JobDefaults", "") if partition else "") + cluster.config.get("JobDefaults", "")
    if job.cpus:
        return job.cpus
    return None if whole or (job.gpus and "DefCpuPerGPU" in given) else 1


def _cores(job: SlurmJob, cluster: Cluster, partition: Partition, there: Sequence[Node]) -> Iterator[Finding]:
    most, limit = max(node.cpus for node in there), partition.fields.get("MaxCPUsPerNode", "")
    if limit.isdigit():
        most = min(most, int(limit))
    needed = job.local_ranks * max(1, job.cpus)
    if needed > most:
        yield error(
            "cores-count",
            f"cpus={max(1, job.cpus)} for each of {job.local_ranks} processes: a node of partition {partition.name} "
            f"has {most} cores for a job",
            f"--cpus {most // job.local_ranks}" if most >= job.local_ranks else f"--procs {most}",
        )
    elif job.gpus and cores_of_rank(job, cluster) == 1 and not job.cpus:
        share = most // max(sum(node.gpus.values()) for node in there) if all(node.gpus for node in there) else 1
        if share > 1:
            yield warning(
                "cores-one",
                "cpus is not given: Slurm gives each process one core, which also decodes the images of its GPU",
                f"--cpus {share}: the share of a GPU on these nodes",
            )


def memory_mb(job: SlurmJob, cluster: Cluster, partition: Partition) -> int | None:
    """Memory of the job on each node; 0 where it takes all of it; None where Slurm does not count memory."""
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


def _memory(job: SlurmJob, cluster: Cluster, partition: Partition, there: Sequence[Node]) -> Iterator[Finding]:
    most, given = max(node.memory_mb for node in there), memory_mb(job, cluster, partition)
    limits = [fields.get("MaxMemPerNode", "") for fields in (partition.fields, cluster.config)]
    allowed = min([most, *(int(limit) for limit in limits if limit.isdigit() and int(limit))])
    said = f"memory={job.memory}" if job.memory else "the default memory of the partition"
    if job.memory and megabytes(job.memory) > allowed:
        yield error(
            "memory-over",
            f"{said}: a job gets at most {allowed} MB of a node of partition {partition.name}",
            f"--memory {allowed}M, or fewer --procs",
        )
    elif given is None or (not given and (job.exclusive or _fills(job, there))):
        return
    elif not given:
        yield warning(
            "memory-whole-node",
            f"memory is not given, and the cluster has no default: a job with a part of a node takes all {most} MB of "
            "it, waits until the node is empty, and keeps others away",
            f"--memory {max(LEAST_MB, most * job.local_ranks // max(1, _parts(there)))}M",
        )
    elif given < LEAST_MB * job.local_ranks:
        yield warning(
            "memory-small",
            f"{said} is {given} MB of a node for {job.local_ranks} processes: each needs {LEAST_MB} MB for its "
            "libraries alone, and Slurm kills a job that takes more than it asked for",
            f"--memory {min(allowed, 2 * LEAST_MB * job.local_ranks)}M or more",
        )


def _parts(there: Sequence[Node]) -> int:
    """Into how many ranks a node divides: its GPUs, or its cores."""
    return max(sum(node.gpus.values()) or node.cpus for node in there)


def _fills(job: SlurmJob, there: Sequence[Node]) -> bool:
    """Whether the job leaves no GPU, or no core, for another one."""
    gpus = job.gpus.count if job.gpus else 0
    return any(
        gpus >= sum(node.gpus.values()) if node.gpus else job.local_ranks * max(1, job.cpus) >= node.cpus
        for node in there
    )


def _suits(job: SlurmJob, node: Node) -> bool:
    kind, count = (job.gpus.type, job.gpus.count) if job.gpus else ("", 0)
    gpus = node.gpus.get(kind, 0) if kind else sum(node.gpus.values())
    enough = megabytes(job.memory) if job.memory else 0
    return gpus >= count and node.cpus >= job.local_ranks * max(1, job.cpus) and node.memory_mb >= enough


def _enough(job: SlurmJob, partition: Partition, there: Sequence[Node]) -> Iterator[Finding]:
    suitable = [node for node in there if _suits(job, node)]
    away = [node for node in suitable if node.away]
    if job.nodes > len(suitable):
        yield error(
            "nodes-too-few",
            f"nodes={job.nodes}: partition {partition.name} has {len(suitable)} with what it asks for, and {WAITS}",
            f"--nodes {len(suitable)}, or another --partition" if suitable else "another --partition",
        )
    elif job.nodes > len(suitable) - len(away):
        named = "; ".join(
            f"{node.name} is {'+'.join(sorted(node.state)).lower()}"
            + (f" ({node.fields['Reason']})" if node.fields.get("Reason") else "")
            for node in away[:4]
        )
        yield warning(
            "nodes-away",
            f"nodes={job.nodes}: {len(suitable) - len(away)} of the {len(suitable)} nodes that suit are up: {named}",
            f"--nodes {len(suitable) - len(away)}, or wait for the others"
            if len(suitable) > len(away)
            else "another --partition, or ask the administrator",
        )
    named_away = [node.name for node in away if job.nodelist and node.name in hosts(job.nodelist)]
    if named_away:
        yield warning(
            "nodelist-away", f"nodelist={job.nodelist!r}: {', '.join(named_away)} starts no jobs now", "other nodes"
        )


def _reservation(job: SlurmJob, cluster: Cluster) -> Iterator[Finding]:
    booked = {one["ReservationName"]: one for one in cluster.reservations}
    if not job.reservation:
        return
    found = booked.get(job.reservation)
    if found is None:
        near = closest(job.reservation, booked, 0.4)
        there = ", ".join(booked) or "none"
        yield error(
            "reservation-unknown",
            f"reservation={job.reservation!r}: the cluster has {there}",
            f"--reservation {near}" if near else "leave --reservation out",
        )
        return
    users, accounts = listed(found.get("Users", "")), listed(found.get("Accounts", ""))
    account = used_account(job, cluster)
    if (users or accounts) and cluster.user not in users and account not in accounts:
        yield error(
            "reservation-others",
            f"reservation={job.reservation!r} is for {', '.join([*users, *accounts])}, not for {cluster.user}"
            + (f" with account {account}" if account else ""),
            f"--account {accounts[0]}" if accounts else "ask for your name to be added",
        )

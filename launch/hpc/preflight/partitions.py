"""Checks of the partition, its limits, the account, and the QOS of a Slurm job.

Slurm accepts most of these mistakes, and lets the job wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from launch.findings import Finding, error, note, warning
from launch.hpc.job import SlurmJob
from launch.hpc.preflight.state import Cluster, Partition, amounts, seconds
from segtrain.errors import closest

WAITS = "although sbatch accepts the job, it waits forever"


def partitions(job: SlurmJob, cluster: Cluster) -> Iterator[Finding]:
    partition = cluster.partition(job.partition)
    if partition is None:
        yield _absent(job, cluster)
        return
    yield from _open(job, cluster, partition)
    yield from _time(job, cluster, partition)
    yield from _size(job, cluster, partition)


def _absent(job: SlurmJob, cluster: Cluster) -> Finding:
    there = [one.name for one in cluster.partitions]
    if not job.partition:
        return error(
            "partition-none",
            "no partition is given, and the cluster has no default one",
            f"--partition, one of {', '.join(there)}",
        )
    near = closest(job.partition, there, 0.4)
    return error(
        "partition-unknown",
        f"partition={job.partition!r}: the cluster has {', '.join(there) or 'none that you may see'}",
        f"--partition {near or (there[0] if there else 'NAME')}",
    )


def _open(job: SlurmJob, cluster: Cluster, partition: Partition) -> Iterator[Finding]:
    """Whether the partition starts jobs at all, and whether it starts those of this user."""
    state = partition.fields.get("State", "UP")
    if state != "UP":
        others = [one.name for one in cluster.partitions if one.fields.get("State") == "UP"]
        yield error(
            "partition-down",
            f"partition {partition.name} is {state}: no job starts there until an administrator opens it",
            f"--partition, one of {', '.join(others) or 'another cluster'}",
        )
    if partition.fields.get("RootOnly") == "YES" and cluster.user != "root":
        yield error("partition-root", f"partition {partition.name} is for root alone", "another --partition")
    if partition.fields.get("ReqResv") == "YES" and not job.reservation:
        yield error(
            "reservation-required",
            f"partition {partition.name} takes only jobs of a reservation (ReqResv=YES)",
            "--reservation NAME (scontrol show reservation), or another --partition",
        )
    if cluster.config.get("DisableRootJobs", "").upper() == "YES" and cluster.user == "root":
        yield error("root-refused", "the cluster starts no jobs of root (DisableRootJobs=YES)", "submit as a user")
    groups = partition.names("AllowGroups")
    if groups and cluster.user != "root" and not set(groups) & set(_groups(cluster.user)):
        yield error(
            "partition-groups",
            f"partition {partition.name} is for the groups {', '.join(groups)}, and {cluster.user} is in none of them",
            "another --partition, or ask to be added to the group",
        )


def _time(job: SlurmJob, cluster: Cluster, partition: Partition) -> Iterator[Finding]:
    most = seconds(partition.fields.get("MaxTime", ""))
    if most is not None and -(-job.max_run // 60) * 60 > most:
        refused = cluster.config.get("EnforcePartLimits", "NO") != "NO"
        yield error(
            "time-over-partition",
            f"max_run={job.max_run} s: partition {partition.name} ends jobs after {most} s (MaxTime="
            f"{partition.fields['MaxTime']}), and {'sbatch refuses it' if refused else WAITS}",
            f"--max-run {_time_flag(most)}: a job that is not done by then queues itself again and goes on",
        )


def _size(job: SlurmJob, cluster: Cluster, partition: Partition) -> Iterator[Finding]:
    most, least = (partition.fields.get(key, "") for key in ("MaxNodes", "MinNodes"))
    if most.isdigit() and job.nodes > int(most):
        yield error(
            "nodes-over-partition",
            f"nodes={job.nodes}: partition {partition.name} gives a job at most {most} (MaxNodes), and {WAITS}",
            f"--nodes {most}",
        )
    elif least.isdigit() and job.nodes < int(least):
        yield error(
            "nodes-under-partition",
            f"nodes={job.nodes}: partition {partition.name} gives a job at least {least} (MinNodes)",
            f"--nodes {least}, or another --partition",
        )


def accounts(job: SlurmJob, cluster: Cluster) -> Iterator[Finding]:
    if not cluster.accounting:
        for key in ("account", "qos"):
            if getattr(job, key):
                yield note(
                    f"{key}-unread",
                    f"{key}={getattr(job, key)!r}: the cluster has no accounting, and ignores it",
                    f"leave --{key} out",
                )
    elif cluster.accounts is not None:
        yield from _account(job, cluster)
    yield from _of_partition(job, cluster)
    yield from _qos(job, cluster)
    if cluster.enforces("limits"):
        for what, flag, limits in _limiting(job, cluster):
            yield from _limits(job, what, limits, flag)


def used_account(job: SlurmJob, cluster: Cluster) -> str:
    return job.account or cluster.default_account


def used_qos(job: SlurmJob, cluster: Cluster) -> str:
    """The job's own, or the default one of its account."""
    account = used_account(job, cluster)
    return job.qos or next((one.default_qos for one in cluster.accounts or () if one.name == account), "")


def _account(job: SlurmJob, cluster: Cluster) -> Iterator[Finding]:
    own = list(dict.fromkeys(one.name for one in cluster.accounts or ()))
    level = error if cluster.enforces("associations") else warning
    if not own:
        yield level(
            "account-none",
            f"{cluster.user} has no account on cluster {cluster.config.get('ClusterName', '')} (sacctmgr show assoc)",
            "ask the administrator for one",
        )
        return
    if job.account and job.account not in own:
        near = closest(job.account, own, 0.4)
        yield level(
            "account-unknown",
            f"account={job.account!r}: {cluster.user} may use {', '.join(own)}",
            f"--account {near or own[0]}",
        )
        return
    partition = cluster.partition(job.partition)
    account = used_account(job, cluster)
    rows = [one for one in cluster.accounts or () if one.name == account]
    if partition and rows and not any(one.partition in ("", partition.name) for one in rows):
        yield error(
            "account-other-partition",
            f"account={account!r}: {cluster.user} may use it in {', '.join(one.partition for one in rows)}, not in "
            f"{partition.name}",
            f"--partition {rows[0].partition}, or another --account",
        )


def _of_partition(job: SlurmJob, cluster: Cluster) -> Iterator[Finding]:
    """Accounts and QOS that a partition allows or denies. Without accounting, no job has any, so a list of allowed ones
    keeps every job waiting.
    """
    partition = cluster.partition(job.partition)
    if partition is None:
        return
    account = used_account(job, cluster) if cluster.accounting else ""
    qos = used_qos(job, cluster) if cluster.accounting else ""
    for key, value, allowed, denied in (
        ("account", account, partition.names("AllowAccounts"), partition.names("DenyAccounts")),
        ("qos", qos, partition.names("AllowQos"), partition.names("DenyQos")),
    ):
        if not value and cluster.accounting:
            continue  # what Slurm takes by default is not known
        if (allowed and value not in allowed) or value in denied:
            said = f"{key}={value!r}" if value else f"the cluster has no accounting, and knows no {key}"
            yield error(
                f"{key}-partition",
                f"{said}: partition {partition.name} takes "
                + (f"only {', '.join(allowed)}" if allowed else f"all but {', '.join(denied)}")
                + f", and {WAITS}",
                f"--{key} {allowed[0]}, or another --partition" if allowed and value else "another --partition",
            )


def _qos(job: SlurmJob, cluster: Cluster) -> Iterator[Finding]:
    if cluster.qos is None:
        return
    account = used_account(job, cluster)
    if job.qos and job.qos not in cluster.qos:
        near = closest(job.qos, cluster.qos, 0.4)
        there = ", ".join(cluster.qos)
        yield error("qos-unknown", f"qos={job.qos!r}: the cluster has {there}", f"--qos {near or 'one of them'}")
        return
    allowed = [qos for one in cluster.accounts or () if one.name == account for qos in one.qos]
    if job.qos and allowed and job.qos not in allowed:
        yield error(
            "qos-account",
            f"qos={job.qos!r}: account {account!r} may use {', '.join(allowed)}",
            f"--qos {allowed[0]}, or another --account",
        )


def _limiting(job: SlurmJob, cluster: Cluster) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yields each QOS or account that limits the job, the flag that chooses another one, and its limits that apply.

    Slurm takes each limit from the first of these that sets it: QOS of the partition, QOS of the job, account.
    """
    table, account, name = cluster.qos or {}, used_account(job, cluster), used_qos(job, cluster)
    partition = cluster.partition(job.partition)
    own, of_partition = table.get(name, {}), partition.fields.get("QoS", "") if partition else ""
    found = [(f"qos={of_partition!r} of the partition", "--partition", table.get(of_partition, {}))]
    found.insert(0 if "OverPartQOS" in own.get("Flags", "") else 1, (f"qos={name!r}", "--qos", own))
    rows = [one for one in cluster.accounts or () if one.name == account]
    found += [(f"account={account!r}", "--account", row.limits) for row in rows[:1]]
    taken: set[str] = set()
    for what, flag, limits in found:
        yield what, flag, {key: text for key, text in limits.items() if key not in taken}
        taken |= {key for key, text in limits.items() if text}


def _limits(job: SlurmJob, what: str, limits: Mapping[str, str], flag: str) -> Iterator[Finding]:
    longest = seconds(limits.get("MaxWall", ""))
    if longest is not None and job.max_run > longest:
        yield error(
            "time-over-limit",
            f"max_run={job.max_run} s: {what} allows {limits['MaxWall']} (MaxWall), and {WAITS}",
            f"--max-run {_time_flag(longest)}, or another {flag}",
        )
    gpus = job.gpus.count * job.nodes if job.gpus else 0
    wanted = {"gres/gpu": gpus, "node": job.nodes, "cpu": max(1, job.cpus) * job.ranks}
    for key, name in (("MaxTRES", "a job"), ("MaxTRESPU", "all jobs of a user"), ("GrpTRES", "all its jobs")):
        found = amounts(limits.get(key, ""))
        for unit, number in wanted.items():
            if number > found.get(unit, number):
                yield error(
                    "size-over-limit",
                    f"nodes={job.nodes}: the job needs {unit}={number}, but {what} allows only "
                    f"{unit}={found[unit]} for {name} ({key}), and {WAITS}",
                    f"fewer --nodes or --gpus, or another {flag}",
                )


def _time_flag(most: int) -> str:
    return f"{most // 3600}h" if most % 3600 == 0 else f"{most // 60}m"


def _groups(user: str) -> list[str]:
    """Names of the groups of a user, as far as this host knows them. A directory service
    may not list all groups, but gives the name for each group number.
    """
    import grp
    import os
    import pwd

    names = []
    try:
        for number in os.getgrouplist(user, pwd.getpwnam(user).pw_gid):
            with suppress(KeyError):
                names.append(grp.getgrgid(number).gr_name)
    except KeyError:
        return []
    return names

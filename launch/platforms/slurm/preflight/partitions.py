"""Checks of the partition and the limits of a Slurm job: mistakes that Slurm accepts, although the
job waits forever.

What `sbatch --test-only` refuses is left to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launch.core.findings import Finding, error
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.preflight.state import Partition, SlurmState, amounts, seconds

WAITS = "where sbatch accepts the job, it waits forever"


def partitions(job: SlurmJob, cluster: SlurmState) -> Iterator[Finding]:
    partition = cluster.partition(job.partition)
    if partition is not None:
        state = partition.fields.get("State", "UP")
        if state != "UP":
            others = [
                other.name for other in cluster.partitions if other.fields.get("State") == "UP"
            ]
            yield error(
                "partition-down",
                f"partition {partition.name} is {state}: no job starts there until an "
                "administrator opens it",
                f"--partition, one of {', '.join(others) or 'another cluster'}",
            )
        most = seconds(partition.fields.get("MaxTime", ""))
        if most is not None and -(-job.max_run // 60) * 60 > most:
            yield error(
                "time-over-partition",
                f"max_run={job.max_run} s: partition {partition.name} ends jobs after {most} s "
                f"(MaxTime={partition.fields['MaxTime']}), and {WAITS}",
                f"--max-run {most // 60}m: a job that is not done by then queues itself again "
                "and goes on",
            )
        yield from _allowed(job, cluster, partition)
    if cluster.enforces("limits"):
        for what, flag, limits in _limiting(job, cluster):
            yield from _limits(job, what, limits, flag)


def used_account(job: SlurmJob, cluster: SlurmState) -> str:
    return job.account or cluster.default_account


def used_qos(job: SlurmJob, cluster: SlurmState) -> str:
    """The job's own, or the default one of its account."""
    account = used_account(job, cluster)
    return job.qos or next(
        (
            association.default_qos
            for association in cluster.accounts or ()
            if association.name == account
        ),
        "",
    )


def _allowed(job: SlurmJob, cluster: SlurmState, partition: Partition) -> Iterator[Finding]:
    """Accounts and QOS that a partition allows or denies. Without accounting, no job has any, so a
    list of allowed ones keeps every job waiting.
    """
    account = used_account(job, cluster) if cluster.accounting else ""
    qos = used_qos(job, cluster) if cluster.accounting else ""
    for key, value, allowed, denied in (
        ("account", account, partition.names("AllowAccounts"), partition.names("DenyAccounts")),
        ("qos", qos, partition.names("AllowQos"), partition.names("DenyQos")),
    ):
        if not value and cluster.accounting:
            continue  # what Slurm takes by default is not known
        if (allowed and value not in allowed) or value in denied:
            said = (
                f"{key}={value!r}"
                if value
                else f"the cluster has no accounting, and knows no {key}"
            )
            yield error(
                f"{key}-partition",
                f"{said}: partition {partition.name} takes "
                + (f"only {', '.join(allowed)}" if allowed else f"all but {', '.join(denied)}")
                + f", and {WAITS}",
                f"--{key} {allowed[0]}, or another --partition"
                if allowed and value
                else "another --partition",
            )


def _limiting(job: SlurmJob, cluster: SlurmState) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yields each QOS or account that limits the job, the flag that chooses another one, and its
    limits that apply.

    Slurm takes each limit from the first of these that sets it: QOS of the partition, QOS of the
    job, account.
    """
    table, account, name = cluster.qos or {}, used_account(job, cluster), used_qos(job, cluster)
    partition = cluster.partition(job.partition)
    own, of_partition = table.get(name, {}), partition.fields.get("QoS", "") if partition else ""
    sources = [
        (f"qos={of_partition!r} of the partition", "--partition", table.get(of_partition, {}))
    ]
    sources.insert(
        0 if "OverPartQOS" in own.get("Flags", "") else 1, (f"qos={name!r}", "--qos", own)
    )
    rows = [association for association in cluster.accounts or () if association.name == account]
    sources += [(f"account={account!r}", "--account", row.limits) for row in rows[:1]]
    taken: set[str] = set()
    for what, flag, limits in sources:
        yield what, flag, {key: text for key, text in limits.items() if key not in taken}
        taken |= {key for key, text in limits.items() if text}


def _limits(job: SlurmJob, what: str, limits: Mapping[str, str], flag: str) -> Iterator[Finding]:
    longest = seconds(limits.get("MaxWall", ""))
    if longest is not None and job.max_run > longest:
        yield error(
            "time-over-limit",
            f"max_run={job.max_run} s: {what} allows {limits['MaxWall']} (MaxWall), and {WAITS}",
            f"--max-run {longest // 60}m, or another {flag}",
        )
    gpus = job.gpus.count * job.nodes if job.gpus else 0
    wanted = {"gres/gpu": gpus, "node": job.nodes, "cpu": max(1, job.cpus) * job.ranks}
    for key, name in (
        ("MaxTRES", "a job"),
        ("MaxTRESPU", "all jobs of a user"),
        ("GrpTRES", "all its jobs"),
    ):
        allowed = amounts(limits.get(key, ""))
        for unit, number in wanted.items():
            if number > allowed.get(unit, number):
                yield error(
                    "size-over-limit",
                    f"nodes={job.nodes}: the job needs {unit}={number}, but {what} allows only "
                    f"{unit}={allowed[unit]} for {name} ({key}), and {WAITS}",
                    f"fewer --nodes or --gpus, or another {flag}",
                )

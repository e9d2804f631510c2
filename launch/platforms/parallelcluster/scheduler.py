"""Checks of a recipe's Slurm settings: what loses jobs, and values that nobody else checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from launch.core.findings import Finding, error, warning
from launch.platforms.parallelcluster.recipe import Keys, entries, mapping, queues, resources, whole

# Lower case, as Slurm reads them.
VALUES = {
    "preemptmode": ("off", "cancel", "requeue", "suspend", "gang", "within"),
    "preempttype": ("preempt/none", "preempt/partition_prio", "preempt/qos"),
    "jobrequeue": ("0", "1"),
}
LEAST_KILL_WAIT_S = 30
MOST_IDLE_MIN = 60


def scheduler(recipe: Keys) -> list[Finding]:
    """Everything about Slurm."""
    section = mapping(recipe, "Scheduling")
    settings = mapping(section, "SlurmSettings")
    own = [one for one in entries(settings, "CustomSlurmSettings") if len(one) == 1]
    partitions = [one for one in entries(settings, "CustomSlurmSettings") if len(one) > 1]
    known = {str(key).lower(): value for one in own for key, value in one.items()}
    found = [*_values("SlurmSettings", known), *_lost(recipe, known), *_idle(settings)]
    for queue in queues(recipe):
        custom = {
            str(key).lower(): value for key, value in mapping(queue, "CustomSlurmSettings").items()
        }
        found += _values(f"queue {queue.get('Name')}", custom)
        if "prioritytier" in custom and not partitions:
            found.append(
                warning(
                    "preempt-apart",
                    f"queue {queue.get('Name')}: PriorityTier preempts nothing: each queue of "
                    "ParallelCluster has nodes of its own",
                    "leave it out, or add a partition on the same nodes to "
                    "SlurmSettings/CustomSlurmSettings",
                )
            )
    return found


def _values(place: str, custom: dict[str, Any]) -> Iterator[Finding]:
    for name, legal in VALUES.items():
        if name not in custom:
            continue
        value = custom[name]
        words = ["off" if value is False else "1" if value is True else str(value).lower()]
        if name == "preemptmode":
            words = words[0].split(",")
        if not set(words) <= set(legal):
            yield error(
                "slurm-value",
                f"{place}/CustomSlurmSettings: {name} {value}: slurmctld would not start, and "
                "nobody checks it before",
                f"one of {', '.join(legal)}",
            )


def _lost(recipe: Keys, known: dict[str, Any]) -> Iterator[Finding]:
    if str(known.get("jobrequeue", "1")).lower() in ("0", "false"):
        spot = any(resource.capacity == "SPOT" for resource in resources(recipe))
        yield warning(
            "requeue-off",
            (
                "SlurmSettings/CustomSlurmSettings: JobRequeue 0: a job whose node is lost is not "
                "started again"
            )
            + (", and spot machines are taken away" if spot else ""),
            "JobRequeue: 1",
        )
    wait = whole(known.get("killwait"), LEAST_KILL_WAIT_S)
    if wait < LEAST_KILL_WAIT_S:
        yield warning(
            "kill-wait",
            f"SlurmSettings/CustomSlurmSettings: KillWait {wait}: a checkpoint that takes "
            "longer is cut off",
            "KillWait: 60",
        )


def _idle(settings: Keys) -> Iterator[Finding]:
    idle = settings.get("ScaledownIdletime", 10)
    if idle == -1 or (isinstance(idle, int) and idle > MOST_IDLE_MIN):
        yield warning(
            "idle-long",
            f"SlurmSettings/ScaledownIdletime {idle}: idle nodes "
            + ("never end" if idle == -1 else f"are paid for {idle} minutes more"),
            "ScaledownIdletime: 10",
        )

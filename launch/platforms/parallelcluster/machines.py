"""Checks of a recipe's machines: retired types and those without a driver, EFA, counts, spot,
capacity blocks.

The dry run of ``pcluster create-cluster`` finds what is not here: types without EFA, types that
differ in vCPUs or GPUs, and counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from launch.core.findings import Finding, error, note, warning
from launch.platforms.parallelcluster.recipe import (
    VERSION,
    Keys,
    Resource,
    always_on,
    entries,
    mapping,
    queues,
    resources,
)
from launch.platforms.sagemaker.instances import INSTANCES, like, nearest, unfit
from segtrain.machines import Machine

NO_DRIVER = ("p2", "p3", "p3dn", "g2", "g3", "g3s")
NO_DRIVER_FROM = f"aws-parallelcluster {VERSION}, NVIDIA_OPENRM_UNSUPPORTED_INSTANCE_TYPES"
PYTHON_TOO_OLD = ("rhel8", "rocky8", "rhel9", "rocky9", "alinux2023")


def machines(recipe: Keys) -> list[Finding]:
    """Everything about the operating system and the machines."""
    findings = [*_system(recipe), *_always_on(recipe)]
    for resource in resources(recipe):
        findings += [finding for name in resource.types for finding in _type(resource.place, name)]
        findings += [
            *_counts(resource),
            *_fabric(resource),
            *_several_types(resource),
            *_block(resource),
        ]
    for queue in queues(recipe):
        findings += _strategy(queue)
    return findings


def known(name: str) -> Machine | None:
    return INSTANCES.get(f"ml.{name}")


def _system(recipe: Keys) -> Iterator[Finding]:
    system = mapping(recipe, "Image").get("Os")
    if system in PYTHON_TOO_OLD:
        yield note(
            "os-python",
            f"Image/Os {system}: the Python of this system is older than 3.10, which "
            "segtrain needs",
            "install a newer one on every node (in compute.sh too), or take Os: ubuntu2404",
        )


def _always_on(recipe: Keys) -> Iterator[Finding]:
    """Head and login nodes: they run day and night."""
    for place, section in always_on(recipe):
        name = str(section.get("InstanceType") or "")
        if not name:
            continue
        yield from _type(place, name)
        machine = known(name)
        if machine is not None and machine.gpus and not machine.retired:
            yield warning(
                "gpu-always-on",
                f"{place}: {name} has GPUs, and is paid for day and night",
                "a CPU type such as m6i.xlarge; GPUs belong into queues, which shrink to zero",
            )
        if name.partition(".")[2] in ("nano", "micro", "small"):
            yield warning(
                "head-small",
                f"{place}: {name} has at most 2 GB of memory: Slurm's daemons and one pip "
                "install would fill it",
                "m6i.large or larger",
            )


def _type(place: str, name: str) -> Iterator[Finding]:
    family = name.partition(".")[0]
    machine = known(name)
    if machine is not None and machine.retired:
        yield error(
            "type-retired",
            f"{place}: {name} is gone, so no node could start",
            _instead(name),
            machine.retired,
        )
    elif family in NO_DRIVER:
        yield error(
            "type-driver",
            f"{place}: the NVIDIA driver of ParallelCluster's images does not support {name}",
            _instead(name) if machine is not None else "a type with T4, A10G, L4 or newer GPUs",
            NO_DRIVER_FROM,
        )
    elif reason := unfit(f"ml.{name}"):
        yield error(
            "type-unfit",
            f"{place}: {name}: {reason}",
            "a type with NVIDIA GPUs, or an x86 CPU type",
        )
    elif machine is None:
        near = [one.removeprefix("ml.") for one in like(name)]
        also = f"; did you mean {', '.join(near)}?" if near else ""
        yield note(
            "type-unknown",
            f"{place}: {name} is not in segtrain's table of types, so it was not checked{also}",
        )


def _instead(name: str) -> str:
    near = [
        f"{one.name.removeprefix('ml.')} ({one.gpus} {one.gpu})" for one in nearest(f"ml.{name}", 3)
    ]
    return f"in its place: {', '.join(near)}"


def _counts(resource: Resource) -> Iterator[Finding]:
    least = resource.least
    if least > 0 and resource.capacity != "CAPACITY_BLOCK":
        yield warning(
            "count-least",
            f"{resource.place}: MinCount {least}: as many {' or '.join(resource.types)} run and "
            "are paid for while no job runs",
            "MinCount: 0, so that the queue shrinks to nothing",
        )


def _fabric(resource: Resource) -> Iterator[Finding]:
    machines = [machine for machine in map(known, resource.types) if machine is not None]
    several = resource.most > 1 and resource.capacity != "SPOT"
    if several and not resource.efa and machines and all(one.efa and one.gpus for one in machines):
        yield warning(
            "efa-off",
            f"{resource.place}: {', '.join(resource.types)} has EFA, which is off: jobs of "
            "several nodes talk over TCP",
            "Efa: {Enabled: true}, which costs nothing, or MaxCount: 1",
        )


def _several_types(resource: Resource) -> Iterator[Finding]:
    machines = [machine for machine in map(known, resource.types) if machine is not None]
    if resource.capacity == "SPOT" and len(resource.types) == 1:
        yield warning(
            "spot-one-type",
            f"{resource.place}: one type of spot machine: where {resource.types[0]} is short, "
            "jobs wait",
            "several types of the same number of GPUs and vCPUs under Instances",
        )
    if len({machine.gpu for machine in machines}) > 1 and resource.most > 1:
        yield note(
            "types-mixed",
            f"{resource.place}: a job of several nodes may get "
            f"{' and '.join(sorted({one.gpu for one in machines}))}: "
            "it is as fast as the slower ones, and other GPUs round differently",
            "jobs of one node here, or one type",
        )


def _block(resource: Resource) -> Iterator[Finding]:
    if resource.capacity != "CAPACITY_BLOCK":
        return
    target = mapping(resource.keys, "CapacityReservationTarget") or mapping(
        resource.queue, "CapacityReservationTarget"
    )
    if not target.get("CapacityReservationId"):
        yield error(
            "block-unnamed",
            f"{resource.place}: CAPACITY_BLOCK without a reservation",
            "CapacityReservationTarget: {CapacityReservationId: cr-...}",
        )
    if resource.least != resource.most or resource.least < 1:
        yield error(
            "block-count",
            f"{resource.place}: MinCount {resource.least} and MaxCount {resource.most} of a "
            "capacity block",
            "both the number of machines of the reservation: it is paid for anyway",
        )


def _strategy(queue: Keys) -> Iterator[Finding]:
    capacity, strategy = queue.get("CapacityType", "ONDEMAND"), queue.get("AllocationStrategy")
    several = any(
        len(entries(keys, "Instances")) > 1 for keys in entries(queue, "ComputeResources")
    )
    if capacity == "SPOT" and several and strategy in (None, "lowest-price"):
        yield warning(
            "spot-strategy",
            f"queue {queue.get('Name')}: AllocationStrategy "
            f"{strategy or 'lowest-price (the default)'} takes the spot "
            "machines that are taken away soonest",
            "AllocationStrategy: price-capacity-optimized",
        )

"""SageMaker's training types: which ones there are, which are similar, and which segtrain does not
run on.

segtrain/machines/sagemaker.csv holds every type that botocore 1.44.5 allows for a training job,
except those in ``UNFIT`` (Neuron chips, ARM, GPUs that are too old). A type in neither of them may
be newer than the table: ``allowed`` looks it up in botocore's service model.
"""

from __future__ import annotations

import difflib
import re

from launch.core.findings import Finding, error, note, warning
from launch.platforms.sagemaker.regions import OFFERED_FROM, offered, regions_of
from segtrain.machines import Machine, dated, machines, sources

SMDDP_TYPES_FROM = "SageMaker docs, distributed-data-parallel-support, 2026"
INSTANCES: dict[str, Machine] = machines("sagemaker")
SMDDP_TYPES = tuple(machine.name for machine in INSTANCES.values() if machine.smddp)
# The day of the prices of all types but p3.
PRICES_DATED = dated(sources("sagemaker")["list"])

# Types that the service knows but segtrain does not run on: name, or beginning of the name ->
# reason.
UNFIT = {
    "ml.p2.": (
        "no image of the table has code for its K80 GPU (sm_37), and EC2 no longer describes p2"
    ),
    "ml.trn": "AWS Trainium needs torch-neuronx, and segtrain trains on CUDA or on CPUs",
    "ml.p6e-gb200.": "its CPUs are ARM, and the images of the table are for x86-64",
}


def unfit(name: str) -> str:
    """The reason why segtrain does not run on a type that the service knows; "" if there is
    none.
    """
    return next((why for start, why in UNFIT.items() if name.startswith(start)), "")


def allowed(name: str) -> bool | None:
    """Does the service model of the installed botocore allow the type for a training job? None
    without botocore.
    """
    from launch.platforms.sagemaker.service_model import enumeration

    names = enumeration("TrainingInstanceType")
    return None if names is None else name in names


def like(name: str, count: int = 3) -> list[str]:
    """The known names nearest to a mistyped or unknown one."""
    living = [machine.name for machine in INSTANCES.values() if not machine.retired]
    return difflib.get_close_matches(f"ml.{name.removeprefix('ml.')}", living, n=count, cutoff=0.75)


def nearest(name: str, count: int = 4) -> list[Machine]:
    """Current GPU types that can replace ``name``, with at least its memory per GPU: of each GPU
    model the type that is nearest in number of GPUs and price. A retired type gets no other type of
    its GPU architecture, which will be retired as well.
    """
    replaced = INSTANCES[name]
    similar = [
        machine
        for machine in INSTANCES.values()
        if machine.gpus
        and not machine.retired
        and machine.name != name
        and machine.gpu_memory_gb >= replaced.gpu_memory_gb
        if not (replaced.retired and machine.arch == replaced.arch)
    ]
    similar.sort(
        key=lambda machine: (
            abs(machine.gpus - replaced.gpus),
            abs((machine.price or 1e9) - (replaced.price or 0)),
        )
    )
    of_each_model = {machine.gpu: machine for machine in reversed(similar)}
    return sorted(of_each_model.values(), key=similar.index)[:count]


def about_type(
    name: str, *, image: str = "", unknown_ok: bool = False, where: str = ""
) -> list[Finding]:
    """Findings about a type from its name alone. ``where``: a prefix of each message, such as
    "groups.cpu: ".
    """
    instance, flag = INSTANCES.get(name), "another type: " if where else "--type "
    if instance is not None and instance.retired:
        others = "; ".join(describe(machine, instance) for machine in nearest(name))
        message = (
            f"type {name} is retired: EC2 does not offer it any more, so SageMaker is likely to "
            "refuse the job or never to start it"
        )
        return [
            warning(
                "retired-type",
                where + message,
                f"{flag}one of {others}",
                instance.retired,
            )
        ]
    if instance is not None:
        return []
    if why := unfit(name):
        cure = "" if image else f"{flag}ml.g5.12xlarge, or bring an --image that runs there"
        return [
            Finding(
                "warning" if image else "error", "unfit-type", f"{where}type {name}: {why}", cure
            )
        ]
    near = like(name)
    in_service_model = allowed(name)
    if in_service_model:
        message = (
            f"type {name} is not in the table, but SageMaker's service model allows it: its GPUs, "
            "memory, price and speed are not known here, so nothing is checked against them (the "
            "batch is checked for one rank per host)"
        )
        cure = (
            f"--price for the cost; in the table and similar: {', '.join(near)}"
            if near
            else "--price for the cost"
        )
        return [
            note(
                "type-not-in-table",
                where + message,
                cure,
                "botocore's model of CreateTrainingJob",
            )
        ]
    message = f"{where}type {name!r} is not a known training type" + (
        f"; near: {', '.join(near)}" if near else ""
    )
    cure = f"{flag}{near[0]}" if near else f"{flag}takes a SageMaker name, such as ml.g5.12xlarge"
    if in_service_model is None and re.fullmatch(
        r"ml\.[a-z0-9-]+\.([0-9]+x|x)?(medium|large)", name
    ):
        message += (
            " (not checked further: this Python has no botocore, which has SageMaker's own list)"
        )
        return [warning("unknown-type", message, cure)]
    if unknown_ok:
        return [warning("unknown-type", f"{message}; allowed by --unknown-type-ok", cure)]
    newer = "if AWS has just added it: pip install -U botocore, or --unknown-type-ok"
    return [error("unknown-type", message, f"{cure}; {newer}")]


def about_known(instance: Machine, strategy: str, region: str) -> list[Finding]:
    findings = []
    if not instance.retired and offered(instance.name, region) is False:
        message = (
            f"type {instance.name}: EC2 does not offer it in {region}, so SageMaker cannot "
            "start it there"
        )
        cure = f"--region one of {', '.join(regions_of(instance.name))}"
        findings.append(warning("region-type", message, cure, OFFERED_FROM))
    if strategy == "smddp" and not instance.smddp:
        message = (
            f"strategy smddp: SMDDP does not support {instance.name} (it supports "
            f"{', '.join(SMDDP_TYPES)})"
        )
        cure = "--strategy ddp (NCCL), or --type ml.p4d.24xlarge"
        findings.append(error("smddp-type", message, cure, SMDDP_TYPES_FROM))
    return findings


def describe(machine: Machine, reference: Machine | None = None) -> str:
    """A type in a few words: its GPUs, memory, price, and speed relative to ``reference``, as far
    as these are known.
    """
    gpu = machine.gpu.partition("-")[0]  # A100-40GB is an A100
    parts = [
        f"{machine.gpus} x {gpu} {machine.gpu_memory_gb} GB"
        if machine.gpus
        else f"{machine.vcpus} vCPUs"
    ]
    if machine.price is not None:
        parts.append(f"${machine.price:.{2 if machine.price >= 1 else 3}f}/h")
    if machine.speed is not None and reference is not None and reference.speed:
        parts.append(f"about {machine.speed / reference.speed:.1f} x the speed")
    return f"{machine.name} ({', '.join(parts)})"

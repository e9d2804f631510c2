"""Checks of an instance type by its name: retired, unfit, unknown, not offered in the region, not for SMDDP."""

from __future__ import annotations

import re

from launch.core.findings import Finding
from launch.platforms.sagemaker.instances import INSTANCES, SMDDP_TYPES, SMDDP_TYPES_FROM, allowed, like, nearest, unfit
from launch.platforms.sagemaker.regions import OFFERED_FROM, offered, regions_of
from segtrain.machines import Machine


def about_type(name: str, *, image: str = "", unknown_ok: bool = False, where: str = "") -> list[Finding]:
    """Findings about a type from its name alone. ``where``: a prefix of each message, such as "groups.cpu: "."""
    instance, flag = INSTANCES.get(name), "another type: " if where else "--type "
    if instance is not None and instance.retired:
        others = "; ".join(describe(one, instance) for one in nearest(name))
        message = (
            f"type {name} is retired: EC2 does not offer it any more, so SageMaker is likely to refuse "
            "the job or never to start it"
        )
        return [Finding("warning", "retired-type", where + message, f"{flag}one of {others}", instance.retired)]
    if instance is not None:
        return []
    if why := unfit(name):
        cure = "" if image else f"{flag}ml.g5.12xlarge, or bring an --image that runs there"
        return [Finding("warning" if image else "error", "unfit-type", f"{where}type {name}: {why}", cure)]
    near = like(name)
    known = allowed(name)
    if known:
        message = (
            f"type {name} is not in the table, but SageMaker's service model allows it: its GPUs, memory, price "
            "and speed are not known here, so nothing is checked against them (the batch is checked for one rank "
            "per host)"
        )
        cure = f"--price for the cost; in the table and similar: {', '.join(near)}" if near else "--price for the cost"
        return [Finding("note", "type-not-in-table", where + message, cure, "botocore's model of CreateTrainingJob")]
    message = f"{where}type {name!r} is not a known training type" + (f"; near: {', '.join(near)}" if near else "")
    cure = f"{flag}{near[0]}" if near else f"{flag}takes a SageMaker name, such as ml.g5.12xlarge"
    if known is None and re.fullmatch(r"ml\.[a-z0-9-]+\.([0-9]+x|x)?(medium|large)", name):
        message += " (not checked further: this Python has no botocore, which has SageMaker's own list)"
        return [Finding("warning", "unknown-type", message, cure)]
    if unknown_ok:
        return [Finding("warning", "unknown-type", f"{message}; allowed by --unknown-type-ok", cure)]
    newer = "if AWS has just added it: pip install -U botocore, or --unknown-type-ok"
    return [Finding("error", "unknown-type", message, f"{cure}; {newer}")]


def about_known(instance: Machine, strategy: str, region: str) -> list[Finding]:
    findings = []
    if not instance.retired and offered(instance.name, region) is False:
        message = f"type {instance.name}: EC2 does not offer it in {region}, so SageMaker cannot start it there"
        cure = f"--region one of {', '.join(regions_of(instance.name))}"
        findings.append(Finding("warning", "region-type", message, cure, OFFERED_FROM))
    if strategy == "smddp" and not instance.smddp:
        message = f"strategy smddp: SMDDP does not support {instance.name} (it supports {', '.join(SMDDP_TYPES)})"
        cure = "--strategy ddp (NCCL), or --type ml.p4d.24xlarge"
        findings.append(Finding("error", "smddp-type", message, cure, SMDDP_TYPES_FROM))
    return findings


def describe(one: Machine, asked: Machine | None = None) -> str:
    """A type in a few words: its GPUs, memory, price, and speed relative to ``asked``, as far as these are known."""
    gpu = one.gpu.partition("-")[0]  # A100-40GB is an A100
    parts = [f"{one.gpus} x {gpu} {one.gpu_memory_gb} GB" if one.gpus else f"{one.vcpus} vCPUs"]
    if one.price is not None:
        parts.append(f"${one.price:.{2 if one.price >= 1 else 3}f}/h")
    if one.speed is not None and asked is not None and asked.speed:
        parts.append(f"about {one.speed / asked.speed:.1f} x the speed")
    return f"{one.name} ({', '.join(parts)})"

"""The most that a job can cost: machines x price x longest run."""

from __future__ import annotations

from dataclasses import replace

from launch.platforms.sagemaker.instances import INSTANCES
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.job_parts import Group
from launch.platforms.sagemaker.preflight.levels import hours
from segtrain.machines import dated


def cost_ceiling(job: SageMakerJob) -> tuple[float | None, str]:
    """The most that the job can cost, in dollars (None if a price is not known) and in words.

    With fallback types: the cost on the most expensive type.
    """
    if job.fallbacks:
        others = [replace(job, type=one.type, instances=one.instances or job.instances) for one in job.fallbacks]
        sums = [cost_ceiling(replace(one, fallbacks=())) for one in (job, *others)]
        return next((one for one in sums if one[0] is None), max(sums, key=lambda one: one[0] or 0.0))
    groups = job.groups or (Group("", job.type, job.instances),)
    hourly = 0.0
    parts = []
    unknown = []
    for group in groups:
        price, source = price_of(job, group.type)
        if price is None:
            unknown.append(group.type)
            continue
        hourly += group.instances * price
        parts.append(f"{group.instances} x {group.type} at ${price:g}/h ({source})")
    if unknown:
        cure = (
            "give it with --price"
            if job.training_type in unknown
            else "look it up: --price sets only the price of the type that trains"
        )
        return None, f"not known: no price of {', '.join(unknown)} in the table; {cure}"
    total = hourly * job.max_run / 3600
    words = f"at most ${total:,.2f}: {' + '.join(parts)} for {hours(job.max_run)}"
    if job.spot:
        words += "; spot is cheaper, but its price changes by the hour"
    if job.warm_pool:
        kept = hourly * job.warm_pool / 3600
        total += kept
        words += f"; and ${kept:,.2f} for {hours(job.warm_pool)} of warm pool"
    if job.retries:
        words += "; the longest run holds for all retries together"
    return round(total, 2), words + "; storage and transfer are extra"


def price_of(job: SageMakerJob, name: str) -> tuple[float | None, str]:
    """Dollars per hour of an instance (None: not known), and their source."""
    if job.price is not None and name == job.training_type:
        return job.price, "--price"
    instance = INSTANCES.get(name)
    if instance is None or instance.price is None:
        return None, ""
    elsewhere = f", for {job.region} it differs" if job.region not in ("", "us-east-1") else ""
    return instance.price, f"us-east-1, {dated(instance.price_source)}{elsewhere}"

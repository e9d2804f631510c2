"""What can a job cost at most: machines x price x longest run?"""

from __future__ import annotations

from launch.aws.instances import INSTANCES, PRICES_DATED
from launch.aws.preflight.levels import hours
from launch.job import Group, Job


def cost_ceiling(job: Job) -> tuple[float | None, str]:
    """Dollars (None where a price is not known), and the sum in words."""
    groups = job.groups or (Group("", job.type, job.instances),)
    total = 0.0
    parts = []
    unknown = []
    for group in groups:
        price, source = _price(job, group.type)
        if price is None:
            unknown.append(group.type)
            continue
        total += group.instances * price * job.max_run / 3600
        parts.append(f"{group.instances} x {group.type} at ${price:g}/h ({source})")
    if unknown:
        return None, f"not known: no price of {', '.join(unknown)} in the table; give it with --price"
    words = f"at most ${total:,.2f}: {' + '.join(parts)} for {hours(job.max_run)}"
    if job.spot:
        words += "; spot is cheaper, by how much changes by the hour"
    if job.warm_pool:
        kept = total / job.max_run * job.warm_pool
        total += kept
        words += f"; and ${kept:,.2f} for {hours(job.warm_pool)} of warm pool"
    if job.retries:
        words += "; the longest run holds for all retries together"
    return round(total, 2), words + "; storage and transfer are extra"


def _price(job: Job, name: str) -> tuple[float | None, str]:
    if job.price is not None:
        return job.price, "--price"
    instance = INSTANCES.get(name)
    if instance is None or instance.price is None:
        return None, ""
    elsewhere = f", for {job.region} it differs" if job.region not in ("", "us-east-1") else ""
    return instance.price, f"us-east-1, {PRICES_DATED}{elsewhere}"

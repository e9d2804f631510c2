"""Notes on a plan from a config: where its figures are from, strategies, and sources of data."""

from __future__ import annotations

from typing import Any

from segtrain.insight.plan import ways
from segtrain.insight.plan.described import ConfigPlan, Job
from segtrain.insight.plan.device import MEMORY, TENSOR
from segtrain.insight.plan.memory import ALLOWED, FRAGMENTS, GIB
from segtrain.insight.plan.offers import Offer, assumed
from segtrain.insight.plan.words import pauses, tables
from segtrain.machines import gpus


def about_job(found: ConfigPlan, offer: Offer | None) -> dict[str, Any]:
    """For JSON: the job, and what runs it. ``offer``: the one whose details are shown."""
    job = found.job
    return {
        "dropped": [{"machine": name, "hosts": hosts, "why": why} for (name, hosts), why in found.dropped.items()],
        "total": job.total,
        "sample": vars(job.sample),
        "step": job.step and vars(job.step),
        "stored": vars(job.stored),
        "strategies": [vars(row) for row in ways.strategies(job, offer)] if offer else [],
        "sources": [vars(row) for row in ways.sources(job, offer)] if offer else [],
    }


def about_config(found: ConfigPlan, offer: Offer | None) -> tuple[str, list[str]]:
    """The first line of a plan from a config, and its notes. ``offer``: the one whose details are shown."""
    job, train = found.job, found.job.config.train
    head = (
        f"{job.total:,.0f} images ({train.duration} of {job.stored.images:,}), {train.batch_size} in a step over all "
        f"GPUs, in {train.precision}, by {job.config.name or 'the defaults'}"
    )
    notes, images, sample = list[str](), job.network.most, job.sample
    dry = job.network.step(images)
    low, high = (1000 * factor * sample.cpu for factor in sample.spread)
    cost = f"a sample costs {1000 * sample.cpu:.3g} ms of CPU ({low:.2g} to {high:.2g})"
    if sample.first:
        cost += f" from memory (data.cache=ram), and {1000 * sample.first:.3g} ms until it is there"
    cost += f": {sample.says}"
    measured = [cost] if sample.measured else []
    guessed = [] if sample.measured else [f"{cost}; --probe measures it"]
    if job.step is not None:
        measured.append(f"{1000 * job.step.seconds:.3g} ms for {job.step.images} images on {job.step.gpu}")
    else:
        guessed.append(f"GPUs reach {TENSOR:.0%} of their peak, and {MEMORY:.0%} of their memory's rate")
    guessed += assumed("speed", "again on CPUs")
    guessed.append(f"{sum(ALLOWED.values()) / GIB:g} GiB, and {FRAGMENTS - 1:.0%} of activations, that no pass sees")
    if offer is not None:
        notes += _details(job, offer)
    notes += [
        "",
        f"computed, by a pass without data: for an image {dry.flops / images / 1e9:,.3g} GFLOP, "
        f"{dry.moved / images / 1e9:,.3g} GB of memory traffic, and {dry.kept / images / GIB:,.2g} GiB of activations; "
        f"{sum(size for size, _ in dry.gradients) / 1e6:,.3g} MB of gradients",
        *([f"measured: {'; '.join(measured)}"] if measured else []),
        tables(found),
        f"assumed: {'; '.join(guessed)}",
    ]
    if offer is not None:
        machine = offer.machine
        notes.append(pauses(job.scores(gpus()[machine.gpu], machine.vcpus / machine.gpus), job.saves()))
    return head, notes


def _details(job: Job, offer: Offer) -> list[str]:
    """Strategies and sources of data for an offer."""
    lines, named = list[str](), f"{offer.hosts} x {offer.machine.name}"
    sharing, places = ways.strategies(job, offer), ways.sources(job, offer)
    if sharing:
        lines += ["", f"strategies on {named}:", *ways.sharing_text(sharing)]
    if places:
        size = job.stored.total_bytes / 1e9
        lines += ["", f"sources of the {size:,.3g} GB of data on {named}, for {offer.rate[1]:,.0f} images/s:"]
        lines += ways.source_text(places, offer.rate[1])
        lines += [f"  from: {'; '.join(dict.fromkeys(row.source for row in places))}"]
    return lines

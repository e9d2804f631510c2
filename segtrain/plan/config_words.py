"""Text and JSON of a plan from a config: offers, strategies, sources of data, and where the figures are from."""

from __future__ import annotations

from collections import Counter
from typing import Any

from segtrain.machines import dated, gpus, sources
from segtrain.plan import ways
from segtrain.plan.described import COPIED, WRITTEN, ConfigPlan, Job
from segtrain.plan.device import MEMORY, TENSOR
from segtrain.plan.market import NO_SPOT, Market
from segtrain.plan.memory import ALLOWED, FRAGMENTS, GIB
from segtrain.plan.offers import Offer, assumed
from segtrain.plan.words import choice, table


def page(
    found: ConfigPlan,
    deadline_s: float = 0.0,
    budget: float = 0.0,
    every: bool = False,
    market: Market | None = None,
) -> str:
    """The plan of a config. ``every``: all offers, not only the best for each GPU and number of hosts.

    ``market``: of spot machines, for a column of their dollars.
    """
    best, job = found.best(deadline_s, budget), found.job
    config = job.config
    train = config.train
    lines = [
        f"{job.total:,.0f} images ({train.duration} of {job.stored.images:,}), {train.batch_size} in a step over all "
        f"GPUs, in {train.precision}, by {config.name or 'the defaults'}. In parentheses: 80 % of the cases.",
        "",
    ]
    if found.offers:
        lines += [*table(found, best, every, market), "", choice(best, deadline_s, budget, found)]
    else:
        lines.append("no type can be offered: see below why")
    shown = best or next(iter(found.offers), None)
    if shown is not None:
        lines += _around(job, shown)
    return "\n".join([*lines, *_notes(found, shown), market.note(best) if market else NO_SPOT])


def as_dict(found: ConfigPlan, deadline_s: float, budget: float, market: Market | None = None) -> dict[str, Any]:
    best, job = found.best(deadline_s, budget), found.job
    shown = best or next(iter(found.offers), None)
    return {
        "offers": [offer.to_dict() for offer in found.offers],
        **({"spot": market.rows(found)} if market else {}),
        "left_out": found.left_out,
        "dropped": [{"machine": name, "hosts": hosts, "why": why} for (name, hosts), why in found.dropped.items()],
        "best": best and best.to_dict(),
        "total": job.total,
        "sample": vars(job.sample),
        "step": job.step and vars(job.step),
        "stored": vars(job.stored),
        "strategies": [vars(row) for row in ways.strategies(job, shown)] if shown else [],
        "sources": [vars(row) for row in ways.sources(job, shown)] if shown else [],
    }


def _around(job: Job, offer: Offer) -> list[str]:
    lines, named = [], f"{offer.hosts} x {offer.machine.name}"
    sharing, places = ways.strategies(job, offer), ways.sources(job, offer)
    if sharing:
        lines += ["", f"strategies on {named}:", *ways.sharing_text(sharing)]
    if places:
        size = job.stored.total_bytes / 1e9
        lines += ["", f"sources of the {size:,.3g} GB of data on {named}, for {offer.rate[1]:,.0f} images/s:"]
        lines += ways.source_text(places, offer.rate[1])
        lines += [f"  from: {'; '.join(dict.fromkeys(row.source for row in places))}"]
    return lines


def _pauses(job: Job, offer: Offer | None) -> str:
    if offer is None or job.scored is None:
        return "not counted: evaluations"
    machine = offer.machine
    scores, score = job.scores(gpus()[machine.gpu], machine.vcpus / machine.gpus)
    saves, save = job.saves()
    return (
        f"counted: {scores:.0f} evaluations of {job.scored.images:,} images, {score:,.3g} s each on one {machine.gpu}, "
        f"which all ranks share, and {saves:.0f} checkpoints of {save:.2g} s"
    )


def _notes(found: ConfigPlan, shown: Offer | None) -> list[str]:
    job = found.job
    dry, sample = job.network.step(job.network.most), job.sample
    images = job.network.most
    size = sum(size for size, _ in dry.gradients)
    low, high = (1000 * factor * sample.cpu for factor in sample.spread)
    lines = [
        "",
        f"computed, by a pass without data: for an image {dry.flops / images / 1e9:,.3g} GFLOP, "
        f"{dry.moved / images / 1e9:,.3g} GB of memory traffic, and {dry.kept / images / GIB:,.2g} GiB of activations; "
        f"{size / 1e6:,.3g} MB of gradients",
    ]
    told = f"a sample costs {1000 * sample.cpu:.3g} ms of CPU ({low:.2g} to {high:.2g})"
    if sample.first:
        told += f" from memory (data.cache=ram), and {1000 * sample.first:.3g} ms until it is there"
    if sample.measured:
        lines.append(f"measured: {told}: {sample.says}; the interval is for other processors")
    if job.step is not None:
        lines.append(
            f"measured: {1000 * job.step.seconds:.3g} ms for {job.step.images} images on {job.step.gpu}; on other "
            "GPUs by the ratio of their rooflines (segtrain/plan/device.py)"
        )
    named = sources("gpus")
    prices = sorted({dated(one.machine.price_source) for one in found.offers} - {""})
    lines.append(
        "from tables: "
        + (f"prices on demand ({', '.join(prices)}), " if prices else "")
        + f"sizes of machines, and rates of GPUs ({named['sheet']})"
    )
    guessed = [] if sample.measured else [f"{told}: {sample.says}; --probe measures it"]
    if job.step is None:
        guessed.append(
            f"GPUs reach {TENSOR:.0%} of the peak of their tensor cores and {MEMORY:.0%} of "
            "their memory bandwidth (segtrain/plan/device.py; bench/plan_exam.py has the errors)"
        )
    guessed += assumed("speed", "again on CPUs")
    if job.config.parallel.sync_bn:
        guessed.append(f"synchronized batch norms ({dry.norms}) wait twice in a pass for a tree over all ranks")
    kind, rate = ("copied", COPIED) if job.config.checkpoint.background else ("written", WRITTEN)
    guessed.append(f"a checkpoint is {kind} at {rate / 1e9:g} GB/s")
    guessed += [f"{size / GIB:g} GiB for {why}" for size, why in ALLOWED.values()]
    lines.append("assumed: " + "; ".join([*guessed, f"{FRAGMENTS - 1:.0%} of the activations is lost to fragments"]))
    lines.append(f"{_pauses(job, shown)}; a step on CPUs is not planned: use --like RUN")
    left = Counter(found.left_out.values())
    some: dict[str, list[str]] = {}
    for name, why in found.left_out.items():
        some.setdefault(why, []).append(name)
    if left:
        lines.append("left out:")
        lines += [
            f"  {', '.join(some[why][:4])}{' ...' if count > 4 else ''}: {why}" for why, count in left.most_common()
        ]
    return lines

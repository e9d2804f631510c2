"""Predicted time and cost of a job before it is sent, from a past run with the same config."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launch.findings import Finding, error, note
from launch.job import Job
from segtrain.errors import SegtrainError
from segtrain.machines import Machine, all_types

if TYPE_CHECKING:
    from segtrain.config import Config
    from segtrain.plan.offers import Interval, Offer

_SOURCE = "segtrain plan --like, 80 % of the cases in parentheses"


def forecast(
    job: Job, config: Config, name: str, hosts: int, ranks: int, price: float | None = None
) -> Iterator[Finding]:
    """What the job takes on ``hosts`` machines of the type ``name`` with ``ranks`` ranks in all, and whether it keeps
    train.deadline and train.budget. An error only if a limit is broken in all cases.

    ``price``: dollars per hour of a machine, if it is not that of the table.
    """
    machine = all_types().get(name)
    if not job.like:
        cure = "--like RUN, a run with this config, if only a short one; or segtrain plan CONFIG, which needs no run"
        yield note("plan-without-run", "time and cost are not predicted: no past run is given", cure)
    elif machine is None:
        yield note("plan-unknown", f"time and cost are not predicted: {name} is not in segtrain's tables")
    elif machine.gpus and ranks != hosts * machine.gpus:
        what = f"strategy={job.strategy} uses {ranks} of {hosts * machine.gpus} GPUs"
        yield note("plan-unknown", f"time and cost are not predicted: {what}, and plans are for one rank on each")
    else:
        yield from _from(job, config, machine if price is None else replace(machine, price=price), hosts, ranks)


def _from(job: Job, config: Config, machine: Machine, hosts: int, ranks: int) -> Iterator[Finding]:
    try:
        from segtrain.plan.offers import plan
        from segtrain.plan.terms import terms_for

        terms = terms_for(Path(job.like), config, ranks)
        found = plan(terms, (hosts,), [machine])
    except (SegtrainError, ImportError) as problem:
        text = f"time and cost are not predicted: {problem}"
        yield note("plan-unknown", text, f"another run, or segtrain plan --like {job.like} --on TYPE")
        return
    if not found.offers:
        why = found.left_out.get(machine.name, f"the run was on {terms.machine}, which tells nothing of {machine.name}")
        yield note("plan-unknown", f"time and cost are not predicted from --like {job.like}: {why}", "another run")
        return
    (offer,) = found.offers
    kept, broken = _limits(config, offer)
    cost = f" and ${_spread(offer.dollars, 1)}" if machine.price else ""
    text = (
        f"{hosts} x {machine.name}: about {_spread(offer.seconds, 60)} min{cost} to the end, with the time until the "
        f"first step; bound by {'its samples' if offer.bound == 'samples' else f'the {offer.bound}'}"
    )
    yield note("plan", "; ".join([text, *kept]), source=_SOURCE)
    for limit in broken:
        yield error("plan-over-limit", limit, "a larger limit, more machines, or a shorter train.duration", _SOURCE)


def _limits(config: Config, offer: Offer) -> tuple[list[str], list[str]]:
    """Sentences on the limits that may be kept, and on those that cannot be. They hold for the training alone."""
    from segtrain.config.limits import dollars_of, seconds_of

    train, hourly = config.train, offer.hosts * float(offer.machine.price or 0.0)
    limits = [(f"train.deadline={train.deadline}", seconds_of(train.deadline) or 0.0)] * bool(train.deadline)
    if train.budget and hourly:
        limits.append((f"train.budget={train.budget}", 3600 * (dollars_of(train.budget) or 0.0) / hourly))
    kept, broken = [], []
    for name, seconds in limits:
        if offer.soonest > seconds:
            broken.append(
                f"{name} would stop the training after {seconds / 60:,.1f} min, and its end comes after "
                f"{offer.soonest / 60:,.1f} min at the soonest"
            )
        else:
            middle, high = (one <= seconds for one in offer.trained[1:])
            kept.append(f"{name} is " + ("kept in 90 % of the cases" if high else "likely to be kept" if middle else
                        "likely to be too short"))  # fmt: skip
    return kept, broken


def _spread(interval: Interval, unit: float) -> str:
    low, middle, high = (f"{value / unit:,.3g}" if value < 100 * unit else f"{value / unit:,.0f}" for value in interval)
    return f"{middle} ({low} to {high})"

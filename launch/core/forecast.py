"""Predicted time and cost of a job before it is sent, from a past run with the same config."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from launch.core.findings import Finding, error, note
from launch.core.job import Job
from segtrain.errors import SegtrainError
from segtrain.machines import Machine, all_types, gpus

if TYPE_CHECKING:
    from segtrain.config import Config
    from segtrain.insight.plan.offers import Interval, Offer, Offers
    from segtrain.insight.plan.terms import Terms

# The plan of a job with a config, with one offer. Raises Unpredicted.
Predictor = Callable[[Any, "Config"], "Offers"]
PLAN = "segtrain/plan.json"  # in a bundle of code: what is predicted, for the run folder
_SOURCE = "segtrain plan --like, 80 % of the cases in parentheses"


class Unpredicted(Exception):
    """Why nothing is predicted: a finding."""

    def __init__(self, text: str, cure: str = "", code: str = "plan-unknown") -> None:
        super().__init__(text)
        self.finding = note(code, f"time and cost are not predicted: {text}", cure)


def on_type(
    job: Job, config: Config, name: str, hosts: int, ranks: int, price: float | None = None
) -> Offers:
    """The plan of a job on ``hosts`` machines of the type ``name`` with ``ranks`` ranks in all,
    with one offer.

    ``price``: dollars per hour of a machine, if it is not that of the table. Raises Unpredicted.
    """
    machine = all_types().get(name)
    if not job.like:
        cure = (
            "--like RUN, a run with this config, if only a short one; or segtrain plan "
            "CONFIG, which needs no run"
        )
        raise Unpredicted("no past run is given", cure, "plan-without-run")
    if machine is None:
        raise Unpredicted(f"{name} is not in segtrain's tables")
    if machine.gpus and ranks != hosts * machine.gpus:
        what = f"strategy={job.strategy} uses {ranks} of {hosts * machine.gpus} GPUs"
        raise Unpredicted(f"{what}, and plans are for one rank on each")
    try:
        from segtrain.insight.plan.terms import terms_of

        terms = terms_of(Path(job.like))
    except (SegtrainError, ImportError) as problem:
        cure = f"another run, or segtrain plan --like {quote(job.like)} --on TYPE"
        raise Unpredicted(str(problem), cure) from None
    return _plan(
        job,
        config,
        terms,
        hosts,
        ranks,
        machine if price is None else replace(machine, price=price),
    )


def on_nodes(
    job: Job, config: Config, hosts: int, local: int, cores: int = 0, gpu: str | None = None
) -> Offers:
    """The plan of a job on ``hosts`` nodes of a cluster with ``local`` ranks each, with one offer.
    Raises Unpredicted.

    ``cores``: of a node; 0: as many as the host of the past run. ``gpu``: the name of its GPUs; "":
    those of that host; None: it has none. A node costs train.price, or nothing.
    """
    try:
        from segtrain.insight.plan.candidates import node
        from segtrain.insight.plan.terms import terms_and_host

        terms, host = terms_and_host(Path(job.like))
    except (SegtrainError, ImportError) as problem:
        raise Unpredicted(str(problem), "another run") from None
    gpu_name = (gpu or host.gpu) if gpu is not None else ""
    own = node(
        f"a node of {cores or host.vcpus} cores",
        cores or host.vcpus,
        0.0,
        gpu_name,
        local * (gpu is not None),
    )
    if own.gpu != host.gpu and not {own.gpu, host.gpu} <= {"", *gpus()}:
        raise Unpredicted(
            f"the rates of {own.gpu} or {host.gpu} are not in segtrain's tables", "another run"
        )
    own = replace(own, price=config.train.price or 0.0)
    terms = replace(terms, machine=own.name, local=local)
    return _plan(job, config, terms, hosts, hosts * local, own, host if host.gpus else own)


def _plan(
    job: Job,
    config: Config,
    terms: Terms,
    hosts: int,
    ranks: int,
    machine: Machine,
    own: Machine | None = None,
) -> Offers:
    """The plan with the one offer of ``hosts`` machines. ``terms``: of the run. Raises
    Unpredicted.
    """
    from segtrain.insight.plan.offers import plan
    from segtrain.insight.plan.terms import terms_for

    try:
        offers = plan(terms_for(terms, Path(job.like), config, ranks), (hosts,), [machine], own)
    except (SegtrainError, ImportError) as problem:
        raise Unpredicted(str(problem), "another run") from None
    if not offers.offers:
        why = offers.left_out.get(
            machine.name, f"the run was on {terms.machine}, which tells nothing of {machine.name}"
        )
        raise Unpredicted(f"{why} (--like {job.like})", "another run")
    return offers


def plan_findings(job: Job, config: Config, predicted: Predictor) -> Iterator[Finding]:
    """What a plan with one offer says of time, cost, train.deadline, and train.budget.

    An error only for a limit that is broken in all cases.
    """
    try:
        (offer,) = predicted(job, config).offers
    except Unpredicted as problem:
        yield problem.finding
        return
    machine, hourly = offer.machine, offer.hosts * float(offer.machine.price or 0.0)
    text = f"{offer.hosts} x {machine.name}: about "
    if machine.name in all_types():
        text += f"{_spread(offer.seconds, 60)} min" + (
            f" and ${_spread(offer.dollars, 1)}" if hourly else ""
        )
        text += " to the end, with the time until the first step"
    else:
        text += (
            f"{_spread(offer.trained, 60)} min, {_spread(offer.trained, 3600 / offer.hosts)} "
            "node-hours"
        )
        text += f", and ${_spread(offer.trained, 3600 / hourly)}" if hourly else ""
        text += " to the end, without the time in the queue"
    text += f"; bound by {'its samples' if offer.bound == 'samples' else f'the {offer.bound}'}"
    reachable, unreachable = _limits(config, offer)
    yield note("plan", "; ".join([text, *reachable]), source=_SOURCE)
    for limit in unreachable:
        yield error(
            "plan-over-limit",
            limit,
            "a larger limit, more machines, or a shorter train.duration",
            _SOURCE,
        )


def plan_file(job: Job, config: Config | None, predicted: Predictor) -> bytes:
    """The plan of a job, for its run folder; empty if nothing is predicted."""
    if not job.like or config is None:
        return b""
    try:
        offers = predicted(job, config)
    except Unpredicted:
        return b""
    from segtrain.insight.plan.saved import content

    return content(offers, config.model_dump(mode="json"), offers.offers[0].machine.name)


def keep(file: bytes, run: Path) -> None:
    """Write a plan into the folder of a run that has not begun. Raises DataError."""
    from segtrain.insight.plan.saved import write
    from segtrain.observe.journal import FILE

    if file and not os.path.isfile(run / FILE):
        write(file, run)


def _limits(config: Config, offer: Offer) -> tuple[list[str], list[str]]:
    """Sentences on the limits that may be kept, and on those that cannot be. They hold for the
    training alone.
    """
    from segtrain.config.limits import dollars_of, seconds_of

    train, hourly = config.train, offer.hosts * float(offer.machine.price or 0.0)
    limits = [(f"train.deadline={train.deadline}", seconds_of(train.deadline) or 0.0)] * bool(
        train.deadline
    )
    if train.budget and hourly:
        limits.append(
            (f"train.budget={train.budget}", 3600 * (dollars_of(train.budget) or 0.0) / hourly)
        )
    reachable, unreachable = [], []
    for name, seconds in limits:
        if offer.soonest > seconds:
            unreachable.append(
                f"{name} would stop the training after {seconds / 60:,.1f} min, and its end comes "
                f"after {offer.soonest / 60:,.1f} min at the soonest"
            )
        else:
            middle, high = (duration <= seconds for duration in offer.trained[1:])
            reachable.append(
                f"{name} is "
                + (
                    "kept in 90 % of the cases"
                    if high
                    else "likely to be kept"
                    if middle
                    else "likely to be too short"
                )
            )
    return reachable, unreachable


def _spread(interval: Interval, unit: float) -> str:
    low, middle, high = (
        f"{value / unit:,.3g}" if value < 100 * unit else f"{value / unit:,.0f}"
        for value in interval
    )
    return f"{middle} ({low} to {high})"

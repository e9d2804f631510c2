"""Text and JSON of a plan: offers, the one to take, and which figures were measured, looked up, and
assumed.
"""

from __future__ import annotations

from math import isinf
from typing import Any

from segtrain.base.terminal import columns, counted
from segtrain.base.units import duration
from segtrain.insight.plan.offers import KNEE, Offer, Offers, assumed, shown
from segtrain.insight.plan.spot import NO_SPOT, Market
from segtrain.insight.plan.terms import Terms
from segtrain.machines import all_types, dated, sources

MOST = 16  # lines of the table
NOTABLE = 0.1  # share of a host's cores
LEFT_OUT = 4  # types that are named for each reason


def page(
    plan: Offers,
    about: tuple[str, list[str]],
    deadline_s: float = 0.0,
    budget: float = 0.0,
    every: bool = False,
    market: Market | None = None,
) -> str:
    """The plan as text. ``about``: its first line, and notes on its figures (``about_run``, and
    ``about_config``).

    ``every``: all offers, not only the best for each GPU and number of hosts. ``market``: of spot
    machines, for a column of their dollars.
    """
    best, (head, notes) = plan.best(deadline_s, budget), about
    lines = [f"{head}. In parentheses: 80 % of the cases.", ""]
    if plan.offers:
        lines += [*table(plan, best, every, market), ""]
    lines += [
        choice(best, deadline_s, budget, plan),
        *notes,
        market.note(best) if market else NO_SPOT,
    ]
    return "\n".join([*lines, *_left_out(plan)])


def as_dict(
    plan: Offers, deadline_s: float, budget: float, market: Market | None = None
) -> dict[str, Any]:
    best = plan.best(deadline_s, budget)
    return {
        "offers": [offer.to_dict() for offer in plan.offers],
        **({"spot": market.rows(plan)} if market else {}),
        "left_out": plan.left_out,
        "best": best and best.to_dict(),
    }


def table(plan: Offers, best: Offer | None, every: bool, market: Market | None = None) -> list[str]:
    """The lines of the offers. ``every``: all of them, not only the best for each GPU and number of
    hosts.
    """
    offers = list(plan.offers) if every else shown(plan)
    offers.sort(key=lambda offer: (offer.dollars[1], offer.seconds[1]))
    cut = offers if every else offers[:MOST]
    if best is not None and best not in cut:
        cut.append(best)
    on_spot = ["dollars on spot"] if market else []
    head = (
        "type",
        "hosts",
        "images/s",
        "scaling",
        "hours",
        "dollars",
        *on_spot,
        "bound by",
        "cores: needs, has",
        "",
    )
    return columns([head, *(_cells(offer, plan, best, market) for offer in cut)])


def _cells(
    offer: Offer, plan: Offers, best: Offer | None, market: Market | None
) -> tuple[str, ...]:
    marks = ["<- best"] * (offer is best) + ["knee"] * (
        offer.hosts == plan.knee(offer.machine.name)
    )
    low, middle, high = offer.rate
    machine = offer.machine
    return (
        # The names of nodes, which are of no type, say it already.
        f"{machine.name} ({machine.gpus} x {machine.gpu})"
        if machine.gpus and machine.price_source
        else machine.name,
        str(offer.hosts),
        f"{middle:,.0f} ({low:,.0f} to {high:,.0f})",
        f"{offer.efficiency:.0%}",
        _spread(offer.seconds, 3600),
        _spread(offer.dollars, 1),
        *([_spread(market.dollars(offer), 1)] if market else []),
        offer.bound,
        f"{offer.needs:.1f}, {offer.has:.1f}",
        ", ".join(marks),
    )


def _spread(interval: tuple[float, float, float], unit: float) -> str:
    low, middle, high = (amount(value / unit) for value in interval)
    return middle if isinf(interval[1]) else f"{middle} ({low} to {high})"


def amount(value: float) -> str:
    """Hours or dollars with two digits after the point; infinite ones in words."""
    return "does not end" if isinf(value) else f"{value:,.2f}"


def choice(best: Offer | None, deadline_s: float, budget: float, plan: Offers) -> str:
    """The offer to take, or why there is none."""
    if not plan.offers:
        return "no type can be offered: none is of the run's kind, or see below what was left out"
    limits = [duration(deadline_s)] * bool(deadline_s) + [f"${budget:g}"] * bool(budget)
    within = f" within {' and '.join(limits)} in 90 % of the cases" if limits else ""
    if best is None:
        fastest = min(plan.offers, key=lambda offer: offer.seconds[1])
        cheapest = min(plan.offers, key=lambda offer: offer.dollars[1])
        return (
            f"no offer ends{within}: the fastest is {fastest.hosts} x {fastest.machine.name} with "
            f"{fastest.seconds[1] / 3600:.2f} h, and the cheapest {cheapest.hosts} x "
            f"{cheapest.machine.name} with ${cheapest.dollars[1]:,.2f}"
        )
    kind = "the fastest" if budget and not deadline_s else "the cheapest"
    machine_type = all_types().get(best.machine.name)
    retired = (
        f"; {best.machine.name} is retired: {machine_type.retired}"
        if machine_type and machine_type.retired
        else ""
    )
    hours, dollars = best.seconds[1] / 3600, best.dollars[1]
    return (
        f"{kind}{within}: {best.hosts} x {best.machine.name}, {hours:.2f} h, "
        f"${dollars:,.2f}{retired}"
    )


def _remarks(terms: Terms) -> list[str]:
    """What data.cache=ram means for the costs of samples, and other programs for the speed of the
    run.
    """
    texts = []
    if terms.cold:
        texts.append(
            "the run ended in its first epoch, before its samples were in memory (data.cache=ram): "
            "those of later epochs cost less than planned; name a run of two epochs or more"
        )
    elif terms.kept:
        cost = f"{1000 * terms.first[1]:.3g} ms of CPU"
        texts.append(
            f"until it is in memory (data.cache=ram), each of {terms.kept:,.0f} samples "
            f"costs {cost}"
        )
    if terms.others >= NOTABLE:
        texts.append(
            f"other programs used {terms.others:.0%} of the cores of the run's hosts: the plan is "
            "for hosts without them, so its speed is higher than the run's"
        )
    return texts


def pauses(scores: tuple[float, float], saves: tuple[float, float]) -> str:
    return (
        f"counted: {counted(round(scores[0]), 'evaluation')} of {scores[1]:.3g} s on one rank, "
        f"shared by all ranks, and {counted(round(saves[0]), 'checkpoint')} of {saves[1]:.3g} s"
    )


def tables(plan: Offers) -> str:
    dates = sorted({dated(offer.machine.price_source) for offer in plan.offers} - {""})
    prices = f"prices on demand ({', '.join(dates)}), " if dates else ""
    return f"from tables: {prices}sizes of machines, and rates of GPUs ({sources('gpus')['sheet']})"


def _left_out(plan: Offers) -> list[str]:
    names: dict[str, list[str]] = {}
    for name, why in plan.left_out.items():
        names.setdefault(why, []).append(name)
    lines = [
        f"  {', '.join(some[:LEFT_OUT])}{' ...' if len(some) > LEFT_OUT else ''}: {why}"
        for why, some in sorted(names.items(), key=lambda item: -len(item[1]))
    ]
    return ["left out:", *lines] if lines else []


def about_run(plan: Offers, run: str) -> tuple[str, list[str]]:
    """The first line of a plan from a run, and its notes."""
    terms = plan.terms
    kind = all_types().get(terms.machine)  # None: of no type, with a GPU
    on_gpus = kind is None or kind.gpus > 0
    sent = f"{terms.gradients / 1e6:.3g} MB of gradients"
    notes = [
        "",
        f"measured, by the run on {terms.machine}: a step's device time {1000 * terms.device:.3g} "
        f"ms, a sample {1000 * terms.cpu:.3g} ms of CPU, {sent}",
        *_remarks(terms),
        pauses(terms.scores, terms.saves),
        tables(plan),
        "assumed: " + "; ".join(assumed(*(("again on CPUs",) if on_gpus else ("again", "speed")))),
        f"knee: twice as many hosts bring less than {KNEE:g}x the speed",
        "the global batch grows with the number of devices: choose lr and schedule for it",
    ]
    if not on_gpus:
        notes.append(
            "no GPU is offered: the run trained on CPUs, and that does not tell the time of a "
            "step on a GPU"
        )
    return f"{terms.total:,.0f} images, at {terms.images:g} per device and step as in {run}", notes

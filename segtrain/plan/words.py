"""Text of a plan: a table of offers, the one to take, and what was measured, looked up, and assumed."""

from __future__ import annotations

from collections import Counter
from math import isinf
from pathlib import Path

from segtrain.machines import all_types, dated, sources
from segtrain.observe.console import duration
from segtrain.plan.market import NO_SPOT, Market
from segtrain.plan.offers import KNEE, Offer, Plan, assumed, shown
from segtrain.plan.terms import Terms

MOST = 16  # lines of the table
NOTABLE = 0.1  # share of a host's cores


def page(
    found: Plan,
    run: Path,
    deadline_s: float = 0.0,
    budget: float = 0.0,
    every: bool = False,
    market: Market | None = None,
) -> str:
    """The plan of a job like ``run``. ``every``: all offers, not only the best for each GPU and number of hosts.

    ``market``: of spot machines, for a column of their dollars.
    """
    terms, best = found.terms, found.best(deadline_s, budget)
    lines = [
        f"{terms.total:,.0f} images, at {terms.images:g} per device and step as in {run}. "
        "In parentheses: 80 % of the cases.",
        "",
        *([*table(found, best, every, market), ""] if found.offers else []),
        choice(best, deadline_s, budget, found),
        *_notes(found, market, best),
    ]
    return "\n".join(lines)


def table(found: Plan, best: Offer | None, every: bool, market: Market | None = None) -> list[str]:
    """The lines of the offers. ``every``: all of them, not only the best for each GPU and number of hosts."""
    offers = list(found.offers) if every else shown(found)
    offers.sort(key=lambda one: (one.dollars[1], one.seconds[1]))
    cut = offers if every else offers[:MOST]
    if best is not None and best not in cut:
        cut.append(best)
    on_spot = ["dollars on spot"] if market else []
    head = ("type", "hosts", "images/s", "scaling", "hours", "dollars", *on_spot, "bound by", "cores: needs, has", "")
    cells = [head, *(_cells(offer, found, best, market) for offer in cut)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]


def _cells(offer: Offer, found: Plan, best: Offer | None, market: Market | None) -> tuple[str, ...]:
    marks = ["<- best"] * (offer is best) + ["knee"] * (offer.hosts == found.knee(offer.machine.name))
    low, middle, high = offer.rate
    machine = offer.machine
    return (
        # The names of nodes, which are of no type, say it already.
        f"{machine.name} ({machine.gpus} x {machine.gpu})" if machine.gpus and machine.price_source else machine.name,
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


def choice(best: Offer | None, deadline_s: float, budget: float, found: Plan) -> str:
    """The offer to take, or why there is none."""
    if not found.offers:
        return "no type can be offered: none is of the run's kind, or see below what was left out"
    limits = [duration(deadline_s)] * bool(deadline_s) + [f"${budget:g}"] * bool(budget)
    within = f" within {' and '.join(limits)} in 90 % of the cases" if limits else ""
    if best is None:
        fastest = min(found.offers, key=lambda one: one.seconds[1])
        cheapest = min(found.offers, key=lambda one: one.dollars[1])
        return (
            f"no offer ends{within}: the fastest is {fastest.hosts} x {fastest.machine.name} with "
            f"{fastest.seconds[1] / 3600:.2f} h, and the cheapest {cheapest.hosts} x {cheapest.machine.name} with "
            f"${cheapest.dollars[1]:,.2f}"
        )
    kind = "the fastest" if budget and not deadline_s else "the cheapest"
    known = all_types().get(best.machine.name)
    retired = f"; {best.machine.name} is retired: {known.retired}" if known and known.retired else ""
    hours, dollars = best.seconds[1] / 3600, best.dollars[1]
    return f"{kind}{within}: {best.hosts} x {best.machine.name}, {hours:.2f} h, ${dollars:,.2f}{retired}"


def _memory(terms: Terms) -> list[str]:
    """What data.cache=ram means for the costs of samples."""
    if terms.cold:
        return [
            "the run ended in its first epoch, before its samples were in memory (data.cache=ram): those of later "
            "epochs cost less than planned; name a run of two epochs or more"
        ]
    if not terms.kept:
        return []
    cost = 1000 * terms.first[1]
    return [f"until it is in memory (data.cache=ram), each of {terms.kept:,.0f} samples costs {cost:.3g} ms of CPU"]


def _others(terms: Terms) -> list[str]:
    """What the run's own speed was not."""
    if terms.others < NOTABLE:
        return []
    return [
        f"other programs used {terms.others:.0%} of the cores of the run's hosts: the plan is for hosts without them, "
        "so its speed is higher than the run's"
    ]


def _pauses(terms: Terms) -> str:
    (scores, score), (saves, save) = terms.scores, terms.saves
    if not scores and not saves:
        return "not counted: evaluations and checkpoints, of which the run had none"
    return (
        f"counted, as in the run: {scores:.0f} evaluations of {score:.3g} s on one rank, shared by all ranks, and "
        f"{saves:.0f} checkpoints of {save:.3g} s"
    )


def _notes(found: Plan, market: Market | None, best: Offer | None) -> list[str]:
    terms, left = found.terms, Counter(found.left_out.values())
    kind = all_types().get(terms.machine)  # None: of no type, with a GPU
    on_gpus = kind is None or kind.gpus > 0
    sent = f"{terms.gradients / 1e6:.3g} MB of gradients"
    lines = [
        "",
        f"measured, by the run on {terms.machine}: a step's device time {1000 * terms.device:.3g} ms, a sample "
        f"{1000 * terms.cpu:.3g} ms of CPU" + (f", {sent}" if terms.gradients and not terms.buckets else ""),
        *([f"computed, from the layers of the run's network: {sent}"] if terms.buckets else []),
        *_memory(terms),
        *_others(terms),
        _pauses(terms),
        f"from tables: prices in us-east-1 ({dated(sources('sagemaker')['list'])}), sizes, and rates of GPUs "
        f"({sources('gpus')['sheet']})",
        "assumed: " + "; ".join(assumed(*(("again on CPUs",) if on_gpus else ("again", "speed")))),
        f"knee: twice as many hosts bring less than {KNEE:g}x the speed",
        market.note(best) if market else NO_SPOT,
        "the global batch grows with the number of devices: choose lr and schedule for it",
    ]
    if left:
        lines.append("left out: " + "; ".join(f"{count} types: {why}" for why, count in left.most_common()))
    if not on_gpus:
        lines.append("no GPU is offered: the run trained on CPUs, and that does not tell the time of a step on a GPU")
    return lines

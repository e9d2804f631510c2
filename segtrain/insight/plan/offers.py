"""Predicted speed, time, and cost of a job on each machine type and number of hosts, each with an
80 % interval.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mode
from typing import Any

from segtrain.insight.plan import model
from segtrain.insight.plan.terms import Terms
from segtrain.machines import Machine, all_types, gpus, machines

# What no table says: name -> (least, most, why). Drawn evenly on a logarithmic scale, all of them
# independent.
ASSUMED: dict[str, tuple[float, float, str]] = {
    "network": (0.5, 0.9, "share of the network's rate that all-reduce over TCP reaches"),
    "latency": (20e-6, 60e-6, "seconds of a message between hosts"),
    "spread": (0.01, 0.04, "standard deviation of a step, as a share of it"),
    "speed": (
        0.75,
        1.33,
        (
            "factor of the device's time on another GPU than the run's, beyond the ratio of "
            "data sheets"
        ),
    ),
    "again": (
        0.93,
        1.08,
        "factor of time between two runs of the same job on machines with GPUs of the same type",
    ),
    "start": (
        240.0,
        720.0,
        "seconds from sending a job to its first step: machines, image, data index",
    ),
    # 90 % of the ratios of two runs on shared cores: bench/plan_runs.py --again 9 --seed 11.
    "again on CPUs": (0.77, 1.3, "factor of time between two runs of the same job on shared cores"),
    # Two threads of a core do 1.2 to 2 times the work of one, and most clouds count threads as
    # vCPUs.
    "crowd": (1.0, 1.7, "factor of CPU time if all vCPUs are busy, against half of them"),
}
DRAWS = 100
DRAWN = 0.8  # share of the logarithmic range of what is drawn that an interval covers
HOSTS = (1, 2, 4, 8, 16)
# What a step is made of: the device's work, and the waits for gradients, samples, and the slowest
# rank.
PARTS = ("device", "gradients", "samples", "slowest rank")
# Doubling the hosts pays as long as it brings at least this factor of speed.
KNEE = 1.6
# bytes/s and latency of an all-reduce inside a host: by NVLink (V100, A100, H100 and newer), or by
# PCIe.
NVLINK, PCIE = (130e9, 8e-6), (6e9, 30e-6)
# The same for gloo between the ranks of a host without GPUs: 10.6 ms for 7.4 MB on two ranks.
LOOPBACK = (7e8, 1e-4)
# Bytes of the statistics of a batch norm of 512 channels: sums and sums of squares in fp32.
NORM = 4096.0
# NVLink joins all GPUs of a host from this rate on, in GB/s; slower links are bridges between two
# cards.
ALL_LINKED_GBS = 300

Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Offer:
    """``hosts`` machines of a type. Intervals are (10 %, 50 %, 90 %) of the draws.

    ``rate``: images/s. ``efficiency``: of the same number of single GPUs. ``seconds``: to the end,
    with the start. ``dollars``: on demand. ``bound``: "device", "network", or "samples". ``needs``,
    ``has``: cores of a rank that the samples would need so that the device never waits, and that
    there are. ``batch``: images of a step, all ranks. ``trained``: seconds with evaluations and
    checkpoints, without the start; ``soonest``: the least in any draw; ``saving``: of its
    checkpoints.
    ``parts``: what -> seconds of a step, in the draw of the usual rate; they add up to the step.
    """

    machine: Machine
    hosts: int
    rate: Interval
    efficiency: float
    seconds: Interval
    dollars: Interval
    bound: str
    needs: float
    has: float
    batch: float
    trained: Interval
    soonest: float
    saving: float
    parts: dict[str, float]

    @property
    def step(self) -> Interval:
        """Seconds of a step."""
        low, middle, high = self.rate
        return self.batch / high, self.batch / middle, self.batch / low

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "machine": self.machine.name}


@dataclass(frozen=True)
class Offers:
    """All offers, the ones without any sense left out. ``left_out``: type -> why it is not
    offered.
    """

    terms: Terms
    offers: tuple[Offer, ...]
    left_out: dict[str, str]

    def best(self, deadline_s: float = 0.0, budget: float = 0.0) -> Offer | None:
        """The cheapest offer within the deadline, or with a budget alone the fastest within it.

        An offer is within a limit if 90 % of its draws are. Without limits: the cheapest.
        """
        fits = [
            offer
            for offer in self.offers
            if (not deadline_s or offer.seconds[2] <= deadline_s)
            and (not budget or offer.dollars[2] <= budget)
        ]
        quick = budget and not deadline_s
        return min(
            fits,
            key=lambda offer: offer.seconds[1:2] if quick else (offer.dollars[1], offer.seconds[1]),
            default=None,
        )

    def knee(self, name: str) -> int | None:
        """The least number of hosts of a type twice which bring less than KNEE; None if no planned
        number shows it.
        """
        own = {offer.hosts: offer.rate[1] for offer in self.offers if offer.machine.name == name}
        knees = (
            hosts
            for hosts in sorted(own)
            if 2 * hosts in own and own[2 * hosts] < KNEE * own[hosts]
        )
        return next(knees, None)


def plan(
    terms: Terms,
    hosts: Sequence[int] = HOSTS,
    where: Sequence[Machine] = (),
    own: Machine | None = None,
) -> Offers:
    """Every type of ``where`` (default: SageMaker's) that has the run's kind of device, at its
    batch per device.

    ``own``: the machine that the terms hold for, if it is of no type.
    """
    own = own or all_types()[terms.machine]
    left_out = dict[str, str]()
    offers = list[Offer]()
    draws = drawn()
    for machine in where or machines().values():
        if bool(machine.gpus) != bool(own.gpus):
            continue  # another kind of machine: not worth a word
        why = _why_not(machine, own)
        fitting = [
            count for count in hosts if not terms.unsent or count * _local(terms, machine, own) == 1
        ]
        if why or not fitting:
            left_out[machine.name] = (
                why or f"the gradients that several ranks exchange are not known: {terms.unsent}"
            )
        else:
            offers += (offer_of(terms, own, machine, count, draws) for count in fitting)
    return Offers(terms, tuple(offers), left_out)


def drawn() -> list[dict[str, float]]:
    """Values of what is assumed, and where in the ranges of the terms the device and the samples
    are, from 0 to 1.

    The values of one name are spread evenly over its range, in an order of its own.
    """
    places = {
        name: [(k + 0.5) / DRAWS for k in range(DRAWS)] for name in (*ASSUMED, "device", "samples")
    }
    for name, values in places.items():
        random.Random(name).shuffle(values)
    return [
        {name: _between(ASSUMED[name][:2], places[name][k]) for name in ASSUMED}
        | {name: places[name][k] for name in ("device", "samples")}
        for k in range(DRAWS)
    ]


def assumed(*without: str) -> list[str]:
    """What is assumed, in words, ``without`` what does not matter for a plan."""
    return [
        f"{name} {low:g} to {high:g}, {why}"
        for name, (low, high, why) in ASSUMED.items()
        if name not in without
    ]


def _why_not(machine: Machine, own: Machine) -> str:
    if machine.retired:
        return "retired"
    if machine.price is None:
        return "no price is known"
    if machine.gpu == own.gpu:
        return "fewer vCPUs than the run had" if not own.gpus and machine.vcpus < own.vcpus else ""
    if machine.gpu_memory_gb < own.gpu_memory_gb:
        return (
            f"{machine.gpu_memory_gb} GiB per GPU, and {own.gpu} has {own.gpu_memory_gb}: the "
            "batch may not fit"
        )
    return ""


def _local(terms: Terms, machine: Machine, own: Machine) -> int:
    """Ranks of a host: one for each GPU, or as many as the run's host had for as many cores."""
    return machine.gpus or terms.local * max(1, machine.vcpus // own.vcpus)


def offer_of(
    terms: Terms, own: Machine, machine: Machine, hosts: int, draws: list[dict[str, float]]
) -> Offer:
    """``hosts`` machines of a type, for terms that hold for ``own``."""
    local = _local(terms, machine, own)
    ranks, cores = local * hosts, machine.vcpus / local
    ratio = 1.0
    if machine.gpu != own.gpu:
        ratio = gpus()[own.gpu].speed / gpus()[machine.gpu].speed
    (scores, score), (saves, save) = terms.scores, terms.saves
    rates = []
    bounds = []
    alone = []
    parts = []
    trained = []
    for drawn in draws:
        slower = ratio * (drawn["speed"] if ratio != 1 else 1.0)
        again = drawn["again" if machine.gpus else "again on CPUs"]
        slower *= _between(terms.device_range, drawn["device"]) * again
        device = terms.device * slower
        samples = (
            _samples(terms, cores, terms.wall, terms.cpu)
            * _between(terms.sample_range, drawn["samples"])
            * again
        )
        # How much busier a host's vCPUs are than in the run: 1 for each half of them.
        busy = (terms.images * terms.cpu + terms.computed) / (max(device, samples) * cores)
        crowd = drawn["crowd"] ** (2 * max(0.0, min(1.0, busy) - terms.busy))
        samples *= crowd
        if not machine.gpus:
            device *= crowd
        sent = _exposed(terms, machine, hosts, local, device, drawn)
        longest = max(device + sent, samples)
        step = longest * model.slowest(ranks, drawn["spread"])
        parts.append((device, sent, max(0.0, samples - (device + sent)), step - longest))
        rates.append(ranks * terms.images / step)
        filling = _filling(
            terms, cores, ranks, samples / _samples(terms, cores, terms.wall, terms.cpu), longest
        )
        trained.append(
            terms.total / rates[-1] + (scores * score * (slower / ranks) + saves * save) + filling
        )
        alone.append(ranks * terms.images / device / rates[-1])
        bounds.append(
            "samples"
            if samples > device + sent
            else "network"
            if sent > 0.15 * device
            else "device"
        )
    times = [seconds + drawn["start"] for seconds, drawn in zip(trained, draws)]
    usual = sorted(range(len(rates)), key=rates.__getitem__)[len(rates) // 2]
    price = hosts * float(machine.price or 0.0) / 3600
    device = terms.device * ratio
    return Offer(
        machine=machine,
        hosts=hosts,
        rate=_interval(rates),
        efficiency=1 / _interval(alone)[1],
        seconds=_interval(times),
        dollars=_interval([price * seconds for seconds in times]),
        bound=mode(bounds),
        needs=max(terms.images * terms.wall, terms.images * terms.cpu + terms.computed) / device,
        has=cores,
        batch=ranks * terms.images,
        trained=_interval(trained),
        soonest=min(trained),
        saving=saves * save,
        parts=dict(zip(PARTS, parts[usual])),
    )


def _samples(terms: Terms, cores: float, wall: float, cpu: float) -> float:
    """Seconds in which the cores of a rank make the samples of a step. ``wall``, ``cpu``: of one
    sample.
    """
    workers = terms.workers or max(1.0, cores - 1)
    return max(terms.images * wall / workers, (terms.images * cpu + terms.computed) / cores)


def _filling(terms: Terms, cores: float, ranks: int, slower: float, step: float) -> float:
    """Seconds by which a run is longer because samples are not in memory yet, when a rank meets
    them first.

    Each epoch, a rank gets a random share of the samples. ``step``: seconds of one with samples
    from memory.
    """
    if not terms.kept:
        return 0.0
    first_reads = terms.kept * (1 - (1 - 1 / ranks) ** (terms.total / terms.kept))
    return (
        first_reads / terms.images * max(0.0, _samples(terms, cores, *terms.first) * slower - step)
    )


def _exposed(
    terms: Terms, machine: Machine, hosts: int, local: int, device: float, drawn: dict[str, float]
) -> float:
    """Seconds of a step in which the ranks wait for gradients."""
    linked = machine.gpu in gpus() and gpus()[machine.gpu].nvlink_gbs >= ALL_LINKED_GBS
    inside = NVLINK if linked else PCIE
    between = (drawn["network"] * machine.network_gbit * 1e9 / 8, drawn["latency"])
    sizes = [size for size, _ in terms.buckets] or model.bucket_sizes(terms.gradients)
    backward = model.BACKWARD * device
    ready = [ready for _, ready in terms.buckets]
    if not machine.gpus:
        return model.exposed_gloo(
            backward, sizes, ready, hosts * local, *(between if hosts > 1 else LOOPBACK)
        )
    seconds = [model.hosts_and_gpus(size, hosts, local, inside, between) for size in sizes]
    # Layers wait for the statistics of synchronized batch norms, which are trees of few bytes.
    norm = model.tree(NORM, local, *inside) + model.tree(NORM, hosts, *between)
    return model.exposed(backward, seconds, ready) + terms.synced * norm


def _between(factors: tuple[float, float], place: float) -> float:
    """``place`` from 0 to 1: between two factors, evenly on a logarithmic scale."""
    return factors[0] * (factors[1] / factors[0]) ** place


def _interval(values: Sequence[float]) -> Interval:
    ordered = sorted(values)
    return ordered[len(ordered) // 10], ordered[len(ordered) // 2], ordered[-1 - len(ordered) // 10]


def shown(plan: Offers) -> list[Offer]:
    """The offers worth a line: of each GPU (or CPU type) and number of hosts the cheapest type, up
    to the knee.
    """
    best: dict[tuple[str, int], Offer] = {}
    for offer in sorted(plan.offers, key=lambda offer: (offer.dollars[1], offer.seconds[1])):
        knee = plan.knee(offer.machine.name)
        if knee is None or offer.hosts <= 2 * knee:
            best.setdefault((offer.machine.gpu or offer.machine.name, offer.hosts), offer)
    return list(best.values())

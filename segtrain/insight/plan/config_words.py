"""What a plan from a config says beside its offers: where its figures are from, strategies, and
sources of data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from segtrain.insight.plan import model
from segtrain.insight.plan.described import ConfigPlan, DescribedJob
from segtrain.insight.plan.device import MEMORY, TENSOR
from segtrain.insight.plan.memory import ALLOWED, FRAGMENTS, GIB, need
from segtrain.insight.plan.offers import Interval, Offer, assumed, drawn, offer_of
from segtrain.insight.plan.words import pauses, tables
from segtrain.machines import gpus

Bounds = tuple[float, float]

# bytes/s and seconds that no table of the offer has: (least, most), and where they are from.
COPY: Bounds = (0.1e9, 0.8e9)
COPY_FROM = "a service copies 0.1 to 0.8 GB/s to a host: assumed"
NVME: Bounds = (1e9, 3e9)
EBS: Bounds = (0.25e9, 1e9)
DISK_FROM = "a local NVMe disk reads 1 to 3 GB/s, a volume 0.25 to 1: assumed"
MOUNT_S: Bounds = (0.02, 0.13)
MOUNT_MOST: Bounds = (100.0, 300.0)
MOUNT_FROM = (
    "20 to 130 ms a file, at most 100 to 300 files/s of a mount: bench/accounts.py, "
    "assumed from account 4"
)
FSX_GB, FSX_MB_S = 1.2, (125, 1000)
FSX_FROM = (
    "1.2 TiB at 125 to 1000 MB/s per TiB: page of FSx for Lustre, as remembered; without "
    "the first read from S3"
)
BUCKET_S: Bounds = (0.03, 0.1)
BUCKET_MOST = 5500.0  # GET requests/s of one prefix of S3
IN_FLIGHT = 64  # requests of a rank that the reader has at most in flight, by rule of thumb
BUCKET_FROM = (
    "64 requests of a rank in flight, 30 to 100 ms each, 5,500/s of a prefix: page of "
    "S3 performance, as remembered"
)
LISTED, LIST_S = 1000, (0.1, 0.3)  # names of one answer, and its seconds


@dataclass(frozen=True)
class Sharing:
    """A strategy. ``memory``: bytes of a rank; ``sent``: bytes that a rank sends in a step."""

    name: str
    memory: float
    sent: float
    rate: Interval
    says: str


@dataclass(frozen=True)
class DataSupply:
    """Where samples come from. ``start``: seconds before the first step. ``limit``: images/s of all
    hosts, at most.

    ``bound``: what limits it. ``enough``: whether the least of ``limit`` is more than the job
    takes.
    """

    name: str
    start: Bounds
    limit: Bounds
    bound: str
    enough: bool
    source: str


def strategies(job: DescribedJob, offer: Offer) -> list[Sharing]:
    """ddp and fsdp. Empty for a single GPU."""
    ranks = offer.hosts * offer.machine.gpus
    if ranks < 2:
        return []
    terms, draws = job.terms(offer.machine, ranks), drawn()
    dry = job.network.step(job.micro(ranks))
    weights = 4.0 * dry.parameters[0]
    share = (ranks - 1) / ranks

    def rate(factor: float) -> Interval:
        buckets = tuple((factor * size, ready) for size, ready in terms.buckets)
        scaled = replace(terms, gradients=factor * terms.gradients, buckets=buckets)
        return offer_of(scaled, offer.machine, offer.machine, offer.hosts, draws).rate

    ddp, fsdp = (need(job.config, dry, ranks, name).total for name in ("ddp", "fsdp"))
    # The weights are gathered for the forward and for the backward pass, and the gradients are
    # reduced and scattered.
    more = (2 * weights + terms.gradients) / (2 * terms.gradients)
    own = 2 * share * terms.gradients
    gathered = share * (2 * weights + terms.gradients)
    return [
        Sharing("ddp", ddp, own, rate(1.0), "all-reduce of the gradients"),
        Sharing(
            "fsdp",
            fsdp,
            gathered,
            rate(more),
            "gathers that the forward pass does not hide are not counted",
        ),
    ]


def sources(job: DescribedJob, offer: Offer) -> list[DataSupply]:
    """Where the samples may come from, for the rate of an offer. Empty if they are generated."""
    stored = job.stored
    machine = offer.machine
    hosts = offer.hosts
    if not stored.mean_bytes:
        return []
    size = stored.mean_bytes
    files = stored.files
    wants = offer.rate[1]
    ranks = max(1, machine.gpus) * hosts
    wire = machine.network_gbit * 1e9 / 8 * hosts / size
    local = NVME if 1e9 * machine.nvme_gb > stored.total_bytes else EBS
    copies = sorted(stored.total_bytes / rate for rate in COPY)
    reads = [
        hosts * model.reads(max(1, machine.vcpus), latency, most) / files
        for latency, most in zip(MOUNT_S[::-1], MOUNT_MOST)
    ]
    answers = -(-files * stored.images // LISTED)
    listing = (answers * LIST_S[0], answers * LIST_S[1])

    def bucket_rate(each: int) -> Bounds:
        low, high = (
            min(ranks * IN_FLIGHT / seconds, BUCKET_MOST) / each for seconds in BUCKET_S[::-1]
        )
        return min(low, wire), min(high, wire)

    def at(rates: Bounds) -> Bounds:
        return rates[0] / size, rates[1] / size

    disk = f"copied first (File mode), to {'the local NVMe disk' if local is NVME else 'a volume'}"
    read = at((hosts * local[0], hosts * local[1]))
    fsx = at((1e6 * FSX_GB * FSX_MB_S[0], 1e6 * FSX_GB * FSX_MB_S[1]))
    rows: list[tuple[str, Bounds, Bounds, str, str]] = [
        (disk, (copies[0], copies[1]), read, "the disk", f"{COPY_FROM}; {DISK_FROM}"),
        (
            "mounted bucket (FastFile, FUSE)",
            (0.0, 0.0),
            (reads[0], reads[1]),
            "the latency of a file",
            MOUNT_FROM,
        ),
        ("FSx for Lustre", (0.0, 0.0), fsx, "its throughput", FSX_FROM),
        ("bucket, single files", listing, bucket_rate(files), "requests", BUCKET_FROM),
        ("bucket, shards", LIST_S, bucket_rate(1), "requests", BUCKET_FROM),
    ]
    return [
        DataSupply(name, start, limit, bound, limit[0] > wants, source)
        for name, start, limit, bound, source in rows
        if machine.name.startswith("ml.") or source != FSX_FROM
    ]


def about_job(plan: ConfigPlan, offer: Offer | None) -> dict[str, Any]:
    """For JSON: the job, and what runs it. ``offer``: the one whose details are shown."""
    job = plan.job
    return {
        "dropped": [
            {"machine": name, "hosts": hosts, "why": why}
            for (name, hosts), why in plan.dropped.items()
        ],
        "total": job.total,
        "sample": vars(job.sample),
        "step": job.step and vars(job.step),
        "stored": vars(job.stored),
        "strategies": [vars(row) for row in strategies(job, offer)] if offer else [],
        "sources": [vars(row) for row in sources(job, offer)] if offer else [],
    }


def about_config(plan: ConfigPlan, offer: Offer | None) -> tuple[str, list[str]]:
    """The first line of a plan from a config, and its notes. ``offer``: the one whose details are
    shown.
    """
    job, train = plan.job, plan.job.config.train
    head = (
        f"{job.total:,.0f} images ({train.duration} of {job.stored.images:,}), {train.batch_size} "
        f"in a step over all GPUs, in {train.precision}, by {job.config.name or 'the defaults'}"
    )
    notes = list[str]()
    images = job.network.most
    sample = job.sample
    dry = job.network.step(images)
    low, high = (1000 * factor * sample.cpu for factor in sample.spread)
    cost = f"a sample costs {1000 * sample.cpu:.3g} ms of CPU ({low:.2g} to {high:.2g})"
    if sample.first:
        cost += f" from memory (data.cache=ram), and {1000 * sample.first:.3g} ms until it is there"
    cost += f": {sample.says}"
    measured = [cost] if sample.measured else []
    guessed = [] if sample.measured else [f"{cost}; --probe measures it"]
    if job.step is not None:
        measured.append(
            f"{1000 * job.step.seconds:.3g} ms for {job.step.images} images on {job.step.gpu}"
        )
    else:
        guessed.append(
            f"GPUs reach {TENSOR:.0%} of their peak, and {MEMORY:.0%} of their memory's rate"
        )
    guessed += assumed("speed", "again on CPUs")
    guessed.append(
        f"{sum(ALLOWED.values()) / GIB:g} GiB, and {FRAGMENTS - 1:.0%} of activations, that no "
        "pass sees"
    )
    if offer is not None:
        notes += _details(job, offer)
    notes += [
        "",
        f"computed, by a pass without data: for an image {dry.flops / images / 1e9:,.3g} GFLOP, "
        f"{dry.moved / images / 1e9:,.3g} GB of memory traffic, and "
        f"{dry.saved / images / GIB:,.2g} GiB of activations; "
        f"{sum(size for size, _ in dry.gradients) / 1e6:,.3g} MB of gradients",
        *([f"measured: {'; '.join(measured)}"] if measured else []),
        tables(plan),
        f"assumed: {'; '.join(guessed)}",
    ]
    if offer is not None:
        machine = offer.machine
        notes.append(
            pauses(job.scores(gpus()[machine.gpu], machine.vcpus / machine.gpus), job.saves())
        )
    return head, notes


def _details(job: DescribedJob, offer: Offer) -> list[str]:
    """Strategies and sources of data for an offer."""
    lines = list[str]()
    named = f"{offer.hosts} x {offer.machine.name}"
    wants = offer.rate[1]
    sharing, places = strategies(job, offer), sources(job, offer)
    if sharing:
        lines += ["", f"strategies on {named}:"]
    for row in sharing:
        low, middle, high = row.rate
        lines.append(
            f"  {row.name:<6} {row.memory / GIB:5.1f} GiB per GPU, {row.sent / 1e6:,.0f} MB sent "
            f"by a rank in a step, {middle:,.0f} images/s ({low:,.0f} to {high:,.0f}): {row.says}"
        )
    if places:
        size = job.stored.total_bytes / 1e9
        lines += [
            "",
            f"sources of the {size:,.3g} GB of data on {named}, for {wants:,.0f} images/s:",
        ]
    for place in places:
        start = f"{place.start[0] / 60:.1f} to {place.start[1] / 60:.1f} min before the first step"
        limit = f"at most {place.limit[0]:,.0f} to {place.limit[1]:,.0f} images/s"
        slow = "may be too slow" if place.limit[1] > wants else f"too slow, by {place.bound}"
        lines.append(f"  {place.name}: {start}, {limit}: {'enough' if place.enough else slow}")
    if places:
        lines.append(f"  from: {'; '.join(dict.fromkeys(place.source for place in places))}")
    return lines

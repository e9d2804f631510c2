"""The time of a step on many GPUs, and the rate at which samples are read: closed forms, each with
its source.

All functions are pure. Seconds, bytes, and samples per second throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log
from statistics import NormalDist

# Share of a step that is the backward pass, which hides communication. Forward and backward pass do
# the same matrix products, backward twice as many: for the inputs and for the weights.
BACKWARD = 2 / 3
# torch's DistributedDataParallel collects gradients in buckets of this size (Li et al., VLDB 2020,
# section 3.2.3). The first one is smaller, so that the first all-reduce begins early.
BUCKET, FIRST_BUCKET = 25 << 20, 1 << 20
GLOO_SEGMENT = 1 << 20  # gloo/allreduce.h, kMaxSegmentSize


def ring(size: float, ranks: int, bandwidth: float, latency: float) -> float:
    """Seconds of an all-reduce of ``size`` bytes in a ring.

    Each rank sends 2 (ranks - 1) parts of size / ranks bytes (Patarasuk and Yuan, 2009).
    ``bandwidth``: bytes/s that a rank sends while it receives as much: the bus bandwidth of
    nccl-tests. ``latency``: of one message.
    """
    if ranks == 1:
        return 0.0
    messages = 2 * (ranks - 1)
    return messages / ranks * size / bandwidth + messages * latency


def tree(size: float, ranks: int, bandwidth: float, latency: float) -> float:
    """Seconds of an all-reduce in a double binary tree, which NCCL uses for many ranks (Sanders et
    al., 2009).
    """
    return 0.0 if ranks == 1 else 2 * size / bandwidth + 2 * log(ranks, 2) * latency


def hosts_and_gpus(
    size: float, hosts: int, gpus: int, inside: tuple[float, float], between: tuple[float, float]
) -> float:
    """Seconds of an all-reduce over ``hosts`` of ``gpus`` each.

    ``inside``, ``between``: bandwidth and latency of the links in a host, and of the network of a
    host, which its GPUs share. The slower of the two decides, because NCCL sends parts of the data
    through both at the same time.
    """
    return max(
        ring(size, gpus, *inside), min(ring(size, hosts, *between), tree(size, hosts, *between))
    )


def gloo_ring(size: float, ranks: int, bandwidth: float, latency: float) -> float:
    """Seconds of an all-reduce in gloo's ring (gloo/allreduce.cc): arguments as of ``ring``.

    Each rank's part is sent in at least two segments of at most 1 MiB. Two are on their way at a
    time: the next but one is sent when a segment has arrived, and when a message has come that its
    receiver is ready for it. With a long latency, this is slower than the bandwidth.
    """
    if ranks == 1 or not size:  # a run on one rank has nothing to send
        return 0.0
    segment = min(size / (2 * ranks), GLOO_SEGMENT)
    sent, latency = segment / bandwidth, 2 * latency
    pairs, rest = divmod((ranks - 1) * ceil(size / segment / ranks), 2)
    # The reduce-scatter, and then the all-gather.
    return 2 * (
        pairs * max(2 * sent, sent + latency) + (sent + latency if rest else min(sent, latency))
    )


def exposed(backward: float, buckets: list[float], ready: Sequence[float] = ()) -> float:
    """Seconds of communication that the backward pass does not hide.

    Bucket k is ready after ``ready[k]`` of the backward pass; without ``ready``, after k/n of it.
    Its all-reduce takes ``buckets[k]`` seconds, and begins when the one before it has ended (Li et
    al., section 3.2.3).
    """
    end = 0.0
    for k, seconds in enumerate(buckets):
        end = max(end, backward * (ready[k] if ready else (k + 1) / len(buckets))) + seconds
    return max(0.0, end - backward)


def exposed_gloo(
    backward: float,
    sizes: Sequence[float],
    ready: Sequence[float],
    ranks: int,
    bandwidth: float,
    latency: float,
) -> float:
    """As ``exposed``, for buckets of ``sizes`` bytes that gloo's ring sends, two at a time.

    Torch runs gloo with two threads (ProcessGroupGloo.cpp). Each of two all-reduces at a time takes
    as long as alone, unless both together need more than the bandwidth: then each is slower by that
    factor.
    """
    left = [gloo_ring(size, ranks, bandwidth, latency) for size in sizes]
    wire = [
        ring(size, ranks, bandwidth, 0.0) / seconds if seconds else 0.0
        for size, seconds in zip(sizes, left)
    ]
    begins = [backward * (ready[k] if ready else (k + 1) / len(sizes)) for k in range(len(sizes))]
    now = 0.0
    started = 0
    active = list[int]()
    while started < len(sizes) or active:
        if started < len(sizes) and len(active) < 2 and begins[started] <= now:
            active.append(started)
            started += 1
            continue
        slower = max(1.0, sum(wire[k] for k in active))
        events = [slower * left[k] for k in active]
        if started < len(sizes) and len(active) < 2:
            events.append(begins[started] - now)
        passed = min(events)
        now += passed
        left = [
            seconds - passed / slower if k in active else seconds for k, seconds in enumerate(left)
        ]
        active = [k for k in active if left[k] > 1e-12]
    return max(0.0, now - backward)


def bucket_sizes(gradients: float) -> list[float]:
    """Bytes of each bucket, the first one first."""
    sizes = [min(gradients, FIRST_BUCKET)]
    while (rest := gradients - sum(sizes)) > 0:
        sizes.append(min(rest, BUCKET))
    return sizes


def buckets_of(gradients: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """(bytes, share of the backward pass after which it is ready) of each bucket, from the same of
    each gradient.

    A bucket takes gradients in the order in which the backward pass makes them, until its size is
    reached (torch, reducer.cpp, compute_bucket_assignment_by_size).
    """
    buckets = list[tuple[float, float]]()
    size = 0.0
    limit = FIRST_BUCKET
    for each, ready in gradients:
        size += each
        if size >= limit:
            buckets.append((size, ready))
            size, limit = 0.0, BUCKET
    return (*buckets, (size, 1.0)) if size else tuple(buckets)


def slowest(ranks: int, spread: float) -> float:
    """The time of the slowest of ``ranks`` steps as a multiple of their mean.

    ``spread``: their standard deviation as a share of the mean. Steps are taken as normal; the
    expected largest of n normal numbers is Blom's approximation (1958).
    """
    return 1 + spread * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def reads(workers: int, latency: float, most: float) -> float:
    """Files per second that ``workers`` read, one after the other each.

    ``latency``: seconds of a read when nobody else reads. ``most``: files/s that the store or its
    mount serves at most. Workers are customers of one server and a delay: exact mean value analysis
    (Reiser and Lavenberg, 1980).
    """
    service, delay = 1 / most, max(0.0, latency - 1 / most)
    rate = queue = 0.0
    for customers in range(1, workers + 1):
        response = service * (1 + queue)
        rate = customers / (delay + response)
        queue = rate * response
    return rate

"""An event simulation of data-parallel training: rings and trees of thousands of ranks, mixed hosts, and preemptions.

The closed forms of segtrain/plan/model.py and spot.py are compared with it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from segtrain.plan.model import BACKWARD


@dataclass(frozen=True)
class Group:
    """``ranks`` of one kind. ``device``: mean seconds of a step; ``spread``: its standard deviation as a share of it.

    ``bandwidth`` (bytes/s) and ``latency`` (seconds) are those of the link from a rank to the next one in the ring.
    """

    ranks: int
    device: float
    spread: float = 0.0
    bandwidth: float = 1e9
    latency: float = 3e-5


def ring(ready: np.ndarray, size: float, bandwidth: np.ndarray, latency: np.ndarray) -> np.ndarray:
    """When each rank has the sum of ``size`` bytes, if it is ready at ``ready``. Arrays (ranks,).

    In each of 2 (ranks - 1) rounds, each rank sends a part to the next one, as soon as it has received one.
    """
    ranks, now = len(ready), ready.astype(float)
    sent = size / ranks / bandwidth + latency
    for _ in range(2 * (ranks - 1)):
        done = now + sent
        now = np.maximum(done, np.roll(done, 1))
    return now


def tree(ready: np.ndarray, size: float, bandwidth: np.ndarray, latency: np.ndarray, chunks: int = 2048) -> np.ndarray:
    """As ``ring``, in a double binary tree (Sanders et al., 2009): each of two trees sums half of the bytes.

    A rank is a leaf of one of them and an inner node of the other. It sends to four neighbors, and each gets a quarter
    of its bandwidth. The bytes go up and down a tree in ``chunks``, each as soon as it has come.
    """
    ranks = len(ready)
    sent, done = size / 2 / chunks / (bandwidth / 4), ready.astype(float)
    parents, levels = _binary_tree(ranks)
    for places in (np.arange(ranks), np.arange(ranks)[::-1] if ranks % 2 == 0 else np.roll(np.arange(ranks), 1)):
        have = np.repeat(ready[places, None].astype(float), chunks, axis=1)
        took, late = sent[places], latency[places]
        for level in levels[:0:-1]:
            np.maximum.at(have, parents[level], _through(have[level], took[level]) + late[level, None])
        for level in levels[1:]:
            up = parents[level]
            have[level] = _through(have[up], took[up]) + late[up, None]
        done[places] = np.maximum(done[places], have[:, -1])
    return done


def _binary_tree(ranks: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The parent of each place in an in-order binary tree, whose root is 0, and the places of each level.

    Places with an odd number are its leaves.
    """
    parents, depth = np.zeros(ranks, int), np.zeros(ranks, int)
    for place in range(1, ranks):
        low = place & -place
        up = (place ^ low) | (low << 1)
        parents[place] = up if up < ranks else place ^ low
    for place in range(1, ranks):
        at = place
        while at:
            at, depth[place] = parents[at], depth[place] + 1
    return parents, [np.flatnonzero(depth == level) for level in range(depth.max() + 1)]


def _through(ready: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """When each chunk has gone through its link, one after the other. ``ready``: (links, chunks)."""
    before = np.arange(ready.shape[1]) * seconds[:, None]
    found: np.ndarray = np.maximum.accumulate(ready - before, axis=1) + before + seconds[:, None]
    return found


def step(
    groups: Sequence[Group],
    buckets: Sequence[float],
    rng: np.random.Generator,
    reduce: Callable[[np.ndarray, float, np.ndarray, np.ndarray], np.ndarray] = ring,
) -> float:
    """Seconds of a step: each bucket is reduced when all of its ranks have it, and the one before it has ended.

    ``reduce``: ``ring`` or ``tree``.
    """
    device, spread, bandwidth, latency = (
        np.concatenate([np.full(group.ranks, getattr(group, name)) for group in groups])
        for name in ("device", "spread", "bandwidth", "latency")
    )
    times = device * (1 + spread * rng.standard_normal(len(device)))
    end = np.zeros(len(times))
    for k, size in enumerate(buckets):
        ready = times * (1 - BACKWARD * (1 - (k + 1) / len(buckets)))
        end = reduce(np.maximum(ready, end), size, bandwidth, latency)
    return float(np.maximum(times, end).max())


def preempted(
    work: float, every: float, checkpoint: float, resume: float, rates: Sequence[float], rng: random.Random
) -> float:
    """Seconds of a run of ``work`` seconds on hosts that fail, or are taken away, at ``rates`` per second.

    See ``spot.expected`` for the rest. A host that is lost is replaced by one that is lost at the same rate.
    """
    lost = [(rng.expovariate(rate), host) for host, rate in enumerate(rates) if rate]
    heapq.heapify(lost)
    now = saved = 0.0
    begin = 0.0  # of the work since the last checkpoint
    while saved < work:
        part = min(every, work - saved)
        end = begin + part + checkpoint
        if not lost or lost[0][0] >= end:
            saved, begin = saved + part, end
            now = end
            continue
        at, host = heapq.heappop(lost)
        heapq.heappush(lost, (at + rng.expovariate(rates[host]), host))
        begin = at + resume
    return now

"""An event simulation of data-parallel training: rings of thousands of ranks, mixed hosts, and preemptions.

It checks the closed forms of model.py and spot.py, and answers where they do not hold: groups of unequal machines, and
links of unequal speed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
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


def step(groups: Sequence[Group], buckets: Sequence[float], rng: np.random.Generator) -> float:
    """Seconds of a step: each bucket is reduced when all of its ranks have it, and the one before it has ended."""
    device, spread, bandwidth, latency = (
        np.concatenate([np.full(group.ranks, getattr(group, name)) for group in groups])
        for name in ("device", "spread", "bandwidth", "latency")
    )
    times = device * (1 + spread * rng.standard_normal(len(device)))
    end = np.zeros(len(times))
    for k, size in enumerate(buckets):
        ready = times * (1 - BACKWARD * (1 - (k + 1) / len(buckets)))
        end = ring(np.maximum(ready, end), size, bandwidth, latency)
    return float(np.maximum(times, end).max())


def preempted(
    work: float, every: float, checkpoint: float, resume: float, hosts: int, rate: float, rng: random.Random
) -> float:
    """Seconds of a run of ``work`` seconds on ``hosts``, each of which is taken away at ``rate`` per second.

    See ``spot.expected`` for the rest. A host that is taken away is replaced.
    """
    lost = [(rng.expovariate(rate), host) for host in range(hosts)]
    heapq.heapify(lost)
    now = saved = 0.0
    begin = 0.0  # of the work since the last checkpoint
    while saved < work:
        part = min(every, work - saved)
        end = begin + part + checkpoint
        if lost[0][0] >= end:
            saved, begin = saved + part, end
            now = end
            continue
        at, host = heapq.heappop(lost)
        heapq.heappush(lost, (at + rng.expovariate(rate), host))
        begin = at + resume
    return now

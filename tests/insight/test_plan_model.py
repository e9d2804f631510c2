"""The planner's closed forms, compared with a simulation of events, with limits, and with values
worked out by hand.
"""

from __future__ import annotations

import heapq
import random
import statistics

import pytest
import torch

from segtrain.insight.plan import model


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("size", [4e3, 5e6, 25e6, 3.1e7])
@pytest.mark.parametrize("latency", [0.0, 1e-4, 1e-2])
def test_gloos_ring_is_that_of_its_events(ranks, size, latency):
    """A segment is sent when the next but one before it has arrived, its receiver has said that it
    is ready, and the link has sent the one before it.
    """
    each = max(2, -(-size // (ranks << 20)))
    seconds = min(size / (2 * ranks), 1 << 20) / 1e8
    end = 0.0
    for _ in range(2):
        sent, arrived = [end], [end, end]
        for place in range(int((ranks - 1) * each)):
            sent.append(max(arrived[place], sent[place]) + seconds)
            arrived.append(sent[-1] + 2 * latency)
        end = arrived[-1]
    assert model.gloo_ring(size, ranks, 1e8, latency) == pytest.approx(end)
    assert model.gloo_ring(size, 1, 1e8, latency) == model.gloo_ring(0, ranks, 1e8, latency) == 0


def test_buckets_are_those_of_torch():
    rng = random.Random(25)
    shapes = [rng.choice((64, 4096, 30_000, 600_000, 2_400_000)) for _ in range(80)]
    with torch.device("meta"):
        tensors = [torch.empty(size) for size in reversed(shapes)]
    theirs, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, [1 << 20, 25 << 20])
    gradients = [(4.0 * size, place / len(shapes)) for place, size in enumerate(reversed(shapes))]
    assert model.buckets_of(gradients) == tuple(
        (
            sum(gradients[place][0] for place in bucket),
            pytest.approx(gradients[bucket[-1]][1], abs=1 / len(shapes)),
        )
        for bucket in theirs
    )


def test_gloo_sends_two_buckets_at_a_time():
    """Where the latency is long, two buckets take as long as one; where the bandwidth is low, twice
    as long.
    """
    for latency, factor in ((1.0, 1), (0.0, 2)):
        alone = model.gloo_ring(1e6, 2, 1e8, latency)
        assert model.exposed_gloo(0, [1e6] * 2, [0.0] * 2, 2, 1e8, latency) == pytest.approx(
            factor * alone
        )
        assert model.exposed_gloo(0, [1e6] * 4, [0.0] * 4, 2, 1e8, latency) == pytest.approx(
            2 * factor * alone
        )
    # The second bucket is ready when the first has been sent, and the backward pass hides the
    # first.
    assert model.exposed_gloo(1.0, [1e6, 1e6], [0.5, 1.0], 2, 1e8, 0.0) == pytest.approx(0.01)
    assert model.exposed_gloo(1.0, [1e6], [1.0], 1, 1e8, 0.0) == 0


@pytest.mark.parametrize(
    ("backward", "bucket", "left"),
    [(1.0, 0.0, 0.0), (1.0, 0.05, 0.05), (0.0, 0.3, 1.2), (1.0, 0.5, 1.25)],
)
def test_the_backward_pass_hides_all_but_the_last_bucket(backward, bucket, left):
    """With four buckets of 0.5 s: the first begins at 0.25 s, and the last ends at 2.25 s."""
    assert model.exposed(backward, [bucket] * 4) == pytest.approx(left)


@pytest.mark.parametrize("ranks", [2, 64])
def test_the_slowest_rank_is_that_of_drawn_steps(ranks):
    rng = random.Random(5)
    drawn = statistics.mean(max(rng.gauss(1, 0.05) for _ in range(ranks)) for _ in range(4000))
    assert model.slowest(ranks, 0.05) == pytest.approx(drawn, abs=0.005)
    assert model.slowest(1, 0.05) == pytest.approx(1)


def simulated(workers: int, latency: float, most: float, files: int = 60_000) -> float:
    """Events: a worker waits for the delay, then for its turn at one server; both times are
    exponential.
    """
    rng, now, free = random.Random(3), 0.0, 0.0
    service, delay = 1 / most, max(0.0, latency - 1 / most)
    arrivals = [rng.expovariate(1 / delay) if delay else 0.0 for _ in range(workers)]
    heapq.heapify(arrivals)
    for _ in range(files):
        now = heapq.heappop(arrivals)
        free = max(free, now) + rng.expovariate(1 / service)
        heapq.heappush(arrivals, free + (rng.expovariate(1 / delay) if delay else 0.0))
    return files / free


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize(("latency", "most"), [(0.03, 100.0), (0.1, 150.0)])
def test_reads_are_those_of_a_simulation(workers, latency, most):
    assert model.reads(workers, latency, most) == pytest.approx(
        simulated(workers, latency, most), rel=0.02
    )


def test_a_host_without_neighbors_needs_no_network():
    alone = model.hosts_and_gpus(1e8, 1, 8, (1e11, 8e-6), (3e9, 3e-5))
    assert alone == pytest.approx(model.ring(1e8, 8, 1e11, 8e-6))
    assert model.hosts_and_gpus(1e8, 8, 8, (1e11, 8e-6), (3e9, 3e-5)) > 10 * alone

"""Tests that each sample comes exactly once per epoch, and that a step does not depend on how it is
split.
"""

from __future__ import annotations

import numpy as np
import pytest
from conftest import refused

from segtrain.data.order import eval_groups, permutation, rank_slice, rng_for, samples


@pytest.mark.parametrize(("n", "batch_size"), [(1, 4), (7, 3), (10, 10), (101, 16), (5, 13)])
def test_every_epoch_is_a_permutation(n, batch_size):
    steps = [samples(3, n, step * batch_size, batch_size) for step in range(4 * n)]
    epochs, ids = (np.concatenate(parts) for parts in zip(*steps))
    assert (np.diff(epochs) >= 0).all()
    for epoch in range(len(epochs) // n):
        assert sorted(ids[epochs == epoch]) == list(range(n))


def test_epochs_and_seeds_differ():
    orders = {tuple(permutation(seed, 50, epoch)) for seed in range(4) for epoch in range(5)}
    assert len(orders) == 20


def test_any_step_starts_at_once():
    epochs, ids = samples(1, 367, 0, 5000)
    for first, count in [(0, 1), (366, 2), (1234, 16), (4000, 1000), (700, 0)]:
        part_epochs, part_ids = samples(1, 367, first, count)
        assert (part_epochs == epochs[first : first + count]).all()
        assert (part_ids == ids[first : first + count]).all()
    far_epochs, _ = samples(1, 367, 367 * 10**9, 4)
    assert (far_epochs == 10**9).all()


def test_no_two_streams_are_alike():
    keys = [
        (seed, epoch, index, stream)
        for seed in (0, 1)
        for epoch in (0, 1)
        for index in (0, 1)
        for stream in (0, 1, 2)
    ]
    values = [rng_for(*key).random(4).tobytes() for key in keys]
    assert len(set(values)) == len(keys)
    assert (
        rng_for(0, 1, 2).random(4).tobytes()
        == rng_for(0, np.int64(1), np.int64(2)).random(4).tobytes()
    )


@pytest.mark.parametrize("batch_size", [1, 2, 5, 16, 31])
def test_ranks_and_micro_batches_partition_the_batch(batch_size):
    for world in range(1, 9):
        for accumulate in range(1, batch_size // world + 1):
            parts = [
                rank_slice(batch_size, world, r, accumulate, m)
                for m in range(accumulate)
                for r in range(world)
            ]
            places = [place for part in parts for place in range(batch_size)[part]]
            sizes = {part.stop - part.start for part in parts}
            assert sorted(places) == list(range(batch_size))
            assert min(sizes) >= 1
            assert max(sizes) - min(sizes) <= 1


def test_a_batch_too_small_for_its_ranks_is_refused():
    with refused("batch-too-small", key="train.batch_size", found=7, expected=8):
        rank_slice(7, 4, 0, 2, 0)


def test_no_samples():
    with refused("split-empty"):
        samples(0, 0, 0, 4)


def test_eval_groups_hold_each_image_once_and_one_size():
    rng = np.random.default_rng(0)
    sizes = [(int(h), int(w)) for h, w in rng.integers(1, 4, (101, 2))]
    groups = eval_groups(sizes, 4)
    assert sorted(index for group in groups for index in group) == list(range(101))
    assert all(
        len({sizes[index] for index in group}) == 1 and 1 <= len(group) <= 4 for group in groups
    )
    for world in (1, 2, 3, 4):
        assert sorted(
            i for rank in range(world) for group in groups[rank::world] for i in group
        ) == list(range(101))
    # As few batches as possible.
    assert len(groups) == sum(-(-sizes.count(size) // 4) for size in set(sizes))
    assert eval_groups([], 4) == []

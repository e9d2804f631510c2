"""Order of samples as a pure function of (seed, step): no state is saved, and a run can start at
any step.

All samples of a run form one endless sequence: epoch after epoch, each a new permutation of the
data set. A step takes the next ``batch_size`` samples and divides them among ranks and
micro-batches. So a run continues exactly where it stopped, even with another number of ranks,
micro-batches, or workers, and no epoch drops or repeats a sample.

Random numbers come from Philox, a counter-based generator (Salmon et al. 2011). Its key and counter
determine the numbers, which are the same on every platform and in every version of NumPy.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from segtrain.errors import ConfigError, DataError

# Streams of random numbers: draws for one purpose never shift the draws for another.
PERMUTATION, GEOMETRY, CLASS, TRANSFORMS = 0, 1, 2, 3


def _philox(seed: int, epoch: int, sample_id: int, stream: int) -> np.random.Philox:
    # The lowest counter word advances while numbers are drawn; the others select the stream, so
    # that no two overlap.
    words = [0, operator.index(sample_id), operator.index(epoch), stream]
    return np.random.Philox(counter=np.array(words, np.uint64), key=operator.index(seed) % 2**128)


def rng_for(seed: int, epoch: int, sample_id: int, stream: int = GEOMETRY) -> np.random.Generator:
    """The generator of one sample in one epoch. Use only ``.random()``, which is the same in every
    version of NumPy.
    """
    return np.random.Generator(_philox(seed, epoch, sample_id, stream))


@lru_cache(maxsize=4)
def permutation(seed: int, n: int, epoch: int) -> np.ndarray:
    """The order of an epoch: int64 [n], read-only.

    It sorts random keys, because NumPy may change ``Generator.permutation``.
    """
    order = np.argsort(_philox(seed, epoch, 0, PERMUTATION).random_raw(n), kind="stable").astype(
        np.int64
    )
    order.flags.writeable = False
    return order


def samples(seed: int, n: int, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Epochs and indices of the samples at positions ``first`` to ``first + count - 1`` of the
    endless sequence.

    Step ``s`` of a run takes ``samples(seed, n, s * batch_size, batch_size)``. Returns two int64
    arrays [count]. Raises DataError if there are no samples.
    """
    if n < 1:
        raise DataError(
            "the training split has no samples: check data.root and data.train_split",
            code="split-empty",
        )
    epochs, offsets = np.divmod(np.arange(first, first + count, dtype=np.int64), n)
    indices = np.empty(count, np.int64)
    for epoch in range(first // n, (first + count - 1) // n + 1):
        here = epochs == epoch
        indices[here] = permutation(seed, n, epoch)[offsets[here]]
    return epochs, indices


def rank_slice(batch_size: int, world: int, rank: int, accumulate: int, micro: int) -> slice:
    """Part of the global batch that ``rank`` sees in its micro-batch ``micro``.

    The ``world * accumulate`` parts are disjoint, cover the batch, and differ in size by at most
    one. Raises ConfigError if a part would be empty.
    """
    parts = world * accumulate
    if batch_size < parts:
        raise ConfigError(
            f"train.batch_size={batch_size} is less than {world} ranks x "
            f"train.accumulate={accumulate}: "
            f"set train.batch_size to at least {parts}, or use fewer ranks",
            code="batch-too-small",
            key="train.batch_size",
            found=batch_size,
            expected=parts,
        )
    part = micro * world + rank
    return slice(part * batch_size // parts, (part + 1) * batch_size // parts)


def eval_groups(sizes: Sequence[tuple[int, int]], batch_size: int) -> list[list[int]]:
    """Batches of images of equal size, with each image exactly once; the same on any number of
    ranks.

    Rank ``r`` of ``w`` takes ``groups[r::w]``. Sizes come in the order in which they first appear.
    """
    by_size: dict[tuple[int, int], list[int]] = {}
    for index, (height, width) in enumerate(sizes):
        by_size.setdefault((int(height), int(width)), []).append(index)
    return [
        same[k : k + batch_size]
        for same in by_size.values()
        for k in range(0, len(same), batch_size)
    ]

"""Check that all ranks were started for the same run, on the same files, before anything is written
or trained.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any

import numpy as np
from torch import nn

from segtrain.config import Config
from segtrain.data.dataset import Dataset
from segtrain.data.index.entries import listing_text
from segtrain.errors import ConfigError, DataError, some_of
from segtrain.parallel.collective import broadcast_bytes, broadcast_json, names_of, outliers_of
from segtrain.parallel.strategy import Strategy
from segtrain.runfolder.rundir import differences
from segtrain.training.start.same_data import looked_at

SHOWN = 5  # settings in one error


def agree_on_config(config: Config, parts: dict[str, str], strategy: Strategy) -> None:
    """Raise ConfigError on every rank if one of them was started with other settings than rank 0. A
    collective.

    ``parts``: qualified names of the parts that were passed in, by role.
    """
    mine = {**config.dump_without("per_host"), "passed": parts}
    _agree(
        mine,
        strategy,
        "settings",
        "start all ranks with one config, the same overrides, and the same parts",
    )


def agree_on_network(network: nn.Module, strategy: Strategy) -> None:
    """Raise ConfigError on every rank if one has other parameters or buffers than rank 0, or
    another order of them.

    DDP would match them by their order alone. A collective.
    """
    named = enumerate([*network.named_parameters(), *network.named_buffers()])
    mine = {
        f"tensor {k}": f"{name} {[*v.shape]} {v.dtype} {v.requires_grad}" for k, (name, v) in named
    }
    _agree(
        mine,
        strategy,
        "network",
        "construct the model alike on all ranks, and not in the order of a set",
    )


def _agree(mine: dict[str, Any], strategy: Strategy, what: str, fix: str) -> None:
    if strategy.world_size == 1:
        return
    digest = hashlib.sha256(json.dumps(mine, sort_keys=True, default=str).encode()).digest()
    outliers, _ = outliers_of(strategy, [int.from_bytes(digest[:7], "big")])
    if not outliers:
        return
    rank_0_values = broadcast_json(strategy, 0, mine)
    changes = broadcast_json(strategy, outliers[0], differences(mine, rank_0_values, "on rank 0"))
    things = "tensors" if what == "network" else what
    raise ConfigError(
        f"the {things} of {names_of(strategy, outliers)} differ from those of rank 0: "
        f"{some_of(changes, SHOWN, '; ')}: {fix}",
        code=f"rank-{what}-differ",
        ranks=outliers,
        changes=changes,
    )


def check_same_files(splits: dict[str, Dataset], config: Config, strategy: Strategy) -> None:
    """Raise DataError on every rank if one of them lists other files than rank 0. A collective.

    It compares the names of all files under the root, their order, the classes, and the sizes of
    some files (``looked_at``). The error names the rank and the first file that differs.
    """
    if strategy.world_size == 1 or not config.log.sentinel:
        return
    sizes = {role: _sizes(split) for role, split in splits.items()}
    numbers = [
        [len(split), int(split.fingerprint(sizes[role]), 16)] for role, split in splits.items()
    ]
    for (role, split), (outliers, rows) in zip(
        splits.items(), [outliers_of(strategy, pair) for pair in numbers]
    ):
        if outliers:
            count, expected = rows[outliers[0]][0], rows[0][0]
            difference = _first_difference(split, sizes[role], strategy, outliers[0])
            raise DataError(
                f"{split.name} {split.split} ({role}): {names_of(strategy, outliers)} found other "
                f"files than rank 0, {count:,} images against {expected:,}; {difference}: bring "
                "the same data to every host (data.root)",
                code="rank-files-differ",
                split=split.split,
                ranks=outliers,
            )


def _sizes(split: Dataset) -> np.ndarray:
    """int64 (n, 2, 2) as from ``stamps``: the sizes of some files (``looked_at``), and zeros
    elsewhere.
    """
    sizes = np.zeros((len(split), 2, 2), np.int64)
    if not split.sizes_known:
        some = looked_at(len(split))
        sizes[some, :, 0] = split.stamps(some)[:, :, 0]
    return sizes


def _first_difference(split: Dataset, sizes: np.ndarray, strategy: Strategy, outlier: int) -> str:
    """Words for the first difference between the files of rank ``outlier`` and those of rank 0. A
    collective.
    """
    text = listing_text(split.entries, split.root, sizes[:, :, 0], 0, len(split))
    content = zlib.compress(text, 1) if strategy.rank == 0 else b""
    rank_0_listing = zlib.decompress(broadcast_bytes(strategy, 0, content))
    # The lines alternate: an image, then its mask.
    ours, theirs = (
        listing.decode(errors="surrogateescape").split("\n") for listing in (text, rank_0_listing)
    )
    line = next((k for k, (a, b) in enumerate(zip(ours, theirs)) if a != b), -1)
    (name, _, size), (name_0, _, size_0) = (lines[line].partition("\0") for lines in (ours, theirs))
    words = f"image {line // 2 + 1:,} there is {name or 'nothing'}, on rank 0 {name_0 or 'nothing'}"
    if line < 0:
        words = "the names are the same; the classes, or what the shards hold, differ"
    elif name == name_0:
        words = f"{name} has another size there ({size} bytes, on rank 0 {size_0})"
    return str(broadcast_json(strategy, outlier, words))

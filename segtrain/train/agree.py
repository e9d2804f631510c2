"""Check that all ranks were started for the same run, on the same files, before anything is written or trained."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from segtrain.config import Config
from segtrain.data.datasets import Dataset
from segtrain.data.index.stamps import files, listing_text, relative, stamps
from segtrain.data.index.subset import whole
from segtrain.data.shards.reader import ShardDataset
from segtrain.errors import ConfigError, DataError
from segtrain.observe.trackers import TRACKERS
from segtrain.parallel.collective import broadcast_json, names_of, table
from segtrain.parallel.strategy import Strategy
from segtrain.train.same_data import looked_at

# What each host may say for itself; all else decides what is trained, or which collectives are made when.
OWN = {
    "out": True,
    "name": True,
    "data": {"root", "workers", "worker_kind", "prefetch", "cache", "color_jitter_on"},
    "parallel": {"procs", "threads"},
    "log": {"profile_ms", *(kind.setting for kind in TRACKERS if kind.extra)},
}
BLOCK = 4096  # names among which the first that differs is looked for
SHOWN = 5  # settings in one error


def agree_on_config(config: Config, strategy: Strategy) -> None:
    """Raise ConfigError on every rank where one was started with other settings. A collective."""
    if strategy.world_size == 1:
        return
    mine = _flat(config.model_dump(mode="json", exclude=OWN))  # type: ignore[arg-type]
    text = json.dumps(mine, sort_keys=True, default=str).encode()
    odd, _ = _odd_ranks(strategy, [int.from_bytes(hashlib.sha256(text).digest()[:7], "big")])
    if not odd:
        return
    theirs = broadcast_json(strategy, 0, mine)
    changes = [
        f"{key}={mine.get(key)!r} there, {theirs.get(key)!r} on rank 0"
        for key in sorted({*mine, *theirs})
        if mine.get(key) != theirs.get(key)
    ]
    changes = broadcast_json(strategy, odd[0], changes)
    shown = "; ".join(changes[:SHOWN]) + (f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else "")
    raise ConfigError(
        f"the settings of {names_of(strategy, odd)} differ from those of rank 0: {shown}: start all ranks with one "
        "config and the same overrides",
        code="rank-settings-differ", ranks=odd, changes=changes,
    )  # fmt: skip


def check_same_files(splits: dict[str, Dataset], config: Config, strategy: Strategy) -> None:
    """Raises DataError on every rank, naming rank and file, where one lists other files than rank 0. A collective.

    Compared are the names of all files under the root, their order, the classes, and the sizes of some files
    (``looked_at``).
    """
    if strategy.world_size == 1 or not config.log.sentinel:
        return
    sizes = {role: _sizes(split) for role, split in splits.items()}
    numbers = [[len(split), int(split.fingerprint(sizes[role]), 16)] for role, split in splits.items()]
    for (role, split), (odd, rows) in zip(splits.items(), [_odd_ranks(strategy, pair) for pair in numbers]):
        if odd:
            found, expected = rows[odd[0]][0], rows[0][0]
            difference = _first_difference(split, sizes[role], strategy, odd[0])
            raise DataError(
                f"{split.name} {split.split} ({role}): {names_of(strategy, odd)} lists other files than rank 0, "
                f"{found:,} images against {expected:,}; {difference}: bring the same data to every host (data.root)",
                code="rank-files-differ", split=split.split, ranks=odd, found=found, expected=expected,
            )  # fmt: skip


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _odd_ranks(strategy: Strategy, numbers: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Ranks whose numbers are not those of rank 0, and the numbers of all."""
    rows = table(strategy, torch.tensor(numbers, dtype=torch.int64, device=strategy.device)).tolist()
    return [rank for rank, row in enumerate(rows) if row != rows[0]], rows


def _sizes(split: Dataset) -> np.ndarray:
    """Zeros (n, 2, 2), with the sizes of some files (``looked_at``)."""
    found = np.zeros((len(split), 2, 2), np.int64)
    if split.draw is None and not isinstance(whole(split), ShardDataset):  # a shard's index knows the sizes
        places = looked_at(len(split))
        found[places, :, 0] = stamps([split.entries[int(place)] for place in places])[:, :, 0]
    return found


def _first_difference(split: Dataset, sizes: np.ndarray, strategy: Strategy, odd: int) -> str:
    """What rank ``odd`` has where rank 0 has something else. A collective."""
    names = range(0, len(split), BLOCK)
    blocks = [
        zlib.crc32(listing_text(split.entries, split.root, sizes[:, :, 0], begin, min(begin + BLOCK, len(split))))
        for begin in names
    ]
    theirs = broadcast_json(strategy, 0, blocks)
    begin = BLOCK * _first(blocks, theirs)
    begin = broadcast_json(strategy, odd, begin)

    def listed() -> list[list[Any]]:
        after = min(begin + BLOCK, len(split))
        return [
            [relative(image, split.root), relative(mask, split.root), *size]
            for (image, mask), size in zip(files(split.entries, begin, after), sizes[begin:after, :, 0].tolist())
        ]

    here = listed() if begin < len(split) else []
    there = broadcast_json(strategy, 0, here)
    return str(broadcast_json(strategy, odd, _words(here, there, begin)))


def _first(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    """The first place at which two lists differ, or the length of the shorter one."""
    return next((k for k, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))


def _words(here: list[list[Any]], there: list[list[Any]], begin: int) -> str:
    place = _first(here, there)
    if place == len(here) == len(there):
        return "the names are the same; the classes, or what the shards hold, differ"
    ours, theirs = (rows[place] if place < len(rows) else ["nothing", "", 0, 0] for rows in (here, there))
    if ours[:2] == theirs[:2]:
        sizes = f"{ours[2]:,} and {ours[3]:,} bytes; {theirs[2]:,} and {theirs[3]:,}"
        return f"{ours[0]} or its mask has another size there ({sizes})"
    shown = (rows[1] if rows[0] == other[0] else rows[0] for rows, other in ((ours, theirs), (theirs, ours)))
    return "image {:,} there is {}, on rank 0 {}".format(begin + place + 1, *shown)

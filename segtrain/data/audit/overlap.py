"""Images that are in two splits, found by their paths, then by content: sizes, some bytes, all bytes."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from segtrain import config
from segtrain.data.audit.audit import in_windows
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.datasets import Dataset
from segtrain.data.index.split_by import POOL, division, names_of
from segtrain.data.index.stamps import relative
from segtrain.errors import DataError
from segtrain.files import cache_folder, writing

# Version of the cached results.
VERSION = 1
_SHOWN, _READERS = 3, 8
# Bytes at two places of a file, which differ for nearly all images of the same size.
_BYTES = 4096
_BLOCK = 1 << 20


@dataclass(frozen=True)
class SplitOverlap:
    """``count`` images are in both splits; ``pairs``: the first few (train, other). ``same``: the splits are equal."""

    count: int
    pairs: tuple[tuple[str, str], ...]
    same: bool = False


def overlap(train: Dataset, other: Dataset) -> SplitOverlap:
    """Images of ``other`` that are in ``train``; cached until a file changes. Raises DataError for a missing file."""
    if train.draw or other.draw:  # generated images have names only
        return _by_name(train, other)
    stamped = [split.stamps() for split in (train, other)]
    fingerprints = [split.fingerprint(stamps) for split, stamps in zip((train, other), stamped)]
    if fingerprints[0] == fingerprints[1]:
        return _by_name(train, other)
    digest = hashlib.sha256(json.dumps([VERSION, train.root, train.split, other.split, *fingerprints]).encode())
    for stamps in stamped:
        digest.update(np.ascontiguousarray(stamps[:, 0, 1]).data)
    path = cache_folder() / f"overlap-{digest.hexdigest()[:24]}.json"
    if kept := _kept(path):
        return kept
    found = _by_content(train, other, stamped[0][:, 0, 0], stamped[1][:, 0, 0])
    with contextlib.suppress(OSError):  # the audit has reported that the cache is not writable
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as stream:
            stream.write(json.dumps(asdict(found)).encode())
    return found


def _by_name(train: Dataset, other: Dataset) -> SplitOverlap:
    names = {entry.image for entry in train.entries}
    both = [entry.image for entry in other.entries if entry.image in names]
    same = len(both) == len(train) == len(other)
    pairs = tuple((relative(name, train.root), relative(name, other.root)) for name in both[:_SHOWN])
    return SplitOverlap(len(both), pairs, same)


def _kept(path: Path) -> SplitOverlap | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return SplitOverlap(int(content["count"]), tuple((a, b) for a, b in content["pairs"]), bool(content["same"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _by_content(train: Dataset, other: Dataset, train_sizes: np.ndarray, other_sizes: np.ndarray) -> SplitOverlap:
    """``train_sizes``, ``other_sizes``: file sizes in bytes. Only files whose size occurs in both splits are read."""
    train_left = np.flatnonzero(np.isin(train_sizes, other_sizes)).tolist()
    other_left = np.flatnonzero(np.isin(other_sizes, train_sizes)).tolist()
    with ThreadPoolExecutor(_READERS) as pool:
        for complete in (False, True):
            train_groups = _grouped(pool, train, train_left, train_sizes, complete)
            other_groups = _grouped(pool, other, other_left, other_sizes, complete)
            both = train_groups.keys() & other_groups.keys()
            train_left = sorted(index for key in both for index in train_groups[key])
            other_left = sorted(index for key in both for index in other_groups[key])
    twins = sorted((index, train_groups[key][0]) for key in both for index in other_groups[key])
    names = [(train.entries[a].image, other.entries[b].image) for b, a in twins[:_SHOWN]]
    return SplitOverlap(len(twins), tuple((relative(a, train.root), relative(b, other.root)) for a, b in names))


def _grouped(
    pool: ThreadPoolExecutor, split: Dataset, indices: list[int], sizes: np.ndarray, complete: bool
) -> dict[bytes, list[int]]:
    """Digest -> indices of the images that have it, without images that cannot be read."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for index, digest in in_windows(pool, lambda i: _digest(split, i, int(sizes[i]), complete), indices):
        if digest:
            found[digest].append(index)
    return found


def _digest(split: Dataset, index: int, size: int, complete: bool) -> bytes:
    """A digest of all bytes, or of the middle and the end, since files that one program wrote begin alike."""
    ends = [(size // 2, _BYTES), (max(0, size - _BYTES), _BYTES)]
    parts = [(begin, _BLOCK) for begin in range(0, size, _BLOCK)] if complete else ends
    digest = hashlib.blake2b(size.to_bytes(8, "big"), digest_size=16)
    try:
        for begin, length in parts:
            digest.update(split.image_bytes(index, begin, length))
    except DataError:  # the audit reports it
        return b""
    return digest.digest()


def overlap_finding(data: config.Data, train: Dataset, other: Dataset) -> SplitFinding | None:
    """The finding about images of ``other`` that are also training images. It is fatal unless the config accepts it."""
    found = overlap(train, other)
    if not found.count:
        return None
    names = f"{train.name}: {train.split} and {other.split}"
    if found.same:
        says = f"{names} are the same {len(other):,} images ({found.pairs[0][1]}, ...)"
    else:
        pairs = [a if a == b else f"{b} is {a}" for a, b in found.pairs]
        more = f" and {found.count - len(pairs):,} more" if found.count > len(pairs) else ""
        says = f"{names}: {found.count:,} of {len(other):,} images of {other.split} are training images"
        says += f": {', '.join(pairs)}{more}"
    says += ". A score on them says nothing about new images"
    if data.overlap == "accept":
        return SplitFinding(f"{says} (data.overlap=accept)")
    settings: dict[str, object] = {}
    if found.same and data.layout != "scenes" and not data.split_by.on:
        settings = division(data, data.train_split if data.own_splits else POOL, names_of(train))
    fix = "Divide the data set" if settings else "Remove them from one of the splits"
    return SplitFinding(f"{says}. {fix}", True, settings, (("to continue anyway", {"data.overlap": "accept"}),))

"""Finds images that are in two splits. Files are compared by size, then by some bytes, then by all
bytes.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import json
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from segtrain.base.files import cache_folder
from segtrain.base.json_text import cache_json, read_json
from segtrain.bucket.faults import RequestError
from segtrain.config import Data
from segtrain.config.paste import Settings
from segtrain.data.audit.audit import in_windows
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.audit.mask_values import LISTED
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.index.entries import relative
from segtrain.data.index.split_by import POOL, division, names_of, with_settings
from segtrain.errors import DataError, SegtrainError

# Version of the cached results.
VERSION = 2
# So many pairs of equal images are shown, and kept.
_SHOWN, _KEPT = 3, LISTED
# Threads that read from a disk, and from a bucket.
_READERS, _BUCKET_READERS = 8, 64
# Number of bytes that are compared first, at each of two places in a file. Nearly all different
# images differ there.
_BYTES = 4096
_BLOCK = 1 << 20
# Takes the place of the digest if a file cannot be read.
_UNREAD = b""


@dataclass(frozen=True)
class SplitOverlap:
    """``count`` images are in both splits; ``pairs``: the first few (train, other). ``same``: the
    splits are equal.
    """

    count: int
    pairs: tuple[tuple[str, str], ...]
    same: bool = False


def overlap(train: Dataset, other: Dataset) -> SplitOverlap:
    """The images of ``other`` that are also in ``train``.

    The result is cached until a file changes, unless a file could not be read. Raises DataError for
    a missing file, and for a bucket that cannot be read.
    """
    if not (train.stored and other.stored):
        return _by_name(train, other)
    stamped = [split.stamps() for split in (train, other)]
    fingerprints = [split.fingerprint(stamps) for split, stamps in zip((train, other), stamped)]
    if fingerprints[0] == fingerprints[1]:
        return _by_name(train, other)
    digest = hashlib.sha256(
        json.dumps([VERSION, train.root, train.split, other.split, *fingerprints]).encode()
    )
    for stamps in stamped:
        digest.update(np.ascontiguousarray(stamps[:, 0, 1]).data)
    path = cache_folder() / f"overlap-{digest.hexdigest()[:24]}.json"
    if cached := _kept(path):
        return cached
    result, complete = _by_content(train, other, stamped[0][:, 0, 0], stamped[1][:, 0, 0])
    if not complete:
        return result
    with contextlib.suppress(OSError):  # the audit has reported that the cache is not writable
        cache_json(path, asdict(result))
    return result


def _by_name(train: Dataset, other: Dataset) -> SplitOverlap:
    names = {entry.image for entry in train.entries}
    both = [entry.image for entry in other.entries if entry.image in names]
    same = len(both) == len(train) == len(other)
    pairs = tuple((relative(name, train.root), relative(name, other.root)) for name in both[:_KEPT])
    return SplitOverlap(len(both), pairs, same)


def _kept(path: Path) -> SplitOverlap | None:
    try:
        content = read_json(path)
        return SplitOverlap(
            int(content["count"]), tuple((a, b) for a, b in content["pairs"]), bool(content["same"])
        )
    except (ValueError, KeyError, TypeError):
        return None


def _by_content(
    train: Dataset, other: Dataset, train_sizes: np.ndarray, other_sizes: np.ndarray
) -> tuple[SplitOverlap, bool]:
    """The overlap, and whether all files could be read. Only files whose size occurs in both splits
    are read.

    ``train_sizes``, ``other_sizes``: file sizes in bytes.
    """
    unread = 0
    train_left = np.flatnonzero(np.isin(train_sizes, other_sizes)).tolist()
    other_left = np.flatnonzero(np.isin(other_sizes, train_sizes)).tolist()
    with ThreadPoolExecutor(_READERS if train.store.local else _BUCKET_READERS) as pool:
        for complete in (False, True):
            train_groups = _grouped(pool, train, train_left, train_sizes, complete)
            other_groups = _grouped(pool, other, other_left, other_sizes, complete)
            unread += len(train_groups.pop(_UNREAD, [])) + len(other_groups.pop(_UNREAD, []))
            both = train_groups.keys() & other_groups.keys()
            train_left = sorted(index for key in both for index in train_groups[key])
            other_left = sorted(index for key in both for index in other_groups[key])
    twins = sorted(
        pair for key in both for pair in itertools.product(other_groups[key], train_groups[key])
    )
    names = [(train.entries[a].image, other.entries[b].image) for b, a in twins[:_KEPT]]
    pairs = tuple((relative(a, train.root), relative(b, other.root)) for a, b in names)
    return SplitOverlap(len(other_left), pairs), not unread


def _grouped(
    pool: ThreadPoolExecutor, split: Dataset, indices: list[int], sizes: np.ndarray, complete: bool
) -> dict[bytes, list[int]]:
    """Digest -> indices of the images that have it; ``_UNREAD`` -> those that cannot be read."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for index, digest in in_windows(
        pool, lambda i: _digest(split, i, int(sizes[i]), complete), indices
    ):
        groups[digest].append(index)
    return groups


def _digest(split: Dataset, index: int, size: int, complete: bool) -> bytes:
    """A digest of all bytes if ``complete``, otherwise of some bytes in the middle and at the end.

    The first bytes say little, since files from one program often begin alike. Returns ``_UNREAD``
    for a file that cannot be read. Raises RequestError.
    """
    ends = [(size // 2, _BYTES), (max(0, size - _BYTES), _BYTES)]
    parts = [(begin, _BLOCK) for begin in range(0, size, _BLOCK)] if complete else ends
    digest = hashlib.blake2b(size.to_bytes(8, "big"), digest_size=16)
    try:
        for begin, length in parts:
            digest.update(split.image_bytes(index, begin, length))
    except RequestError:
        raise
    except DataError:  # the audit reports it
        return _UNREAD
    return digest.digest()


def _without_copies(data: Data, train: Dataset, shared: SplitOverlap) -> Settings:
    """Settings that leave the images of ``train`` out that are in both splits, with their masks; {}
    if these are not all known, too many, or cannot be left out.
    """
    images = {image for image, _ in shared.pairs}
    if shared.count != len({b for a, b in shared.pairs if a != b}) or not images:
        return {}
    of_mask = Counter(entry.mask for entry in train.entries)
    entries = [e for e in train.entries if relative(e.image, train.root) in images]
    files = {e.image for e in entries} | {e.mask for e in entries if of_mask[e.mask] == 1}
    copies = sorted(glob.escape(relative(path, train.root)) for path in files if path)
    without = data.model_copy(update={"leave_out": (*data.leave_out, *copies)})
    with contextlib.suppress(SegtrainError):
        left = len(open_dataset(without, train.split)) if len(copies) <= LISTED else 0
        if left == len(train) - len(entries):
            return {"data.leave_out": without.leave_out}
    return {}


def overlap_finding(data: Data, train: Dataset, other: Dataset) -> SplitFinding | None:
    """The finding about images of ``other`` that are also training images. It is fatal unless the
    config accepts it.
    """
    shared = overlap(train, other)
    if not shared.count:
        return None
    names = f"{train.name}: {train.split} and {other.split}"
    if shared.same:
        message = f"{names} are the same {len(other):,} images ({shared.pairs[0][1]}, ...)"
    else:
        pairs = [a if a == b else f"{b} is {a}" for a, b in shared.pairs[:_SHOWN]]
        more = f" and {shared.count - len(pairs):,} more" if shared.count > len(pairs) else ""
        message = (
            f"{names}: {shared.count:,} of {len(other):,} images of {other.split} are "
            "training images"
            f": {', '.join(pairs)}{more}"
        )
    message += ". A score on them says nothing about new images"
    if data.overlap == "accept":
        return SplitFinding(f"{message} (data.overlap=accept)", pairs=shared.pairs[:_SHOWN])
    settings, fix = _without_copies(data, train, shared), f"Leave them out of {train.split}"
    if not settings:
        fix = "Remove them from one of the splits"
        if (shared.same or data.own_splits) and data.layout != "scenes" and not data.split_by.on:
            of = data.train_split if data.own_splits else POOL
            settings = division(data, of, names_of(train))
            what = "the data set" if shared.same else f"{train.split}, without {other.split}"
            fix = f"Divide {what}" if settings else fix
    anyway = ("to continue anyway", {"data.overlap": "accept"})
    return SplitFinding(f"{message}. {fix}", True, settings, (anyway,), shared.pairs[:_SHOWN])


def without_leak(data: Data, leak: SplitFinding) -> tuple[Data, SplitFinding]:
    """Settings that leave out the images of a leak if its fix is to do so, and then no fault."""
    copies = leak.settings.get("data.leave_out")
    if not copies:
        return data, leak
    settings = {"data.leave_out": tuple(dict.fromkeys((*data.leave_out, *copies)))}
    done = replace(leak, message=f"{leak.message}, as done above", fatal=False, settings=settings)
    return with_settings(data, settings), done


def test_finding(data: Data, train: Dataset) -> list[SplitFinding]:
    """The finding about a test split that takes the place of val, with settings that keep it."""
    if data.split.lower() not in ("test", "testing") or data.layout == "scenes" or data.split_by.on:
        return []
    message = f"{data.split!r} is the validation split: it chooses the best checkpoint"
    settings = division(data, data.train_split, names_of(train)) if data.own_splits else {}
    fix = f". To keep it for the end, divide {data.train_split}" if settings else ""
    return [SplitFinding(message + fix, settings=settings)]

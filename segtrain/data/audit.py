"""Is a split fit to train on, and what is in it: every fault at once, class statistics, proposed class weights."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from segtrain.data import decode
from segtrain.data.datasets import Dataset
from segtrain.data.statistics import AuditReport, cache_folder, class_weights, load, save
from segtrain.errors import DataError

__all__ = ["AuditReport", "audit", "check_before_training", "class_weights"]

VERSION = 1  # of the cached statistics
_SHOWN = 20  # faults in one error; the rest is counted
_SMEARED = 0.15  # see _smear: CamVid's masks stay below 0.02, resized with bilinear interpolation they pass 0.3


def check_before_training(dataset: Dataset, workers: int | None = None) -> AuditReport:
    """The audit without decoding images (header and end of each are looked at), from the cache where nothing changed.

    Raises one DataError with the first 20 faults and the number of the others, or for a split that is all void.
    """
    report = audit(dataset, workers, decode_images=False)
    if report.faults:
        shown = [message for _, message in report.faults[:_SHOWN]]
        rest = len(report.faults) - len(shown)
        where = f"{dataset.name} {dataset.split}"
        lines = [f"{where}: {len(report.faults)} faults" if len(shown) > 1 else f"{where}:", *shown]
        if rest:
            lines.append(f"and {rest} more: `segtrain data check` lists them all")
        raise DataError(" ".join(lines) if len(shown) == 1 else "\n  ".join(lines))
    if not report.pixels.any():
        raise DataError(
            f"{dataset.name} {dataset.split}: every pixel is void: check data.label_map and data.ignore_index"
        )
    return report


def audit(dataset: Dataset, workers: int | None = None, decode_images: bool = True, cache: bool = True) -> AuditReport:
    """Read every image and mask of a split in parallel threads; faults are collected, not raised.

    The statistics of a faultless split are kept under ``$SEGTRAIN_CACHE`` (default ~/.cache/segtrain) and used again as
    long as no file of it changes its name, size or time; ``cache=False`` always reads.
    """
    try:
        key, absent = _key(dataset), False
    except DataError:  # a file is gone: the scan will say which
        key, absent = "", True
    place = cache_folder() / f"audit-{key}.json"
    if cache and not absent:
        kept, note = load(place)
        if kept is not None and (kept.decoded or not decode_images):
            return kept
    else:
        note = ""
    report = _scan(dataset, workers or _cores(), decode_images, "" if absent else dataset.fingerprint())
    notes = [note] if note else []
    if cache and not report.faults and not absent:
        notes += save(place, report)
    return replace(report, notes=tuple(notes))


@dataclass(frozen=True)
class _Found:
    """One sample: pixels of each mask value (int64 [256] or None), size, faults, and what looks odd."""

    counts: np.ndarray | None
    size: tuple[int, int] | None
    faults: tuple[tuple[str, str], ...] = ()
    smeared: bool = False
    turned: bool = False


def _scan(dataset: Dataset, workers: int, decode_images: bool, fingerprint: str) -> AuditReport:
    labels = dataset.labels
    counts, images_with = np.zeros(256, np.int64), np.zeros(256, np.int64)
    sizes: Counter[tuple[int, int]] = Counter()
    faults: list[tuple[str, str]] = []
    odd: dict[str, list[str]] = {"empty": [], "smeared": [], "turned": []}
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for entry, found in zip(
            dataset.entries, pool.map(lambda i: _inspect(dataset, i, decode_images), range(len(dataset)))
        ):
            faults += found.faults
            if found.size:
                sizes[found.size] += 1
            if found.counts is not None:
                counts += found.counts
                images_with += found.counts > 0
                if found.counts[labels.ignore_index] == found.counts.sum():
                    odd["empty"].append(str(entry.mask))
            if found.smeared:
                odd["smeared"].append(str(entry.mask))
            if found.turned:
                odd["turned"].append(entry.image)
    pixels = counts[: labels.num_classes].copy()
    return AuditReport(
        name=dataset.name,
        split=dataset.split,
        fingerprint=fingerprint,
        images=len(dataset),
        classes=labels.names,
        pixels=pixels,
        void=int(counts[labels.ignore_index]),
        images_with=images_with[: labels.num_classes].copy(),
        sizes=dict(sizes.most_common()),
        faults=tuple(faults),
        warnings=tuple(_warnings(labels.names, pixels, odd)),
        decoded=decode_images,
    )


def _inspect(dataset: Dataset, index: int, decode_images: bool) -> _Found:
    entry = dataset.entries[index]
    faults: list[tuple[str, str]] = []
    size: tuple[int, int] | None = dataset.drawn_size if dataset.draw else None
    mask: np.ndarray | None = None
    turned = False
    try:
        if not dataset.draw:
            header = decode.check_whole(entry.image)
            size, turned = (header.height, header.width), header.orientation != 1
        if decode_images and not dataset.draw:
            dataset.read_image(index)
    except DataError as error:
        faults.append((entry.image, str(error)))
    try:
        mask = dataset.read_mask(index)
    except DataError as error:
        faults.append((entry.mask or entry.image, str(error)))
    if mask is None:
        return _Found(None, size, tuple(faults), turned=turned)
    if size and size != mask.shape:
        faults.append((str(entry.mask), dataset.other_size(index, size, mask.shape)))
    counts = np.bincount(mask.ravel(), minlength=256)
    return _Found(counts, size, tuple(faults), _smear(mask, dataset.labels.ignore_index) > _SMEARED, turned)


def _smear(mask: np.ndarray, ignore_index: int) -> float:
    """Share of label borders (along every fourth row) that pass through a single pixel of a value in between.

    A mask that was resized with interpolation has nearly only such borders, a drawn one nearly none. Borders with
    ignored pixels do not count: they hold no order of values. 0 where there are under 50 borders.
    """
    rows = mask[::4]
    left, middle, right = rows[:, :-2], rows[:, 1:-1], rows[:, 2:]
    border = (left != right) & (left != ignore_index) & (right != ignore_index) & (middle != ignore_index)
    total = int(np.count_nonzero(border))
    if total < 50:
        return 0.0
    between = ((left < middle) & (middle < right)) | ((left > middle) & (middle > right))
    return int(np.count_nonzero(between & border)) / total


def _warnings(names: tuple[str, ...], pixels: np.ndarray, odd: dict[str, list[str]]) -> list[str]:
    texts = []
    absent = [name for name, count in zip(names, pixels) if not count]
    if absent:
        texts.append(
            f"no pixel of {', '.join(absent[:10])}" + (f" and {len(absent) - 10} more" if len(absent) > 10 else "")
        )
    for kind, what in (
        ("empty", "masks are all void"),
        (
            "smeared",
            "masks look resized with interpolation (values between two classes along their borders): use nearest",
        ),
        (
            "turned",
            "images carry an EXIF turn, which is not applied: make sure that the masks were drawn on the stored pixels",
        ),
    ):
        files = odd[kind]
        if files:
            texts.append(f"{len(files)} {what}: {', '.join(files[:3])}" + (", ..." if len(files) > 3 else ""))
    return texts


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _key(dataset: Dataset) -> str:
    """Names the content of a split on this machine: its fingerprint and the times of its files. Raises DataError."""
    digest = hashlib.sha256(f"{VERSION} {dataset.name} {dataset.split} {dataset.root} {dataset.fingerprint()}".encode())
    if not dataset.draw:
        for entry in dataset.entries:
            for path in (entry.image, entry.mask):
                digest.update(b"%d " % (os.stat(path).st_mtime_ns if path else 0))
    return digest.hexdigest()[:24]

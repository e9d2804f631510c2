"""Audit of a split: all faulty files at once, class statistics, and proposed class weights."""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from segtrain.base.cores import cores
from segtrain.base.files import cache_folder
from segtrain.base.terminal import counted
from segtrain.bucket.faults import RequestError, ignoring_file_faults
from segtrain.data.audit.images import ImageProperties, image_properties
from segtrain.data.audit.mask_values import MaskValues, raw_and_values, smear
from segtrain.data.audit.statistics import (
    AuditReport,
    class_weights,
    grouped,
    label_warnings,
    load,
    save,
)
from segtrain.data.dataset import Dataset
from segtrain.data.index.entries import files
from segtrain.data.pixels import decode, native
from segtrain.data.pixels.bands import BandImage
from segtrain.data.pixels.jpeg_tiles import Tiles
from segtrain.errors import DataError, some_of

__all__ = ["AuditReport", "audit", "check_before_training", "class_weights"]

# Version of the cached statistics.
VERSION = 15
# Most kinds of faults that one error lists.
_SHOWN = 20
# Samples in flight at once.
_WINDOW = 1024
# Errors of a bucket that may not occur the next time, even if sizes and etags are the same.
_IN_BUCKETS = ("object-changed", "object-missing", "sample-checksum")
# Limit of ``smear``: the masks of CamVid are below 0.02, and above 0.3 after resizing with bilinear
# interpolation.
_SMEARED = 0.15


def check_before_training(
    dataset: Dataset, faults: str = "error", report: AuditReport | None = None
) -> AuditReport:
    """Audit a split, and refuse a faulty one. Returns the report, from the cache if no file
    changed.

    Raises DataError if there are faults, or with ``faults="skip"`` only if every sample is faulty.
    The message lists the kinds of faults. Also raises DataError if every pixel is void. ``report``:
    the result of ``audit``, if it is known.
    """
    report = report or audit(dataset)
    where, split, bad, count = (
        f"{dataset.name} {dataset.split}",
        dataset.split,
        len(report.bad),
        len(report.faults),
    )
    if count and (faults == "error" or bad == len(dataset)):
        lines = [f"{where}: {counted(count, 'fault')} in {bad:,} of {len(dataset):,} samples"]
        lines += (kinds := grouped(report.faults)[:_SHOWN])
        lines += ["`segtrain data check --json` lists them all"] * (len(kinds) < count)
        if bad < len(dataset):
            lines.append(
                "repair or remove the files, or train on the other samples: data.faults=skip"
            )
        file, message = report.faults[0]
        full_message = f"{where}: {message}" if count == 1 else "\n  ".join(lines)
        raise DataError(
            full_message, code="samples-faulty", split=split, faults=count, samples=bad, file=file
        )
    if not report.pixels.any():
        raise _all_void(dataset)
    return report


def _all_void(dataset: Dataset) -> DataError:
    return DataError(
        f"{dataset.name} {dataset.split}: every pixel is void: check data.label_map and "
        "data.ignore_index",
        code="split-void",
        split=dataset.split,
    )


def refuse_void(dataset: Dataset) -> None:
    """Raise DataError if every pixel of an unchecked split is void. Reads masks until one has a
    class.
    """
    if all(
        (dataset.read_mask(index) == dataset.labels.ignore_index).all()
        for index in range(len(dataset))
    ):
        raise _all_void(dataset)


def audit(
    dataset: Dataset,
    workers: int | None = None,
    cache: bool = True,
    copies: str = "",
) -> AuditReport:
    """Read every image and mask of a split in parallel threads. Faults are collected, not raised.

    Raises RequestError if a bucket cannot be read at all, for example in an outage.
    The report with its faults is cached under ``$SEGTRAIN_CACHE`` (default ~/.cache/segtrain) and
    used until a file of the split changes its name, size, or time; ``cache=False`` always reads the
    files. ``copies``: a folder with copies of cached reports.
    """
    stamped = _stamps(dataset)
    fingerprint = dataset.fingerprint(stamped)
    # The cache key: the settings and the fingerprint of the split, and the modification times of
    # its files.
    settings = (
        f"{VERSION} {dataset.name} {dataset.split} {dataset.root} {dataset.reading} {fingerprint}"
    )
    digest = hashlib.sha256(settings.encode() + stamped[:, :, 1].tobytes()).hexdigest()
    name = f"audit-{digest[:24]}.json"
    for folder in (str(cache_folder()), *([copies] if copies else [])) if cache else ():
        cached = load(Path(folder, name))
        if cached is not None:
            return replace(cached, file=name)
    report, transient = _scan(dataset, workers or cores(), fingerprint)
    if not cache or transient:
        return report
    return replace(report, notes=save(cache_folder() / name, report), file=name)


@dataclass
class _Sample:
    """The result of reading one sample.

    faults: pairs (file, error). If there are any, only ``values`` and ``counts`` are used besides
    them. values: the mask values as stored.
    properties: of the image; None for a generated image.
    counts: int64 [C + 1], the number of pixels of each class, and of ignored ones.
    mask_crc: the CRC-32 of the train ids.
    warnings: pairs (key of ``_WARNINGS``, file).
    """

    size: tuple[int, int] = (0, 0)
    faults: list[tuple[str, DataError]] = field(default_factory=list)
    values: MaskValues = field(default_factory=MaskValues)
    properties: ImageProperties | None = None
    counts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    mask_crc: int = 0
    warnings: list[tuple[str, str]] = field(default_factory=list)


def _scan(dataset: Dataset, workers: int, fingerprint: str) -> tuple[AuditReport, bool]:
    """The report, and whether it has read errors that may not occur the next time."""
    labels = dataset.labels
    # Pixels and images of each class, in the faulty samples and in the others.
    statistics = np.zeros((2, 2, labels.num_classes + 1), np.int64)
    # The most pixels of each class in one sample without a fault, and the index of that sample.
    largest = np.zeros((2, labels.num_classes + 1), np.int64)
    sizes, forms = Counter[tuple[int, int]](), Counter[str]()
    faults: list[tuple[str, str]] = []
    bad: list[int] = []
    transient = False
    suspicious: dict[str, list[str]] = {kind: [] for kind in _WARNINGS}
    examples: list[tuple[str, int]] = []
    brightest = (-1, "")
    tiles, values = Tiles.from_source(dataset), MaskValues()
    mask_crc = np.zeros(len(dataset), np.uint32)
    # From a bucket, whole files are read ahead. From a disk, the header is read first, since a
    # wrong file may be huge.
    indices = range(0 if dataset.store.local else len(dataset))
    with ThreadPoolExecutor(max(1, workers)) as pool, dataset.reading_ahead(indices, workers):
        inspect = partial(_inspect, dataset, tiles)
        for index, sample in in_windows(pool, inspect, range(len(dataset))):
            values.add(sample.values)
            statistics[int(not sample.faults)] += np.stack([sample.counts, sample.counts > 0])
            if sample.faults:
                faults += [(file, str(error)) for file, error in sample.faults]
                transient |= any(_of_reading(error) for _, error in sample.faults)
                bad.append(index)
                continue
            sizes[sample.size] += 1
            mask_crc[index] = sample.mask_crc
            if sample.properties:
                forms[sample.properties.form] += 1
                if sample.properties.brightest > brightest[0]:
                    brightest = sample.properties.brightest, dataset.entries[index].image
            larger = sample.counts > largest[0]
            largest[0, larger], largest[1, larger] = sample.counts[larger], index
            for kind, file in sample.warnings:
                if not suspicious[kind]:
                    examples.append((" ".join(_WARNINGS[kind]), index))
                suspicious[kind].append(file)
    counts, images_with = statistics[int(len(bad) < len(dataset))]
    pixels, void = counts[:-1].copy(), int(counts[-1])
    warnings = [
        f"{counted(len(suspicious[kind]), noun)} {text}: {some_of(suspicious[kind], 3)}"
        for kind, (noun, text) in _WARNINGS.items()
        if suspicious[kind]
    ]
    examples += [
        (f"the most pixels of {labels.names[index]}", int(largest[1, index]))
        for index in np.argsort(pixels, kind="stable")
        if largest[0, index]
    ]
    report = AuditReport(
        name=dataset.name,
        split=dataset.split,
        fingerprint=fingerprint,
        images=len(dataset),
        classes=labels.names,
        pixels=pixels,
        void=void,
        images_with=images_with[:-1].copy(),
        sizes=dict(sizes.most_common()),
        faults=tuple(faults),
        bad=np.array(bad, np.int64),
        warnings=(*(label_warnings(labels.names, pixels, void) if counts.any() else ()), *warnings),
        values=values,
        mask_crc=mask_crc,
        forms=dict(forms.most_common()),
        brightest=brightest,
        examples=tuple(examples),
    )
    return report, transient


Result = TypeVar("Result")


def in_windows(
    pool: ThreadPoolExecutor, function: Callable[[int], Result], indices: Sequence[int]
) -> Iterator[tuple[int, Result]]:
    """Each index and its result, in order. The pool's own ``map`` would hold the results of all
    samples at once.
    """
    try:
        for begin in range(0, len(indices), _WINDOW):
            window = indices[begin : begin + _WINDOW]
            yield from zip(window, pool.map(function, window))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _inspect(dataset: Dataset, tiles: Tiles, index: int) -> _Sample:
    entry, labels, sample = dataset.entries[index], dataset.labels, _Sample()
    turned, void = False, None
    try:
        stored = None if dataset.store.local else dataset.stored_image(index)
        header = dataset.header(index) if stored is None else _header(stored, entry.image)
        sample.size, turned = (header.height, header.width), header.orientation != 1
        if dataset.stored:
            stored = dataset.stored_image(index) if stored is None else stored
            if isinstance(stored, BandImage):
                void = stored.read()[1]
            else:
                _check_pixels(dataset, index, stored, sample.size, tiles)
            sample.properties = image_properties(stored, entry.image, header)
    except RequestError:
        raise
    except DataError as error:
        sample.faults.append((entry.image, error))
    file = str(entry.mask)
    try:
        raw, sample.values = raw_and_values(dataset, index)
        mask = dataset.train_ids(raw, index)
    except RequestError:
        raise
    except DataError as error:
        # One request may read both image and mask: its error counts as one fault.
        if str(error) not in (str(other) for _, other in sample.faults):
            sample.faults.append((entry.mask or entry.image, error))
        return sample
    if any(sample.size) and sample.size != mask.shape:
        sample.faults.append((file, dataset.other_size(index, sample.size, mask.shape)))
    if void is not None and void.shape == mask.shape:
        mask = np.where(void, labels.mask_dtype(labels.ignore_index), mask)
    counts = np.bincount(mask.ravel(), minlength=labels.mask_values)
    sample.counts = counts[[*range(labels.num_classes), labels.ignore_index]]
    sample.mask_crc = zlib.crc32(np.ascontiguousarray(mask).data)
    kinds = (
        ("empty", file, sample.counts[-1] == mask.size),
        ("smeared", file, smear(mask, labels.ignore_index) > _SMEARED),
        ("turned", entry.image, turned),
        (
            "transparent",
            entry.image,
            sample.properties is not None and sample.properties.transparent,
        ),
    )
    sample.warnings = [(kind, name) for kind, name, applies in kinds if applies]
    return sample


def _header(stored: Any, name: str) -> decode.Header:
    """The header of an image file in memory. Raises DataError if the file is not complete."""
    return (
        decode.Header("npy", *stored.shape)
        if isinstance(stored, np.ndarray)
        else stored.header
        if isinstance(stored, BandImage)
        else decode.check_whole(stored, name)
    )


def _of_reading(error: DataError) -> bool:
    return error.code in _IN_BUCKETS or (
        isinstance(error.__context__, OSError) and error.__context__.errno is not None
    )


def _check_pixels(
    dataset: Dataset, index: int, stored: Any, size: tuple[int, int], tiles: Tiles
) -> None:
    """Check every byte of an image. The native decoder does this without keeping any pixels. Raises
    DataError.

    The tile positions in a JPEG are cached, so that the first epoch decodes only the part that each
    crop needs.
    """
    name = dataset.entries[index].image
    image = dataset.ready(stored, name)
    positions = native.check(image, 3, name)
    if positions is not None:
        tiles.keep(index, name, image, size, positions)
    elif not isinstance(image, np.ndarray):
        decode.decode_image(image, name, dataset.reading)


_WARNINGS = {
    "empty": ("mask", "without a class (all void)"),
    "smeared": (
        "mask",
        "as if resized with interpolation (values between two classes along borders), use nearest",
    ),
    "turned": (
        "image",
        "with an EXIF rotation, which is not applied: make sure that the masks match the stored "
        "pixels",
    ),
    "transparent": (
        "image",
        "with a transparent alpha channel, which is ignored: read as opaque",
    ),
}


def _stamps(dataset: Dataset) -> np.ndarray:
    """``Dataset.stamps``, with -1 for missing files, which the scan reports."""
    with ignoring_file_faults():
        return dataset.stamps()
    stamped = np.full((len(dataset), 2, 2), -1, np.int64)
    for index, both in enumerate(files(dataset.entries, 0, len(dataset))):
        for part, path in enumerate(both):
            with ignoring_file_faults():
                stamped[index, part] = dataset.store.stat(path) if path else (0, 0)
    return stamped

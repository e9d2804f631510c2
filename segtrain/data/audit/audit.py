"""Audit of a split: all faulty files at once, class statistics, and proposed class weights."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from segtrain.cores import cores
from segtrain.data.audit.image_depth import Look, look_at
from segtrain.data.audit.mask_values import MaskValueCounter, MaskValues, smear, top_of, values_of
from segtrain.data.audit.statistics import AuditReport, class_weights, label_warnings, load, save
from segtrain.data.datasets import Dataset
from segtrain.data.pixels import native
from segtrain.data.pixels.crop import size_of
from segtrain.data.pixels.jpeg_tiles import Tiles
from segtrain.errors import DataError
from segtrain.files import cache_folder

__all__ = ["AuditReport", "audit", "check_before_training", "class_weights"]

# Version of the cached statistics.
VERSION = 9
# Faults in one error. The others are counted.
_SHOWN = 20
# Samples in flight at once.
_WINDOW = 1024
# See smear: the masks of CamVid stay below 0.02, and above 0.3 if they are resized with bilinear interpolation.
_SMEARED = 0.15


def check_before_training(
    dataset: Dataset, workers: int | None = None, faults: str = "error", report: AuditReport | None = None
) -> AuditReport:
    """The audit, from the cache if no file changed. ``report``: the result of ``audit``, if it is known.

    Raises one DataError with the first 20 faults and the path of a list of all if there are more; with ``faults``
    "skip" only if every sample is faulty. Also raises DataError for a split that is all void.
    """
    report = report or audit(dataset, workers)
    where = f"{dataset.name} {dataset.split}"
    messages = [message for _, message in report.faults]
    if messages and (faults == "error" or len(report.bad) == len(dataset)):
        values = {
            "split": dataset.split,
            "faults": len(messages),
            "samples": len(report.bad),
            "file": report.faults[0][0],
        }
        if len(messages) == 1:
            raise DataError(f"{where}: {messages[0]}", code="samples-faulty", **values)
        head = f"{where}: {len(messages):,} faults in {len(report.bad):,} of {len(dataset):,} samples"
        lines = [head, *messages[:_SHOWN]]
        if len(messages) > _SHOWN:
            lines.append(f"and {len(messages) - _SHOWN:,} more: {_listed(dataset, messages)}")
        if len(report.bad) < len(dataset):
            lines.append("repair or remove the files, or train on the other samples: data.faults=skip")
        raise DataError("\n  ".join(lines), code="samples-faulty", **values)
    if not report.pixels.any():
        raise DataError(
            f"{where}: every pixel is void: check data.label_map and data.ignore_index",
            code="split-void",
            split=dataset.split,
        )
    return report


def _listed(dataset: Dataset, messages: list[str]) -> str:
    """Where to find all faults: a file of the cache folder, or the command that prints them."""
    place = cache_folder() / f"faults-{_file_name(dataset.name)}-{_file_name(dataset.split)}.txt"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("\n".join(messages) + "\n", encoding="utf-8", errors="surrogateescape")
    except OSError:
        return "`segtrain data check` lists them all"
    return f"{place} lists them all"


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]", "_", text)


def audit(dataset: Dataset, workers: int | None = None, decode_images: bool = True, cache: bool = True) -> AuditReport:
    """Read every image and mask of a split in parallel threads. Faults are collected, not raised.

    ``decode_images=False`` reads only the header and the end of each image. The report with its faults is cached under
    ``$SEGTRAIN_CACHE`` (default ~/.cache/segtrain) and used until a file of the split changes its name, size, or time;
    ``cache=False`` always reads the files.
    """
    stamped = _stamps(dataset)
    fingerprint = dataset.fingerprint(stamped)
    place = cache_folder() / f"audit-{_key(dataset, stamped, fingerprint)}.json"
    kept, note = load(place) if cache else (None, "")
    if kept is not None and (kept.decoded or not decode_images):
        return kept
    notes = [note] if note else []
    report, transient = _scan(dataset, workers or cores(), decode_images, fingerprint)
    if cache and not transient:
        notes += save(place, report)
    return replace(report, notes=tuple(notes))


@dataclass(frozen=True)
class _Found:
    """One sample.

    counts: pixels of each train id, int64 [256]; None if the mask is faulty. values: the mask values as stored, faults
    included.
    transient: a file could not be read (disk, network, permissions), which may work the next time. mask_crc: CRC-32 of
    the train ids. look: None for a generated or undecoded image.
    """

    counts: np.ndarray | None
    size: tuple[int, int] | None
    faults: tuple[tuple[str, str], ...] = ()
    smeared: bool = False
    turned: bool = False
    values: MaskValues = field(default_factory=MaskValues)
    transient: bool = False
    mask_crc: int = 0
    look: Look | None = None


def _scan(dataset: Dataset, workers: int, decode_images: bool, fingerprint: str) -> tuple[AuditReport, bool]:
    """The report, and whether a file could not be read, which may work the next time."""
    labels = dataset.labels
    counts, images_with = np.zeros(256, np.int64), np.zeros(256, np.int64)
    sizes: Counter[tuple[int, int]] = Counter()
    faults: list[tuple[str, str]] = []
    bad: list[int] = []
    transient = False
    odd: dict[str, list[str]] = {kind: [] for kind in _ODD}
    forms: Counter[str] = Counter()
    brightest = (-1, "")
    tiles, values = Tiles.of(dataset), MaskValueCounter()
    mask_crc = np.zeros(len(dataset), np.uint32)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        # A pool would queue all samples at once.
        for begin in range(0, len(dataset), _WINDOW):
            window = range(begin, min(begin + _WINDOW, len(dataset)))
            for index, found in zip(window, pool.map(lambda i: _inspect(dataset, i, decode_images, tiles), window)):
                values.add(found.values)
                if found.faults or found.counts is None or found.size is None:
                    faults += found.faults
                    bad.append(index)
                    transient |= found.transient
                    continue
                sizes[found.size] += 1
                mask_crc[index] = found.mask_crc
                if found.look:
                    forms[found.look.form] += 1
                    brightest = max(brightest, (found.look.brightest, dataset.entries[index].image))
                    if found.look.transparent:
                        odd["transparent"].append(dataset.entries[index].image)
                counts += found.counts
                images_with += found.counts > 0
                if found.counts[labels.ignore_index] == found.counts.sum():
                    odd["empty"].append(str(dataset.entries[index].mask))
                if found.smeared:
                    odd["smeared"].append(str(dataset.entries[index].mask))
                if found.turned:
                    odd["turned"].append(dataset.entries[index].image)
    pixels = counts[: labels.num_classes].copy()
    report = AuditReport(
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
        bad=np.array(bad, np.int64),
        warnings=(*label_warnings(labels.names, pixels, int(counts[labels.ignore_index])), *_warnings(odd)),
        values=values.done(),
        decoded=decode_images,
        mask_crc=mask_crc,
        forms=dict(forms.most_common()),
        brightest=brightest,
    )
    return report, transient


def _inspect(dataset: Dataset, index: int, decode_images: bool, tiles: Tiles) -> _Found:
    entry = dataset.entries[index]
    faults: list[tuple[str, str]] = []
    size: tuple[int, int] | None = dataset.size(index) if dataset.draw else None
    mask: np.ndarray | None = None
    turned = transient = False
    look: Look | None = None
    try:
        if not dataset.draw:
            header = dataset.header(index)
            size, turned = (header.height, header.width), header.orientation != 1
        if decode_images and not dataset.draw:
            _read_all(dataset, index, tiles)
            look = Look("8-bit RGB")
            if header.format != "npy":
                look = look_at(dataset.stored_image(index), entry.image, header)
    except DataError as error:
        faults.append((entry.image, str(error)))
        transient = _of_reading(error)
    values = MaskValues()
    try:
        raw = dataset.read_raw_mask(index)
        values = _values(dataset, index, raw)
        mask = raw if dataset.draw else dataset.labels.remap(raw, str(entry.mask))
    except DataError as error:
        faults.append((entry.mask or entry.image, str(error)))
        transient |= _of_reading(error)
    if mask is None:
        return _Found(None, size, tuple(faults), turned=turned, values=values, transient=transient)
    if size and size != mask.shape:
        faults.append((str(entry.mask), str(dataset.other_size(index, size, mask.shape))))
    counts = np.bincount(mask.ravel(), minlength=256)
    smeared = smear(mask, dataset.labels.ignore_index) > _SMEARED
    crc = zlib.crc32(np.ascontiguousarray(mask).data)
    return _Found(counts, size, tuple(faults), smeared, turned, values, transient, crc, look)


def _values(dataset: Dataset, index: int, raw: np.ndarray) -> MaskValues:
    if dataset.draw or raw.dtype.kind not in "uib":
        return MaskValues()
    found = {int(value): int(count) for value, count in zip(*values_of(raw))}
    if raw.ndim == 3:
        return MaskValues(colors=found)
    file = str(dataset.entries[index].mask)
    palette = {value: (color, file) for value, color in dataset.palette(index).items() if value in found}
    return MaskValues(found, palette=palette, tops={top_of(found, dataset.labels.ignore_index): 1})


def _of_reading(error: DataError) -> bool:
    return isinstance(error.__context__, OSError) and error.__context__.errno is not None


def _read_all(dataset: Dataset, index: int, tiles: Tiles) -> None:
    """Read every byte of an image, without making pixels if the native decoder can. Raises DataError.

    The positions found in a JPEG are kept, so that the first epoch decodes only the part that each crop needs.
    """
    if native.available():
        try:
            record = dataset.record(index)
        except DataError:  # the mask may be faulty, not the image
            pass
        else:
            found = native.check(record.image, 3, record.image_name)
            if found is not None:
                tiles.keep(index, record.image_name, found, size_of(record))
                return
    dataset.read_image(index)


_ODD = {
    "empty": "masks are all void",
    "smeared": "masks look resized with interpolation (values between two classes along borders): use nearest",
    "turned": "images have an EXIF rotation, which is not applied: make sure that the masks match the stored pixels",
    "transparent": "images have a transparent alpha channel, which is ignored: they are read as opaque",
}


def _warnings(odd: dict[str, list[str]]) -> list[str]:
    texts = []
    for kind, what in _ODD.items():
        files = odd[kind]
        if files:
            texts.append(f"{len(files)} {what}: {', '.join(files[:3])}" + (", ..." if len(files) > 3 else ""))
    return texts


def _stamps(dataset: Dataset) -> np.ndarray:
    """``Dataset.stamps``, with -1 for missing files, which the scan reports."""
    try:
        return dataset.stamps()
    except DataError:
        pass
    found = np.full((len(dataset), 2, 2), -1, np.int64)
    for place, entry in enumerate(dataset.entries):
        for part, path in enumerate((entry.image, entry.mask)):
            with contextlib.suppress(OSError):
                status = os.stat(path) if path else None
                found[place, part] = (status.st_size, status.st_mtime_ns) if status else (0, 0)
    return found


def _key(dataset: Dataset, stamped: np.ndarray, fingerprint: str) -> str:
    """A hash of the content of a split on this machine: its fingerprint and the times of its files."""
    settings = f"{VERSION} {dataset.name} {dataset.split} {dataset.root} {dataset.reading} {fingerprint}"
    digest = hashlib.sha256(settings.encode())
    digest.update(np.ascontiguousarray(stamped[:, :, 1]).data)
    return digest.hexdigest()[:24]

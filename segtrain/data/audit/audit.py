"""Is a split fit to train on, and what is in it: every fault at once, class statistics, proposed class weights."""

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

VERSION = 9  # of the cached statistics
_SHOWN = 20  # faults in one error; the rest is counted
_WINDOW = 1024  # samples that are on their way at once
_SMEARED = 0.15  # see smear: CamVid's masks stay below 0.02, resized with bilinear interpolation they pass 0.3


def check_before_training(
    dataset: Dataset, workers: int | None = None, faults: str = "error", report: AuditReport | None = None
) -> AuditReport:
    """The audit, from the cache where nothing changed; ``report`` is what ``audit`` gave, where it is at hand.

    Raises one DataError with the first 20 faults and the place of a list of all where there are more; with ``faults`` "skip"
    only where every sample is faulty. Raises DataError for a split that is all void as well.
    """
    report = report or audit(dataset, workers)
    where = f"{dataset.name} {dataset.split}"
    if report.faults and (faults == "error" or len(report.bad) == len(dataset)):
        messages = [message for _, message in report.faults]
        if len(messages) == 1:
            raise DataError(f"{where}: {messages[0]}")
        lines = [
            f"{where}: {len(messages):,} faults in {len(report.bad):,} of {len(dataset):,} samples",
            *messages[:_SHOWN],
        ]
        if len(messages) > _SHOWN:
            lines.append(f"and {len(messages) - _SHOWN:,} more: {_listed(dataset, messages)}")
        if len(report.bad) < len(dataset):
            lines.append("repair or remove the files, or train on the others: data.faults=skip")
        raise DataError("\n  ".join(lines))
    if not report.pixels.any():
        raise DataError(f"{where}: every pixel is void: check data.label_map and data.ignore_index")
    return report


def _listed(dataset: Dataset, messages: list[str]) -> str:
    """Where all faults stand: a file of the cache folder, or the command that prints them."""
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
    """Read every image and mask of a split in parallel threads; faults are collected, not raised.

    ``decode_images=False`` looks at the header and the end of each image alone. The report is kept under ``$SEGTRAIN_CACHE``
    (default ~/.cache/segtrain), faults included, and used again as long as no file of the split changes its name, size or
    time; ``cache=False`` always reads.
    """
    stamped = _stamps(dataset)
    fingerprint = dataset.fingerprint(stamped)
    place = cache_folder() / f"audit-{_key(dataset, stamped, fingerprint)}.json"
    notes: list[str] = []
    if cache:
        kept, note = load(place)
        if kept is not None and (kept.decoded or not decode_images):
            return kept
        notes = [note] if note else []
    report, passing = _scan(dataset, workers or cores(), decode_images, fingerprint)
    if cache and not passing:
        notes += save(place, report)
    return replace(report, notes=tuple(notes))


@dataclass(frozen=True)
class _Found:
    """One sample: pixels of each mask value (int64 [256], None where it is faulty), size, faults, and what looks odd."""

    counts: np.ndarray | None
    size: tuple[int, int] | None
    faults: tuple[tuple[str, str], ...] = ()
    smeared: bool = False
    turned: bool = False
    values: MaskValues = field(default_factory=MaskValues)  # as stored, also where some of them are faults
    passing: bool = False  # a fault of reading: of the disk, the network or the rights, which may be gone the next time
    mask_crc: int = 0  # of the train ids
    look: Look | None = None  # None for what is drawn, or was not decoded


def _scan(dataset: Dataset, workers: int, decode_images: bool, fingerprint: str) -> tuple[AuditReport, bool]:
    """And whether a file could not be read, which may be otherwise the next time."""
    labels = dataset.labels
    counts, images_with = np.zeros(256, np.int64), np.zeros(256, np.int64)
    sizes: Counter[tuple[int, int]] = Counter()
    faults: list[tuple[str, str]] = []
    bad: list[int] = []
    passing = False
    odd: dict[str, list[str]] = {"empty": [], "smeared": [], "turned": [], "transparent": []}
    forms: Counter[str] = Counter()
    brightest = (-1, "")
    tiles, values = Tiles.of(dataset), MaskValueCounter()
    mask_crc = np.zeros(len(dataset), np.uint32)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for begin in range(0, len(dataset), _WINDOW):  # a pool takes in all that it is given at once
            window = range(begin, min(begin + _WINDOW, len(dataset)))
            for index, found in zip(window, pool.map(lambda i: _inspect(dataset, i, decode_images, tiles), window)):
                values.add(found.values)
                if found.faults or found.counts is None or found.size is None:
                    faults += found.faults
                    bad.append(index)
                    passing |= found.passing
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
    return report, passing


def _inspect(dataset: Dataset, index: int, decode_images: bool, tiles: Tiles) -> _Found:
    entry = dataset.entries[index]
    faults: list[tuple[str, str]] = []
    size: tuple[int, int] | None = dataset.size(index) if dataset.draw else None
    mask: np.ndarray | None = None
    turned = passing = False
    look: Look | None = None
    try:
        if not dataset.draw:
            header = dataset.header(index)
            size, turned = (header.height, header.width), header.orientation != 1
        if decode_images and not dataset.draw:
            _read_all(dataset, index, tiles)
            look = (
                look_at(dataset.stored_image(index), entry.image, header)
                if header.format != "npy"
                else Look("8-bit RGB")
            )
    except DataError as error:
        faults.append((entry.image, str(error)))
        passing = _of_reading(error)
    values = MaskValues()
    try:
        raw = dataset.read_raw_mask(index)
        values = _values(dataset, index, raw)
        mask = raw if dataset.draw else dataset.labels.remap(raw, str(entry.mask))
    except DataError as error:
        faults.append((entry.mask or entry.image, str(error)))
        passing |= _of_reading(error)
    if mask is None:
        return _Found(None, size, tuple(faults), turned=turned, values=values, passing=passing)
    if size and size != mask.shape:
        faults.append((str(entry.mask), dataset.other_size(index, size, mask.shape)))
    counts = np.bincount(mask.ravel(), minlength=256)
    smeared = smear(mask, dataset.labels.ignore_index) > _SMEARED
    crc = zlib.crc32(np.ascontiguousarray(mask).data)
    return _Found(counts, size, tuple(faults), smeared, turned, values, passing, crc, look)


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
    """Every byte of an image, by the native decoder without making pixels where that can. Raises DataError.

    What is learnt of a JPEG on the way is kept: the first epoch then decodes no more of it than each crop sees.
    """
    if native.available():
        try:
            record = dataset.record(index)
        except DataError:  # of the mask, maybe
            pass
        else:
            found = native.check(record.image, 3, record.image_name)
            if found is not None:
                tiles.keep(index, record.image_name, found, size_of(record))
                return
    dataset.read_image(index)


def _warnings(odd: dict[str, list[str]]) -> list[str]:
    texts = []
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
        ("transparent", "images have a transparent alpha channel, which is left out: they are read as if opaque"),
    ):
        files = odd[kind]
        if files:
            texts.append(f"{len(files)} {what}: {', '.join(files[:3])}" + (", ..." if len(files) > 3 else ""))
    return texts


def _stamps(dataset: Dataset) -> np.ndarray:
    """``Dataset.stamps``, with -1 for files that are gone: the scan says which."""
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
    """Names the content of a split on this machine: its fingerprint and the times of its files."""
    settings = f"{VERSION} {dataset.name} {dataset.split} {dataset.root} {dataset.reading} {fingerprint}"
    digest = hashlib.sha256(settings.encode())
    digest.update(np.ascontiguousarray(stamped[:, :, 1]).data)
    return digest.hexdigest()[:24]

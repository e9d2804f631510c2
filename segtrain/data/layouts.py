"""Where do the layouts of known data sets keep the images and masks of a split?

Each lister turns (settings, split) into entries sorted by name, or raises one DataError that lists every odd file.
"""

from __future__ import annotations

import csv
import difflib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from segtrain import config
from segtrain.errors import DataError

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".gif"))
# Endings that annotation tools add to a mask's name. Taken off only where every mask of the split has the same one.
_MASK_ENDINGS = ("_mask", "_masks", "_label", "_labels", "_gt", "_seg", "_L", "-mask", "-label")


@dataclass(frozen=True)
class Entry:
    """One sample of a split: where its image and mask are, and what else is known (``name``, columns of a list)."""

    image: str
    mask: str | None
    meta: dict[str, str] = field(default_factory=dict, hash=False)


def no_folder(folder: str, what: str) -> str:
    """The message for a folder that is not there: the nearest one that is."""
    place = Path(folder)
    parent = next((p for p in place.parents if p.is_dir()), Path("."))
    missing = place.relative_to(parent).parts[0] if parent in place.parents else place.name
    there = sorted(p.name for p in parent.iterdir() if p.is_dir() and not p.name.startswith("."))
    near = difflib.get_close_matches(missing, there, n=1, cutoff=0.4)
    hint = (
        f"did you mean {str(parent / near[0])!r}?"
        if near
        else f"{str(parent)!r} holds {', '.join(there[:8]) or 'no folder'}"
    )
    return f"{folder}: {what}: no such folder: {hint}"


def files_under(folder: str, what: str, ending: str = "") -> dict[str, str]:
    """Pictures in a folder and its subfolders: key (relative path without suffix and ``ending``) -> path, sorted.

    Raises DataError for a missing folder and for two files of one key.
    """
    if not os.path.isdir(folder):
        raise DataError(no_folder(folder, what))
    found: dict[str, str] = {}
    for place, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        for name in sorted(names):
            stem, suffix = os.path.splitext(name)
            if name.startswith(".") or suffix.lower() not in SUFFIXES or not stem.endswith(ending):
                continue
            path = os.path.join(place, name)
            key = os.path.relpath(os.path.join(place, stem[: len(stem) - len(ending)]), folder).replace(os.sep, "/")
            if key in found:
                raise DataError(f"{path}: {found[key]} has the same name: keep one of them")
            found[key] = path
    return dict(sorted(found.items()))


def pair(images: dict[str, str], masks: dict[str, str], where: str) -> tuple[Entry, ...]:
    """Entries of images and masks of the same key. Raises DataError listing those that stand alone."""
    if not images:
        raise DataError(
            f"{where}: the split holds no image ({', '.join(sorted(SUFFIXES))}): check the folder and data.split"
        )
    ending = next((e for e in _MASK_ENDINGS if masks and all(key.endswith(e) for key in masks)), "")
    if ending and not set(masks) & set(images):
        masks = {key[: -len(ending)]: path for key, path in masks.items()}
    problems = []
    for odd, what in (
        ([path for key, path in images.items() if key not in masks], "without a mask"),
        ([path for key, path in masks.items() if key not in images], "(masks) without an image"),
    ):
        if odd:
            shown = ", ".join(odd[:5]) + (f" and {len(odd) - 5} more" if len(odd) > 5 else "")
            problems.append(f"{len(odd)} file{'s' * (len(odd) > 1)} {what}: {shown}")
    if problems:
        raise DataError(
            f"{where}: {'; '.join(problems)}: an image and its mask have the same name: add or take out files"
        )
    return tuple(Entry(path, masks[key], {"name": key}) for key, path in images.items())


def camvid(data: config.Data, split: str) -> tuple[Entry, ...]:
    """SegNet's form of CamVid: ``val/NAME`` beside ``valannot/NAME``."""
    images, masks = os.path.join(data.root, split), os.path.join(data.root, split + "annot")
    return pair(
        files_under(images, f"images of split {split!r}"), files_under(masks, f"masks of split {split!r}"), images
    )


def cityscapes(data: config.Data, split: str) -> tuple[Entry, ...]:
    """``leftImg8bit/val/CITY/NAME_leftImg8bit.png`` beside ``gtFine/val/CITY/NAME_gtFine_labelIds.png``."""
    images, masks = (os.path.join(data.root, part, split) for part in ("leftImg8bit", "gtFine"))
    return pair(
        files_under(images, f"images of split {split!r}", "_leftImg8bit"),
        files_under(masks, f"masks of split {split!r}", "_gtFine_labelIds"),
        images,
    )


def ade20k(data: config.Data, split: str) -> tuple[Entry, ...]:
    """``images/validation/NAME.jpg`` beside ``annotations/validation/NAME.png``; val and train are short names."""
    folder = {"train": "training", "val": "validation"}.get(split, split)
    images, masks = (os.path.join(data.root, part, folder) for part in ("images", "annotations"))
    return pair(
        files_under(images, f"images of split {split!r}"), files_under(masks, f"masks of split {split!r}"), images
    )


def folders(data: config.Data, split: str) -> tuple[Entry, ...]:
    """Two folders named by data.images and data.masks, in which ``{split}`` stands for the split."""
    images, masks = (os.path.join(data.root, text.replace("{split}", split)) for text in (data.images, data.masks))
    return pair(files_under(images, "data.images"), files_under(masks, "data.masks"), images)


def voc(data: config.Data, split: str) -> tuple[Entry, ...]:
    """``ImageSets/Segmentation/val.txt`` names files of ``JPEGImages`` and ``SegmentationClass`` (``...ClassAug`` for *aug*)."""
    root = next(
        (
            r
            for sub in ("", "VOC2012", "VOCdevkit/VOC2012")
            if os.path.isdir(os.path.join(r := os.path.join(data.root, sub), "JPEGImages"))
        ),
        None,
    )
    if root is None:
        raise DataError(no_folder(os.path.join(data.root, "JPEGImages"), "images of Pascal VOC"))
    listed = os.path.join(root, "ImageSets", "Segmentation", f"{split}.txt")
    names = [line.split()[0] for line in _lines(listed) if line.strip()]
    augmented = os.path.join(root, "SegmentationClassAug")
    masks = augmented if split.endswith("aug") and os.path.isdir(augmented) else os.path.join(root, "SegmentationClass")
    rows = [(os.path.join(root, "JPEGImages", f"{n}.jpg"), os.path.join(masks, f"{n}.png"), {"name": n}) for n in names]
    return _listed(rows, listed)


def listed(data: config.Data, split: str) -> tuple[Entry, ...]:
    """A CSV (or .tsv) with the columns image and mask, or JSONL with those keys; paths are under data.root or absolute.

    Other columns become the entry's metadata. A file for all splits (no ``{split}`` in data.index) has a column ``split``.
    """
    path = os.path.join(data.root, data.index.replace("{split}", split))
    rows = _json_rows(path) if path.endswith((".jsonl", ".ndjson", ".json")) else _csv_rows(path)
    keys = {key for row in rows for key in row}
    missing = [key for key in ("image", "mask") if key not in keys]
    if rows and missing:
        near = difflib.get_close_matches(missing[0], sorted(keys), n=1)
        hint = f"rename {near[0]!r}" if near else f"it has {', '.join(sorted(keys)) or 'none'}"
        raise DataError(f"{path}: no column {missing[0]!r}: {hint}")
    if "{split}" not in data.index and "split" in keys:
        rows = [row for row in rows if row.get("split") == split]
    empty = [str(number) for number, row in enumerate(rows, 1) if not row.get("image") or not row.get("mask")]
    if empty:
        raise DataError(f"{path}: {len(empty)} rows of the split without image or mask: rows {', '.join(empty[:5])}")
    joined = [
        (
            os.path.join(data.root, row["image"]),
            os.path.join(data.root, row["mask"]),
            {"name": os.path.splitext(row["image"])[0], **{k: v for k, v in row.items() if k not in ("image", "mask")}},
        )
        for row in rows
    ]
    return _listed(joined, path)


def _lines(path: str) -> list[str]:
    if not os.path.isfile(path):
        folder = os.path.dirname(path) or "."
        there = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        near = difflib.get_close_matches(os.path.basename(path), there, n=1, cutoff=0.4)
        raise DataError(
            f"{path}: no such list: " + (f"did you mean {near[0]!r}?" if near else "check data.root and the split")
        )
    try:
        return Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}): write it in UTF-8") from None


def _csv_rows(path: str) -> list[dict[str, str]]:
    lines = _lines(path)
    reader = csv.DictReader(lines, delimiter="\t" if path.endswith(".tsv") else ",", skipinitialspace=True)
    return [{(k or "").strip(): v or "" for k, v in row.items() if isinstance(v, str) or v is None} for row in reader]


def _json_rows(path: str) -> list[dict[str, str]]:
    rows = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}: line {number} is no JSON ({error.msg}): write one object a line") from None
        if not isinstance(row, dict):
            raise DataError(f'{path}: line {number} is no object: write {{"image": ..., "mask": ...}}')
        rows.append({str(key): "" if value is None else str(value) for key, value in row.items()})
    return rows


def _listed(rows: Iterable[tuple[str, str, dict[str, str]]], source: str) -> tuple[Entry, ...]:
    """Entries of a list, whose files must exist and whose images must differ."""
    entries = tuple(Entry(*row) for row in rows)
    if not entries:
        raise DataError(f"{source}: the split holds no row: check the list and data.split")
    double = [image for image, count in Counter(entry.image for entry in entries).items() if count > 1]
    absent = [path for entry in entries for path in (entry.image, entry.mask) if path and not os.path.isfile(path)]
    for odd, what in ((double, "are listed twice"), (absent, "do not exist")):
        if odd:
            shown = ", ".join(odd[:5]) + (f" and {len(odd) - 5} more" if len(odd) > 5 else "")
            raise DataError(f"{source}: {len(odd)} files {what}: {shown}: correct the list")
    return entries


LISTERS: dict[str, Callable[[config.Data, str], tuple[Entry, ...]]] = {
    "camvid": camvid,
    "cityscapes": cityscapes,
    "ade20k": ade20k,
    "voc": voc,
    "folders": folders,
    "list": listed,
}

"""Where do the layouts of known data sets keep the images and masks of a split?

Each lister turns (settings, split) into entries sorted by name, or raises one DataError that lists every odd file.
"""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from segtrain import config
from segtrain.data.entries import Column, Entries, Entry, Texts, TextsBuilder, pack_keys
from segtrain.data.listing import Lister, Watch
from segtrain.data.lists import checked, lines, listed
from segtrain.errors import DataError

__all__ = ["LISTERS", "SUFFIXES", "Entry", "no_folder"]

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".gif"))
# Endings that annotation tools add to a mask's name. Taken off only where every mask of the split has the same one.
_MASK_ENDINGS = ("_mask", "_masks", "_label", "_labels", "_gt", "_seg", "_L", "-mask", "-label")


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


def files_under(folder: str, what: str, watch: Watch, ending: str = "") -> Column:
    """Pictures in a folder and its subfolders, sorted by key (relative path without suffix and ``ending``), which is their text.

    Raises DataError for a missing folder, for one that cannot be read, and for two files of one key.
    """
    if not os.path.isdir(folder):
        raise DataError(no_folder(folder, what))
    rows: list[str] = []  # key, "\0", number of what follows the key: sorts as the keys do, and is one object a file
    tails: dict[str, int] = {}
    _walk(folder, "", ending, rows, tails, watch)
    rows.sort()
    texts, codes = pack_keys(rows)
    files = Column(texts, os.path.join(folder, ""), ("", *tails), codes)
    for index in _repeated(files.texts):
        first, second = sorted((files[index] or "", files[index + 1] or ""))
        raise DataError(f"{second}: {first} has the same name: keep one of them")
    return files


def _walk(folder: str, below: str, ending: str, rows: list[str], tails: dict[str, int], watch: Watch) -> None:
    """Adds the pictures of one folder and of those in it, links followed; ``below`` is its own key with a slash."""
    inner = []
    numbers: dict[str, int | None] = {}  # suffix -> number of its tail; None: no picture
    try:
        with os.scandir(watch.look(folder)) as listing:
            for item in listing:
                name = item.name
                if _is_folder(item):
                    inner.append(name)
                    continue
                stem, _, suffix = name.rpartition(".")
                if not stem or name[0] == "." or (ending and not stem.endswith(ending)):
                    continue
                if suffix not in numbers:
                    known = f".{suffix}".lower() in SUFFIXES
                    numbers[suffix] = tails.setdefault(f"{ending}.{suffix}", len(tails) + 1) if known else None
                number = numbers[suffix]
                if number is not None:
                    rows.append(f"{below}{stem[: len(stem) - len(ending)]}\0{chr(number)}")
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror or error}): check its rights") from None
    for name in inner:
        _walk(os.path.join(folder, name), f"{below}{name}/", ending, rows, tails, watch)


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _repeated(texts: Texts) -> Iterator[int]:
    """Places in a sorted row of strings that the next one repeats."""
    return (place for place, (text, after) in enumerate(itertools.pairwise(texts)) if text == after)


def pair(images: Column, masks: Column, where: str) -> Entries:
    """Entries of images and masks of the same key. Raises DataError listing those that stand alone."""
    if not len(images):
        raise DataError(
            f"{where}: the split holds no image ({', '.join(sorted(SUFFIXES))}): check the folder and data.split"
        )
    if not images.texts.same(masks.texts):
        masks = _without_ending(images, masks)
    problems = []
    for odd, what in (
        (_alone(images, masks), "without a mask"),
        (_alone(masks, images), "(masks) without an image"),
    ):
        shown = list(itertools.islice(odd, 5))
        if shown:
            rest = sum(1 for _ in odd)
            listed = ", ".join(shown) + (f" and {rest} more" if rest else "")
            count = len(shown) + rest
            problems.append(f"{count} file{'s' * (count > 1)} {what}: {listed}")
    if problems:
        raise DataError(
            f"{where}: {'; '.join(problems)}: an image and its mask have the same name: add or take out files"
        )
    return Entries(images, Column(images.texts, masks.prefix, masks.tails, masks.codes), {"name": Column(images.texts)})


def _without_ending(images: Column, masks: Column) -> Column:
    """Masks whose keys all have one known ending lose it, if none fits an image as it is."""
    ending = next((e for e in _MASK_ENDINGS if len(masks) and all(str(key).endswith(e) for key in masks.texts)), "")
    if not ending or sum(1 for _ in _alone(masks, images)) < len(masks):
        return masks
    assert masks.codes is not None
    rows = [f"{str(key)[: -len(ending)]}\0{chr(code)}" for key, code in zip(masks.texts, masks.codes.tolist())]
    rows.sort()
    texts, codes = pack_keys(rows)
    return Column(texts, masks.prefix, tuple(ending + tail for tail in masks.tails), codes)


def _alone(these: Column, those: Column) -> Iterator[str]:
    """Files of the first column whose key the second one lacks. Both are sorted, so no table is needed."""
    if these.texts.same(those.texts):
        return
    others = iter(those.texts)
    other = next(others, None)
    for place, key in enumerate(these.texts):
        while other is not None and str(other) < str(key):
            other = next(others, None)
        if other != key:
            yield str(these[place])


def camvid(data: config.Data, split: str, watch: Watch) -> Entries:
    """SegNet's form of CamVid: ``val/NAME`` beside ``valannot/NAME``."""
    return _of_split(os.path.join(data.root, split), os.path.join(data.root, split + "annot"), split, watch)


def cityscapes(data: config.Data, split: str, watch: Watch) -> Entries:
    """``leftImg8bit/val/CITY/NAME_leftImg8bit.png`` beside ``gtFine/val/CITY/NAME_gtFine_labelIds.png``."""
    images, masks = (os.path.join(data.root, part, split) for part in ("leftImg8bit", "gtFine"))
    return _of_split(images, masks, split, watch, ("_leftImg8bit", "_gtFine_labelIds"))


def ade20k(data: config.Data, split: str, watch: Watch) -> Entries:
    """``images/validation/NAME.jpg`` beside ``annotations/validation/NAME.png``; val and train are short names."""
    folder = {"train": "training", "val": "validation"}.get(split, split)
    images, masks = (os.path.join(data.root, part, folder) for part in ("images", "annotations"))
    return _of_split(images, masks, split, watch)


def _of_split(images: str, masks: str, split: str, watch: Watch, endings: tuple[str, str] = ("", "")) -> Entries:
    """Two folders of one split; ``endings``: how the names in each end, before the suffix."""
    return pair(
        files_under(images, f"images of split {split!r}", watch, endings[0]),
        files_under(masks, f"masks of split {split!r}", watch, endings[1]),
        images,
    )


def folders(data: config.Data, split: str, watch: Watch) -> Entries:
    """Two folders named by data.images and data.masks, in which ``{split}`` stands for the split."""
    images, masks = (os.path.join(data.root, text.replace("{split}", split)) for text in (data.images, data.masks))
    return pair(files_under(images, "data.images", watch), files_under(masks, "data.masks", watch), images)


def voc(data: config.Data, split: str, watch: Watch) -> Entries:
    """``ImageSets/Segmentation/val.txt`` names files of ``JPEGImages`` and ``SegmentationClass`` (``...ClassAug`` for *aug*)."""
    root = next(
        (
            r
            for sub in ("", "VOC2012", "VOCdevkit/VOC2012")
            if os.path.isdir(watch.look(os.path.join(r := os.path.join(data.root, sub), "JPEGImages")))
        ),
        None,
    )
    if root is None:
        raise DataError(no_folder(os.path.join(data.root, "JPEGImages"), "images of Pascal VOC"))
    source = os.path.join(root, "ImageSets", "Segmentation", f"{split}.txt")
    names = TextsBuilder()
    for line in lines(watch.look(source)):
        if line.strip():
            names.append(line.split()[0])
    texts = names.done()
    augmented = watch.look(os.path.join(root, "SegmentationClassAug"))
    masks = augmented if split.endswith("aug") and os.path.isdir(augmented) else os.path.join(root, "SegmentationClass")
    image = Column(texts, os.path.join(root, "JPEGImages", ""), (".jpg",))
    mask = Column(texts, os.path.join(masks, ""), (".png",))
    return checked(Entries(image, mask, {"name": Column(texts)}), source, watch)


LISTERS: dict[str, Lister] = {
    "camvid": camvid,
    "cityscapes": cityscapes,
    "ade20k": ade20k,
    "voc": voc,
    "folders": folders,
    "list": listed,
}

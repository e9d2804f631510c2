"""Where do the layouts of known data sets keep the images and masks of a split?

Each lister turns (settings, split) into entries sorted by name, or raises one DataError that lists every odd file.
"""

from __future__ import annotations

import os
import re

import numpy as np

from segtrain import config
from segtrain.config.paste import command
from segtrain.data.index.entries import Column, Entries, Entry, Texts, TextsBuilder
from segtrain.data.index.listing import Lister, Watch
from segtrain.data.index.lists import checked, lines, listed
from segtrain.data.index.names import NAME, SUFFIXES, Pattern
from segtrain.data.index.pairs import by_pattern, files_under, name_patterns, no_folder, pair, pictures
from segtrain.data.index.unpaired import several_masks
from segtrain.errors import DataError

__all__ = ["LISTERS", "SUFFIXES", "Entry", "no_folder"]


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
    texts = (text.replace("{split}", split).removesuffix("/.") for text in (data.images, data.masks))
    images, masks = (data.root if text == "." else os.path.join(data.root, text) for text in texts)
    if data.pair:
        return by_pattern(data.pair, images, masks, watch)
    if os.path.isdir(images) and os.path.realpath(images) == os.path.realpath(masks):
        names = pictures(images, "data.images", watch)
        several = several_masks(names, names, Pattern(NAME), together=True)
        if several:
            raise DataError(f"{images}: {several}")
        raise DataError(
            f"{images}: is both data.images and data.masks: say which files are masks, as in "
            + command({"data.pair": ["{name}.jpg", "{name}_mask.png"]})
        )
    found = files_under(images, "data.images", watch), files_under(masks, "data.masks", watch)
    return pair(*found, images, name_patterns)


def voc(data: config.Data, split: str, watch: Watch) -> Entries:
    """``ImageSets/Segmentation/val.txt`` names files of ``JPEGImages`` and ``SegmentationClass`` (``...ClassAug`` for *aug*)."""
    root = voc_root(data.root, watch)
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
    image = _of_any_ending(texts, os.path.join(root, "JPEGImages", ""), watch)
    mask = Column(texts, os.path.join(masks, ""), (".png",))
    return checked(Entries(image, mask, {"name": Column(texts)}), source, watch)


def voc_root(root: str, watch: Watch) -> str | None:
    """The folder that holds ``JPEGImages``: ``root``, or the newest year of ``VOC2012`` or ``VOCdevkit/VOC2012`` in it."""
    places = [root]
    for above in (root, os.path.join(root, "VOCdevkit")):
        there = sorted(os.listdir(watch.look(above)), reverse=True) if os.path.isdir(above) else []
        places += [os.path.join(above, name) for name in there if re.fullmatch(r"VOC\d{4}", name)]
    return next((place for place in places if os.path.isdir(watch.look(os.path.join(place, "JPEGImages")))), None)


def _of_any_ending(texts: Texts, folder: str, watch: Watch) -> Column:
    """Images by name: JPEGs, or where there is none of the first name, with the endings that the folder holds."""
    if not len(texts) or os.path.exists(f"{folder}{texts[0]}.jpg") or not os.path.isdir(folder):
        return Column(texts, folder, (".jpg",))
    endings = {str(path)[len(folder) :].rpartition(".")[0]: str(path) for path in files_under(folder, "images", watch)}
    tails: dict[str, int] = {".jpg": 0}
    codes = [
        tails.setdefault(os.path.splitext(endings.get(str(text), ".jpg"))[1] or ".jpg", len(tails)) for text in texts
    ]
    return Column(texts, folder, tuple(tails), np.array(codes, np.uint8))


LISTERS: dict[str, Lister] = {
    "camvid": camvid,
    "cityscapes": cityscapes,
    "ade20k": ade20k,
    "voc": voc,
    "folders": folders,
    "list": listed,
}

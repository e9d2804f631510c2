"""The layout of Pascal VOC: lists of names per split, one folder of images and one of masks."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import replace

import numpy as np

from segtrain import config
from segtrain.data.index.check_files import checked
from segtrain.data.index.entries import Column, Entries, column_of
from segtrain.data.index.layout import Detected, Layout
from segtrain.data.index.listing import Watch
from segtrain.data.index.lists import lines
from segtrain.data.index.walk import files_under, no_folder
from segtrain.data.labels import presets
from segtrain.data.labels.space import voc_colored


def _voc(data: config.Data, split: str, watch: Watch) -> Entries:
    """``ImageSets/Segmentation/val.txt`` names files of ``JPEGImages`` and ``SegmentationClass``.

    A split whose name ends with "aug" reads ``SegmentationClassAug`` where that folder exists.
    """
    root = _home(data.root, watch)
    if root is None:
        raise no_folder(os.path.join(data.root, "JPEGImages"), "images of Pascal VOC")
    source = os.path.join(root, "ImageSets", "Segmentation", f"{split}.txt")
    names = column_of(line.split()[0] for line in lines(watch.look(source)) if line.strip())
    augmented = watch.look(os.path.join(root, "SegmentationClassAug"))
    masks = augmented if split.endswith("aug") and os.path.isdir(augmented) else os.path.join(root, "SegmentationClass")
    image = _images(names, os.path.join(root, "JPEGImages", ""), watch)
    mask = replace(names, prefix=os.path.join(masks, ""), tails=(".png",))
    return checked(Entries(image, mask, {"name": names}), source, watch)


def _home(root: str, watch: Watch | None = None) -> str | None:
    """The folder with ``JPEGImages``: ``root``, or else the newest ``VOC<year>`` in it, or in its ``VOCdevkit``."""
    watch = watch or Watch()
    folders = [root]
    for above in (root, os.path.join(root, "VOCdevkit")):
        there = sorted(os.listdir(watch.look(above)), reverse=True) if os.path.isdir(above) else []
        folders += [os.path.join(above, name) for name in there if re.fullmatch(r"VOC\d{4}", name)]
    return next((folder for folder in folders if os.path.isdir(watch.look(os.path.join(folder, "JPEGImages")))), None)


def _images(names: Column, folder: str, watch: Watch) -> Column:
    """Images by name: JPEGs, or with the suffixes of the files in the folder if the first name has no JPEG."""
    if not len(names) or os.path.exists(f"{folder}{names[0]}.jpg") or not os.path.isdir(folder):
        return replace(names, prefix=folder, tails=(".jpg",))
    files = {str(path)[len(folder) :].rpartition(".")[0]: str(path) for path in files_under(folder, "images", watch)}
    suffixes: dict[str, int] = {".jpg": 0}
    endings = (os.path.splitext(files.get(str(name), ".jpg"))[1] or ".jpg" for name in names)
    codes = [suffixes.setdefault(ending, len(suffixes)) for ending in endings]
    return replace(names, prefix=folder, tails=tuple(suffixes), codes=np.array(codes, np.uint8))


def _detect(root: str) -> Detected | None:
    home = _home(root)
    lists = glob.glob(os.path.join(glob.escape(home), "ImageSets", "Segmentation", "*.txt")) if home else []
    return ({}, [os.path.splitext(os.path.basename(path))[0] for path in lists]) if lists else None


VOC = Layout(
    "voc",
    "JPEGImages/ and ImageSets/Segmentation/SPLIT.txt, here, in VOC2012/ (any year) or in VOCdevkit/VOC2012/",
    _detect,
    _voc,
    presets.VOC21,
    from_file=voc_colored,
    other_classes=voc_colored,
    home=_home,
    files=lambda data: ("JPEGImages/{name}.jpg", "SegmentationClass/{name}.png"),
    list_of=lambda data, split, rows: (
        f"ImageSets/Segmentation/{split}.txt",
        [os.path.splitext(os.path.basename(image))[0] for image, _ in rows],
    ),
    # No path is required of an upload: its folders may be in VOCdevkit/VOC2012/ instead.
    needs=lambda data: (),
)

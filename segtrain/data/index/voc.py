"""The layout of Pascal VOC: lists of names per split, one folder of images and one of masks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from segtrain import config
from segtrain.data.index.check_files import checked
from segtrain.data.index.entries import Entries, column_of
from segtrain.data.index.layout import Detected, Layout
from segtrain.data.index.listing import Watch
from segtrain.data.index.lists import lines
from segtrain.data.index.names import folders_in, stem
from segtrain.data.index.skeleton import is_dir
from segtrain.data.index.walk import no_folder, pictures
from segtrain.data.labels import presets
from segtrain.data.labels.space import voc_colored
from segtrain.data.storage import Store


def _voc(data: config.Data, split: str, watch: Watch) -> Entries:
    """``ImageSets/Segmentation/val.txt`` names files of ``JPEGImages`` and ``SegmentationClass``.

    A split whose name ends with "aug" reads ``SegmentationClassAug`` where that folder exists.
    """
    root = _home(data.root, watch.store, watch)
    if root is None:
        raise no_folder(os.path.join(data.root, "JPEGImages"), "images of Pascal VOC", watch.store)
    source = os.path.join(root, "ImageSets", "Segmentation", f"{split}.txt")
    listed = [line.strip() for line in lines(watch.look(source)) if line.strip()]
    augmented = watch.look(os.path.join(root, "SegmentationClassAug"))
    masks = (
        augmented
        if split.endswith("aug") and is_dir(augmented, watch.store)
        else os.path.join(root, "SegmentationClass")
    )
    images = _images(listed, os.path.join(root, "JPEGImages"), watch)
    names = [name for name, _ in images]
    image = column_of(map("".join, images), os.path.join(root, "JPEGImages", ""))
    mask = column_of((f"{name}.png" for name in names), os.path.join(masks, ""))
    return checked(Entries(image, mask, {"name": column_of(names)}), source, watch, of_images=True)


def _home(root: str, store: Store, watch: Watch | None = None) -> str | None:
    """The folder with ``JPEGImages``: ``root``, or else the newest ``VOC<year>`` in it, or in its
    ``VOCdevkit``.
    """
    watch = watch or Watch()
    folders = [root]
    for above in (root, os.path.join(root, "VOCdevkit")):
        there = (
            folders_in(watch.look(above), store)[::-1]
            if is_dir(above, store) or above == root
            else []
        )
        folders += [os.path.join(above, name) for name in there if re.fullmatch(r"VOC\d{4}", name)]
    inside = ((folder, watch.look(os.path.join(folder, "JPEGImages"))) for folder in folders)
    return next((folder for folder, images in inside if is_dir(images, store)), None)


def _images(listed: Iterable[str], folder: str, watch: Watch) -> list[tuple[str, str]]:
    """Name and suffix of the images that the lines of a list name.

    A line is a file name or the name of a .jpg or another image. If there is no such file, this is
    tried with the part of the line before the first blank, because a list of one class has a second
    column.
    """
    paths = set(pictures(folder, "images of Pascal VOC", watch))
    suffix_of = dict(map(os.path.splitext, sorted(paths, key=lambda path: path.endswith(".jpg"))))

    def found(text: str) -> tuple[str, str] | None:
        if text in paths:
            return os.path.splitext(text)
        return (text, suffix_of[text]) if text in suffix_of else None

    return [found(line) or found(line.split()[0]) or (line, ".jpg") for line in listed]


def _detect(root: str, store: Store) -> Detected | None:
    home = _home(root, store)
    lists = store.list(os.path.join(home, "ImageSets", "Segmentation"), ".txt") if home else []
    return ({}, [name.removesuffix(".txt") for name in lists]) if lists else None


VOC = Layout(
    "voc",
    "JPEGImages/ and ImageSets/Segmentation/SPLIT.txt, here, in VOC2012/ (any year) or in "
    "VOCdevkit/VOC2012/",
    _detect,
    _voc,
    labels=presets.VOC21,
    from_file=voc_colored,
    other_classes=voc_colored,
    home=_home,
    files=lambda data: ("JPEGImages/{name}.jpg", "SegmentationClass/{name}.png"),
    list_of=lambda data, split, rows: (
        f"ImageSets/Segmentation/{split}.txt",
        [stem(os.path.basename(image)) for image, _ in rows],
    ),
    # No path is required of an upload: its folders may be in VOCdevkit/VOC2012/ instead.
    needs=lambda data: (),
)

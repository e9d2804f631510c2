"""Layouts of published data sets: CamVid, Cityscapes, and ADE20K have a folder of images and a
folder of masks for each split; Pascal VOC has lists of names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from segtrain.bucket.faults import ignoring_file_faults
from segtrain.config import Data
from segtrain.data.bucket.tree import local_copy
from segtrain.data.index.entries import Entries, column_of
from segtrain.data.index.layout import CLASS_FILES, Detected, Layout
from segtrain.data.index.listing import Watch
from segtrain.data.index.lists import checked, lines
from segtrain.data.index.names import Both, folders_in, stem
from segtrain.data.index.pairs import pair
from segtrain.data.index.walk import images_below, is_dir, no_folder, pictures
from segtrain.data.labels import presets
from segtrain.data.labels.space import LabelSpace, voc_colored
from segtrain.data.pixels import decode
from segtrain.data.storage import Store

# The colors of the classes, in CVAT's export.
_COLORS = "label_colors.txt"


def _of_split(
    images: str, masks: str, split: str, watch: Watch, endings: Both = ("", "")
) -> Entries:
    """Entries of two folders. ``endings``: the ending of file names in each folder, before the
    suffix.
    """
    return pair(
        (images, masks), (f"images of split {split!r}", f"masks of split {split!r}"), watch, endings
    )


def _camvid(data: Data, split: str, watch: Watch) -> Entries:
    """SegNet's form of CamVid: ``val/NAME`` beside ``valannot/NAME``."""
    return _of_split(
        os.path.join(data.root, split), os.path.join(data.root, split + "annot"), split, watch
    )


def _detect_camvid(root: str, store: Store) -> Detected | None:
    there = folders_in(root, store)
    splits = [split for split in there if is_dir(os.path.join(root, split + "annot"), store)]
    if splits and _COLORS in store.list(root, ".txt") and _are_colors(root, splits[0], store):
        # CVAT's export "CamVid": classes of its own, in masks of colors.
        return {"layout": "folders", "images": "{split}", "masks": "{split}annot"}, splits
    return ({}, splits) if splits else None


def _are_colors(root: str, split: str, store: Store) -> bool:
    folder = os.path.join(root, split + "annot")
    masks = sorted(images_below(folder, store))[:1]
    with ignoring_file_faults():
        paths = [os.path.join(folder, mask) for mask in masks]
        return any(decode.read_header(local_copy(path), path).channels == 3 for path in paths)
    return False


def _segnet_ids(own: LabelSpace) -> LabelSpace:
    """Adapt the label space of a classes.txt to SegNet's masks: class ids begin with 0, and void
    follows the last.

    A file with other ids, such as void as 0, is taken at its word.
    """
    if not own.counted:
        return own
    count = own.num_classes
    preset = presets.CAMVID11 if count == presets.CAMVID11.num_classes else own
    raw = {
        **{index: index for index in range(count)},
        count: presets.VOID,
        presets.VOID: presets.VOID,
    }
    return LabelSpace(own.names, preset.palette, presets.VOID, raw, own.colors or preset.colors)


CAMVID = Layout(
    "camvid",
    "SPLIT/ and SPLITannot/",
    _detect_camvid,
    _camvid,
    labels=presets.CAMVID11,
    class_files=CLASS_FILES[:1],
    from_file=_segnet_ids,
    files=lambda data: ("{split}/{name}.png", "{split}annot/{name}.png"),
)


def _cityscapes(data: Data, split: str, watch: Watch) -> Entries:
    """``leftImg8bit/val/CITY/NAME_leftImg8bit.png`` beside
    ``gtFine/val/CITY/NAME_gtFine_labelIds.png``.

    The masks of a split that is not in ``gtFine``, such as train_extra, are read from ``gtCoarse``.
    """
    images, fine, coarse = (
        os.path.join(data.root, part, split) for part in ("leftImg8bit", "gtFine", "gtCoarse")
    )
    if is_dir(watch.look(fine), watch.store) or not is_dir(coarse, watch.store):
        return _of_split(images, fine, split, watch, ("_leftImg8bit", "_gtFine_labelIds"))
    watch.notes.append(f"{fine}: no such folder, so the masks are the coarse ones of {coarse}")
    return _of_split(images, coarse, split, watch, ("_leftImg8bit", "_gtCoarse_labelIds"))


def _detect_cityscapes(root: str, store: Store) -> Detected | None:
    images = os.path.join(root, "leftImg8bit")
    return ({}, folders_in(images, store)) if is_dir(images, store) else None


CITYSCAPES = Layout(
    "cityscapes",
    "leftImg8bit/ and gtFine/",
    _detect_cityscapes,
    _cityscapes,
    labels=presets.CITYSCAPES19,
    class_files=(),
    files=lambda data: (
        "leftImg8bit/{split}/{city}/{name}_leftImg8bit.png",
        "gtFine/{split}/{city}/{name}_gtFine_labelIds.png",
    ),
)

_ADE20K_FOLDERS = {"train": "training", "val": "validation"}


def _ade20k(data: Data, split: str, watch: Watch) -> Entries:
    """``images/validation/NAME.jpg`` beside ``annotations/validation/NAME.png``; the splits are
    train and val.
    """
    folder = _ADE20K_FOLDERS.get(split, split)
    images, masks = (os.path.join(data.root, part, folder) for part in ("images", "annotations"))
    return _of_split(images, masks, split, watch)


def _detect_ade20k(root: str, store: Store) -> Detected | None:
    masks = os.path.join(root, "annotations")
    if not (is_dir(masks, store) and is_dir(os.path.join(root, "images", "training"), store)):
        return None
    names = {folder: split for split, folder in _ADE20K_FOLDERS.items()}
    # Always evaluate on val: the test images have no masks.
    return {"split": "val"}, [names.get(folder, folder) for folder in folders_in(masks, store)]


ADE20K = Layout(
    "ade20k",
    "images/training/ and annotations/",
    _detect_ade20k,
    _ade20k,
    labels=presets.ADE20K150,
    class_files=(),
    files=lambda data: ("images/{split}/{name}.jpg", "annotations/{split}/{name}.png"),
    split_folders=_ADE20K_FOLDERS,
)


def _voc(data: Data, split: str, watch: Watch) -> Entries:
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
    folder = os.path.join(root, "JPEGImages")
    images = [
        (name, suffix)
        for name, suffix in _images(listed, folder, watch)
        if not watch.store.leaves_out(os.path.join(folder, name + suffix))
        and not watch.store.leaves_out(os.path.join(masks, f"{name}.png"))
    ]
    names = [name for name, _ in images]
    image = column_of(map("".join, images), os.path.join(folder, ""))
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

"""Detection of the layout of a folder and of its splits."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from segtrain.base.terminal import counted
from segtrain.config import Data
from segtrain.config.label_values import Names
from segtrain.config.paste import Settings, command
from segtrain.data.annotations.find import of_other_tool
from segtrain.data.bucket import OUTAGE_S, store_of
from segtrain.data.index.detect_files import by_files, given
from segtrain.data.index.detect_pairs import SPLITS, folders_below, is_drawn
from segtrain.data.index.folders import FOLDERS, with_bands
from segtrain.data.index.layout import OTHER_IMAGES, Detected, Layout
from segtrain.data.index.layouts import LAYOUTS, OBJECTS, RIVALS
from segtrain.data.index.lists import ENDINGS, LIST, has_pairs
from segtrain.data.index.names import NAME, folders_in, images_in, in_split, stem, suffix
from segtrain.data.index.split_by import POOL
from segtrain.data.index.walk import images_below, no_folder, several, tree_of, unread
from segtrain.data.shards.foreign import splits_in
from segtrain.data.shards.layout import SHARDS
from segtrain.data.side_by_side import side_of_masks
from segtrain.data.stacks import ARRAYS, has_pages
from segtrain.data.storage import Store
from segtrain.errors import DataError, some_of

_SPLITS = ("train", "val", "test")
# The name of a layout, its settings, and its splits.
Fit = tuple[str, dict[str, Any], list[str]]
# Layouts whose folders hold nothing else.
_PARTED = ("folders", "camvid", "ade20k")
# Formats of pictures that are not read.
_UNREAD = (
    ".heic .heif .avif .jxl .j2k .dcm .nii .gz .nrrd .mha .h5 .hdf5 .nc .exr .dng .cr2 .nef .svs"
)
# Settings for the training and evaluation splits: the default name, and the names to look for if it
# does not exist.
_SPLIT_SETTINGS = (
    ("train_split", "train", ("train", "training")),
    ("split", "val", ("val", "valid", "validation", "dev", "test", "testing")),
)


def detect(
    root: str,
    annotations: str = "",
    leave_out: Sequence[str] = (),
    images: str = "",
    masks: str = "",
    names: Names = NAME,
) -> tuple[Data, tuple[str, ...]]:
    """Settings that fit a folder, and its splits ('train' first). Raises DataError when no layout
    fits.

    annotations, images: the values of data.annotations and data.images to choose if several fit.
    With ``masks``, the layout is that of these folders; names: the patterns of their images.

    The settings include train_split and split if the splits are not named train and val (but VAL,
    for example).
    """
    store = tree_of(root, leave_out)
    there = (
        os.path.isdir(root)
        if store.local
        else any(store.list(root, ending) for ending in ("", "/"))
    )
    if not there:
        raise no_folder(root, "the data folder", store_of(root, OUTAGE_S))
    chosen = _folders(root, store, given(root, store, images, masks), names)
    fits = iter(()) if chosen else _fits(root, store, annotations, images)
    # Shards without an index come last: a tar file may only be the download of the data set beside
    # it.
    best = chosen or next(fits, None)
    if best is None or (best[0] == LIST.name and not _has_pairs(root, best)):
        best = _folders(root, store, by_files(root, store)) or best
    best = best or (SHARDS.name, {}, splits_in(root, store=store))
    if best[0] in {layout.name for layout in (OBJECTS, *RIVALS)}:
        rivals = [best, *(fit for fit in fits if _is_rival(root, fit, best))]
        if len(rivals) > 1:
            ways, found = (_complete(root, *fit) for fit in rivals), [name for name, *_ in rivals]
            what = "has labels of several kinds"
            raise several(root, what, ways, code="layouts-ambiguous", found=found)
    layout, settings, splits = best
    if not chosen and "images" in settings:
        _refuse_unread(root, store, in_split(root, settings["images"], splits[0]))
    stacked = settings.get("images") == "." and _has_stacks(root, store)
    if stacked or (layout == SHARDS.name and not splits):
        raise _unknown(root, store)
    rank = {split: number for number, split in enumerate(_SPLITS)}
    order = sorted(set(splits), key=lambda split: (rank.get(split.lower(), len(rank)), split))
    written = {split.lower(): split for split in order}
    for key, usual, others in _SPLIT_SETTINGS:
        other = next((written[name] for name in others if name in written), None)
        if usual not in order and other:
            settings = {key: other, **settings}
    return Data.model_validate({"root": root, "layout": layout, **settings}), tuple(order)


def _fits(root: str, store: Store, annotations: str, images: str) -> Iterator[Fit]:
    """The layouts that fit a folder, the most likely first."""
    first = ""
    for layout in LAYOUTS.values():
        # A folder of several masks per image has folders of images and of masks, too.
        if not (first == OBJECTS.name and layout is FOLDERS):
            fit = _fit(layout, root, store, annotations)
            if fit:
                _refuse_other_images(root, fit[0], images)
                first = first or layout.name
                yield (layout.name, *fit)


def _folders(root: str, store: Store, found: Detected | None, names: Names = NAME) -> Fit | None:
    return found and (found[0].pop("layout", FOLDERS.name), *with_bands(root, store, found, names))


def _fit(layout: Layout, root: str, store: Store, annotations: str) -> Detected | None:
    """What ``layout.detect`` finds, with these annotations if several could be read."""
    try:
        return layout.detect(root, store)
    except DataError as error:
        if error.code != "annotations-ambiguous" or annotations not in error.values["ways"]:
            raise
        way: Detected = error.values["ways"][annotations]
        return way


def _refuse_other_images(root: str, settings: dict[str, Any], images: str) -> None:
    """Raise DataError if several folders may hold the images, and none is given."""
    others = settings.pop(OTHER_IMAGES, [])
    if images in others:
        settings["images"] = images
    elif others and not images:
        folders = [settings["images"], *others]
        what = f"several folders hold images of the names in {settings['annotations']}"
        ways = ({"data.images": folder} for folder in folders)
        raise several(root, what, ways, code="images-ambiguous", found=folders)


def _refuse_unread(root: str, store: Store, folder: str) -> None:
    """Raise DataError if there are at least half as many pictures of an unread format as images in
    the detected folder.
    """
    endings = Counter(map(suffix, store.walk(root)))
    read = sum(1 for _ in images_below(folder, store))
    for ending in _UNREAD.split():
        if 0 < read <= 2 * (count := endings[ending]):
            message = (
                f"{root}: {counted(count, f'{ending} file')} may be the images or masks, and are "
                f"not read: save them as PNG, TIFF, or .npy; to leave them out: "
                f"{command({'data.leave_out': [f'*{ending}']})}"
            )
            raise DataError(message, code="images-unread", folder=root, found=ending)


def _has_stacks(root: str, store: Store) -> bool:
    """Whether the first images are TIFFs of several images."""
    return store.local and any(has_pages(Path(root, name)) for name in images_in(root, store)[:4])


def _is_rival(root: str, fit: Fit, best: Fit) -> bool:
    """Whether a layout could be meant instead of the best one. Lists of pairs could, if the folder
    has no splits otherwise.
    """
    return fit[0] != LIST.name or (best[2] == [POOL] and _has_pairs(root, fit))


def _has_pairs(root: str, fit: Fit) -> bool:
    """Whether the files of the layout ``list`` name images and masks."""
    _, settings, splits = fit
    return all(has_pairs(in_split(root, settings["index"], split)) for split in splits)


def _complete(root: str, layout: str, settings: dict[str, Any], splits: list[str]) -> Settings:
    """The settings of a layout, which also divide its only split."""
    values = {"layout": layout, **settings}
    if len(splits) == 1:
        data = Data.model_validate({"root": root, **values})
        of = {"of": splits[0]} if data.own_splits else {}
        values["split_by"] = {**of, "val": "20%"}
    return {f"data.{key}": value for key, value in values.items()}


def left_out(data: Data, splits: Sequence[str]) -> list[str]:
    """Folders whose images detected settings leave out, with the number of images in each.

    Images directly above a folder that is read are left to the notes of the listing.
    """
    if data.layout not in _PARTED or "." in (data.images, data.masks):
        return []
    read, counts = LAYOUTS[data.layout].needed(data, splits), Counter[str]()
    for path in images_below(data.root, tree_of(data.root, data.leave_out)):
        folder = path[: path.rfind("/") + 1]
        if not any(folder.startswith(part) or part.startswith(folder) for part in read):
            counts[folder] += 1
    return [
        f"{folder} ({counted(count, 'image file')})"
        for folder, count in sorted(counts.items())
        if not is_drawn(folder)
    ]


def split_files(root: str) -> list[str]:
    """Text files named like splits, which may divide a data set: ``splits/train.txt``, or those
    of Pascal VOC, also of several sets.
    """
    store = tree_of(root)
    return [
        os.path.join(folder, name)
        for folder in ("", *folders_below(root, store))
        if os.path.basename(folder) in ("", "splits", "Segmentation")
        for name in store.list(os.path.join(root, folder), "")
        if stem(name).lower() in SPLITS and name.endswith((*ENDINGS, ".txt"))
    ]


def _unknown(root: str, store: Store) -> DataError:
    """The error for a folder of no known layout: what it holds, what was looked for, and how to
    describe it, or how to cut pictures that hold an image and its mask.
    """
    there = sorted([*(f"{name}/" for name in folders_in(root, store)), *store.list(root, "")])
    # Any folder with a CSV file could have the layout ``list``, so this layout is not tried.
    layouts = [layout for layout in LAYOUTS.values() if layout is not LIST]
    folders = (os.path.join(root, name) for name in folders_in(root, store)[:50])
    inner = next(
        (folder for folder in folders if any(layout.detect(folder, store) for layout in layouts)),
        None,
    )
    hint = f"; did you mean {inner}?" if inner else ""
    arrays = any(path.lower().endswith(ARRAYS) for path in store.walk(root))
    if arrays or _has_stacks(root, store):
        hint += f"; for arrays of images and masks: segtrain data convert {shlex.quote(root)} DST"
    elif store.local and (side := side_of_masks(root)):
        places = shlex.join((root, f"{root.rstrip('/')}-cut"))
        message = (
            f"{root}: the {side} half of each picture seems to be its mask: cut them\n  segtrain "
            f"data convert {places} --side-by-side {side}"
        )
        return DataError(message, code="pictures-of-halves", folder=root, found=side)
    looked = "".join(
        f"\n  {layout.name}: {layout.example}" for layout in LAYOUTS.values() if layout.example
    )
    message = (
        f"{root}: not a known layout{hint}\n  it holds {some_of(there, 12) or 'nothing'}\n  "
        f"{some_of(unread(root)) if store.local else ''}{of_other_tool(root, store)}\n"
        f"looked for:{looked}\n"
        "or name the folders: data.images=FOLDER data.masks=FOLDER; if the names of images and "
        "masks differ, also patterns: data.pair=['{name}_RGB.tif', '{name}_label.tif']\n"
        "or cut pictures that hold an "
        f"image and its mask: segtrain data convert {shlex.quote(root)} DST --side-by-side right"
    )
    return DataError(message, code="layout-unknown", folder=root, found=there, near=inner)

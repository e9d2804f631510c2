"""The type ``Layout``: how images and masks are arranged in a folder, and everything that segtrain
knows about it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segtrain.bucket import is_bucket
from segtrain.config import Data
from segtrain.data.bucket import store_of
from segtrain.data.bucket.tree import first_in_bucket
from segtrain.data.dataset import Dataset
from segtrain.data.file_dataset import FileDataset
from segtrain.data.index.listing import Lister, entries_of
from segtrain.data.index.walk import no_folder
from segtrain.data.labels.class_file import read_classes
from segtrain.data.labels.classes import label_space
from segtrain.data.labels.space import LabelSpace
from segtrain.data.leave_out import without
from segtrain.data.pixels.reading import Reading
from segtrain.data.storage import LOCAL, Store

# Settings besides root and layout, and the names of the splits.
Detected = tuple[dict[str, Any], list[str]]
# Beside the settings: the values of data.images that fit as well as the detected one.
OTHER_IMAGES = "other_images"
Recode = Callable[[LabelSpace], LabelSpace]

# Files of class names beside the data: the user's own, labelme's, CVAT's.
CLASS_FILES = ("classes.txt", "class_names.txt", "labelmap.txt")
# Tables of other tools, read in layouts without classes of their own if the config names no class.
_TABLES = ("class_dict.csv", "label_colors.txt", "labels.txt", "obj_class_to_machine_color.json")
_ROBOFLOW = "_classes.csv"
CLASS_TABLES = (
    *_TABLES,
    *(f"{split}{_ROBOFLOW}" for split in ("", "train/", "valid/", "test/")),
)


def root_store(data: Data) -> Store:
    """The store of ``data.root``. Raises DataError if the folder does not exist."""
    store = store_of(data.root, data.outage_s, data)
    if store.local and not os.path.isdir(data.root):
        raise no_folder(data.root, "data.root", store)
    return without(store, data.root, data.leave_out)


def open_files(layout: Layout, data: Data, split: str) -> Dataset:
    """A split whose images and masks are the files that ``layout.lister`` finds."""
    assert layout.lister is not None, layout.name
    store = root_store(data)
    entries, notes = entries_of(data, split, layout.lister, store)
    labels, root = layout.label_space(data), store.place(data.root)
    return FileDataset(
        os.path.basename(root),
        split,
        labels,
        entries,
        root,
        tuple(notes),
        Reading.from_data(data),
        store,
        data.mask_code,
    )


def labels_beside(layout: Layout, data: Data) -> LabelSpace | None:
    """The label space of a file beside the data, else that of the layout."""
    # If the layout allows any classes, those of the config take precedence over those of a file.
    tables = CLASS_TABLES if layout.labels is None and not data.classes else ()
    names = () if layout.other_classes and data.classes else (*layout.class_files, *tables)
    file = layout.class_file(data.root, names)
    if file is None:
        return layout.labels
    space = read_classes(file)
    return layout.from_file(space) if layout.from_file else space


@dataclass(frozen=True)
class Layout:
    """One value of ``data.layout``. The table of all layouts is ``LAYOUTS`` in layouts.py.

    name: the value of data.layout. example: the files that ``detect`` looks for, shown in the error
    for an unknown folder; "" if no folder can have this layout. detect: returns settings and splits
    for a folder with this layout, and None for any other folder.
    open: opens a split. lister: lists the entries of a split for ``open_files``, sorted by name;
    raises one DataError for all bad files.
    own_labels: the label space that comes with the data; None where the config must name the
    classes.
    labels: label space of the original data set. class_files: names of files beside the data that
    name its classes. from_file: turns the label space of a class file into that of the masks.
    other_classes: does the same for ``data.classes`` if these are more or fewer classes than in
    ``labels``; None: their number must be the same. home: finds the folder under the root that
    holds the images; None: the root holds them. files: paths of one image and its mask under the
    root, with ``{split}``, ``{name}``, and ``{city}``. The rehearsal of a cloud job writes
    generated images there; None: this layout cannot be rehearsed. split_folders: split -> folder,
    for each split whose folder has another name.
    list_of: path and lines of the list of a split, given its (image, mask) paths; None: the layout
    has no lists. needs: paths with ``{split}`` that an uploaded data set must have; None: the
    folders of ``files``.
    """

    name: str
    example: str
    detect: Callable[[str, Store], Detected | None]
    lister: Lister | None = None
    open: Callable[[Layout, Data, str], Dataset] = open_files
    own_labels: Callable[[Layout, Data], LabelSpace | None] = labels_beside
    labels: LabelSpace | None = None
    class_files: tuple[str, ...] = CLASS_FILES
    from_file: Recode | None = None
    other_classes: Recode | None = None
    home: Callable[[str, Store], str | None] | None = None
    files: Callable[[Data], tuple[str, str]] | None = None
    split_folders: Mapping[str, str] = field(default_factory=dict)
    list_of: Callable[[Data, str, Sequence[tuple[str, str]]], tuple[str, list[str]]] | None = None
    needs: Callable[[Data], tuple[str, ...]] | None = None

    def class_file(self, root: str, names: tuple[str, ...]) -> Path | None:
        """The first of these files beside the data."""
        if is_bucket(root):
            return first_in_bucket(root, names)
        home = self.home(root, LOCAL) if self.home else None
        paths = (
            Path(folder, name) for name in names for folder in dict.fromkeys((home or root, root))
        )
        return next((path for path in paths if path.exists()), None)

    def label_space(self, data: Data, stored: LabelSpace | None = None) -> LabelSpace:
        """The label space of a run. ``stored``: the one in the files of the split, in place of
        ``own_labels``.

        Raises DataError, and ConfigError if the classes are not described.
        """
        return label_space(data, stored or self.own_labels(self, data), self.other_classes)

    def needed(self, data: Data, splits: Sequence[str]) -> list[str]:
        """Paths under the root that must exist for these splits, cut before the part that differs
        between samples.
        """
        paths = self.needs(data) if self.needs else self.files(data) if self.files else ()
        named = (
            path.replace("{split}", self.split_folders.get(split, split))
            for split in splits
            for path in paths
        )
        return list(dict.fromkeys(path for path in map(_fixed, named) if path))


def _fixed(path: str) -> str:
    """The part of a path or pattern that is the same for every sample; a folder ends with a
    slash.
    """
    fixed = path.partition("{")[0].partition("*")[0]
    if fixed == path or "/" not in fixed:
        return fixed
    return fixed.rpartition("/")[0] + "/"

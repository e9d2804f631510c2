"""Detection of the layout of a folder and of its splits."""

from __future__ import annotations

import os
from pathlib import Path

from segtrain import config
from segtrain.data.bucket import is_bucket
from segtrain.data.index.layouts import LAYOUTS, SHARDS
from segtrain.data.index.lists import LIST
from segtrain.data.index.names import SUFFIXES, folders_in
from segtrain.data.index.walk import no_folder, unread
from segtrain.data.shards.foreign import splits_in
from segtrain.errors import DataError, some_of

_SHOWN = 5
_SPLITS = ("train", "val", "test")
# Settings of the splits to train and to evaluate on, their default, and the names that are taken instead.
_SPLIT_SETTINGS = (
    ("train_split", "train", ("train", "training")),
    ("split", "val", ("val", "valid", "validation", "dev", "test", "testing")),
)


def detect(root: str) -> tuple[config.Data, tuple[str, ...]]:
    """Settings that fit a folder, and its splits ('train' first). Raises DataError when no layout fits.

    They include train_split and split if the splits have other names than train and val, such as VAL.
    """
    if is_bucket(root):
        raise DataError(
            f"{root}: the layout of a bucket is not detected: set data.layout", code="layout-not-set", folder=root
        )
    if not os.path.isdir(root):
        raise no_folder(root, "the data folder")
    fits = ((layout.name, *found) for layout in LAYOUTS.values() if (found := layout.detect(root)))
    # Shards without an index come last, because the tar file that a data set came in may lie beside it.
    layout, settings, splits = next(fits, None) or (SHARDS.name, {}, splits_in(root))
    if layout == SHARDS.name and not splits:
        raise _unknown(root)
    rank = {split: number for number, split in enumerate(_SPLITS)}
    order = sorted(set(splits), key=lambda split: (rank.get(split.lower(), len(rank)), split))
    written = {split.lower(): split for split in order}
    for key, usual, others in _SPLIT_SETTINGS:
        other = next((written[name] for name in others if name in written), None)
        if usual not in order and other:
            settings = {key: other, **settings}
    return config.Data.model_validate({"root": root, "layout": layout, **settings}), tuple(order)


def _unknown(root: str) -> DataError:
    """The error for a folder of no known layout: what it holds, what was looked for, and how to describe it."""
    there = sorted(path.name + "/" * path.is_dir() for path in Path(root).iterdir() if path.name[0] != ".")
    # Any folder with a table could be a list, so lists do not count.
    layouts = [layout for layout in LAYOUTS.values() if layout is not LIST]
    folders = (os.path.join(root, name) for name in folders_in(root)[:50])
    inner = next((folder for folder in folders if any(layout.detect(folder) for layout in layouts)), None)
    hint = f"; did you mean {inner}?" if inner else ""
    empty = "".join(f"\n  {text}" for text in _without_images(root))
    looked = "".join(f"\n  {layout.name}: {layout.example}" for layout in LAYOUTS.values())
    says = (
        f"{root}: not a known layout{hint}\n  it holds {some_of(there, 12) or 'nothing'}{empty}\nlooked for:{looked}\n"
        "or describe it: data.layout=folders data.images=FOLDER data.masks=FOLDER, and data.pair where the names differ"
    )
    return DataError(says, code="layout-unknown", folder=root, found=there, near=inner)


def _without_images(root: str) -> list[str]:
    """Sentences about the first few folders without an image: they are empty, or hold files that are not read."""
    said: list[str] = []
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if name[0] != ".")
        if inner or any(os.path.splitext(name)[1].lower() in SUFFIXES for name in files):
            continue
        if folder != root and all(name[0] == "." for name in files):
            said.append(f"{folder}/ is empty")
        said += unread(os.path.join(folder, ""))
        if len(said) >= _SHOWN:
            break
    return said[:_SHOWN]

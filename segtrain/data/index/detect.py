"""Which layout is this folder, and which splits does it hold?"""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

from segtrain import config
from segtrain.data.index.detect_pairs import IMAGE_WORDS, MASK_WORDS, pair_of_folders
from segtrain.data.index.layouts import no_folder, voc_root
from segtrain.data.index.listing import Watch
from segtrain.data.index.lists import is_plain
from segtrain.data.index.names import SUFFIXES
from segtrain.data.index.pairs import unread
from segtrain.data.shards.foreign import splits_in
from segtrain.errors import DataError

_SHOWN = 5
_LIST_ENDINGS = (".csv", ".tsv", ".jsonl")
_LOOKED_FOR = (
    ("shards", "SPLIT*.tar"),
    ("cityscapes", "leftImg8bit/ and gtFine/"),
    ("ade20k", "images/training/ and annotations/"),
    ("voc", "JPEGImages/ and ImageSets/Segmentation/SPLIT.txt, here, in VOC2012/ (any year) or in VOCdevkit/VOC2012/"),
    ("camvid", "SPLIT/ and SPLITannot/"),
    (
        "folders",
        f"a folder of images ({', '.join(IMAGE_WORDS[:5])}, ...) and one of masks ({', '.join(MASK_WORDS[:5])}, ...), with or without "
        "splits above or below; or a.jpg and a_mask.png in one folder",
    ),
    ("list", "SPLIT.csv, .tsv or .jsonl; SPLIT.txt with an image and a mask a line"),
)


def detect(root: str) -> tuple[config.Data, tuple[str, ...]]:
    """Settings that fit a folder, and its splits ('train' first). Raises DataError when no layout fits."""
    if not os.path.isdir(root):
        raise DataError(no_folder(root, "the data folder"))
    packed = splits_in(root, indexed=True)
    if packed:
        return _found(root, "shards", packed)
    if os.path.isdir(os.path.join(root, "leftImg8bit")):
        return _found(root, "cityscapes", _folders(root, "leftImg8bit"))
    if os.path.isdir(os.path.join(root, "annotations")) and os.path.isdir(os.path.join(root, "images", "training")):
        names = {"training": "train", "validation": "val"}
        return _found(root, "ade20k", [names.get(split, split) for split in _folders(root, "annotations")])
    voc = voc_root(root, Watch())
    lists = glob.glob(os.path.join(glob.escape(voc), "ImageSets", "Segmentation", "*.txt")) if voc else []
    if lists:
        return _found(root, "voc", [os.path.splitext(os.path.basename(path))[0] for path in lists])
    camvid = [split for split in _folders(root) if os.path.isdir(os.path.join(root, split + "annot"))]
    if camvid:
        return _found(root, "camvid", camvid)
    pair = pair_of_folders(root)
    if pair:
        settings, splits = pair
        return _found(root, "folders", splits, **settings)
    found = _list(root)
    if found:
        return found
    tars = splits_in(root)  # last: the tar that a set came in may lie beside it
    if tars:
        return _found(root, "shards", tars)
    raise DataError(_unknown(root))


def _list(root: str) -> tuple[config.Data, tuple[str, ...]] | None:
    names = sorted(os.listdir(root))
    lists = [name for name in names if name.endswith(_LIST_ENDINGS)]
    lists = lists or [name for name in names if name.endswith(".txt") and _two_columns(os.path.join(root, name))]
    if not lists:
        return None
    ending = os.path.splitext(lists[0])[1]
    same = [os.path.splitext(name)[0] for name in lists if name.endswith(ending)]
    return _found(root, "list", same, index="{split}" + ending)


def _two_columns(path: str) -> bool:
    try:
        return is_plain(path)
    except DataError:  # no UTF-8, or gone
        return False


def _unknown(root: str) -> str:
    """The message for a folder of no known layout: what was looked for, what there is, and what to do."""
    there = sorted(path.name + "/" * path.is_dir() for path in Path(root).iterdir() if path.name[0] != ".")
    holds = ", ".join(there[:12]) + (f" and {len(there) - 12} more" if len(there) > 12 else "")
    inner = next((name for name in _folders(root)[:50] if _fits(os.path.join(root, name))), None)
    hint = f"; did you mean {os.path.join(root, inner)}?" if inner else ""
    empty = "".join(f"\n  {text}" for text in _without_pictures(root))
    looked = "".join(f"\n  {layout}: {what}" for layout, what in _LOOKED_FOR)
    return (
        f"{root}: no known layout{hint}\n  it holds {holds or 'nothing'}{empty}\nlooked for:{looked}\n"
        "or describe it: data.layout=folders data.images=FOLDER data.masks=FOLDER, and data.pair where the names differ"
    )


def _without_pictures(root: str) -> list[str]:
    """What is said of folders without a picture, the first few: that they are empty, or which files lie there."""
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


def _fits(folder: str) -> bool:
    """Whether a folder is of a known layout, looked at without its own folders."""
    return bool(
        splits_in(folder, indexed=True)
        or os.path.isdir(os.path.join(folder, "leftImg8bit"))
        or voc_root(folder, Watch())
        or pair_of_folders(folder)
    )


def _folders(root: str, sub: str = "") -> list[str]:
    place = os.path.join(root, sub)
    return [name for name in sorted(os.listdir(place)) if os.path.isdir(os.path.join(place, name)) and name[0] != "."]


def _found(root: str, layout: str, splits: list[str], **settings: Any) -> tuple[config.Data, tuple[str, ...]]:
    """Settings, the names of the splits to train on and to validate on among them where those are not train and val."""
    known = ("train", "val", "test")
    order = sorted(
        set(splits), key=lambda split: (known.index(split.lower()) if split.lower() in known else len(known), split)
    )
    written = {split.lower(): split for split in order}  # Train, VAL
    for key, usual, others in (
        ("train_split", "train", ("train", "training")),
        ("split", "val", ("val", "valid", "validation", "dev", "test", "testing")),
    ):
        other = next((written[name] for name in others if name in written), None)
        if usual not in order and other and not (key == "split" and layout == "ade20k"):
            settings[key] = other
    return config.Data.model_validate({"root": root, "layout": layout, **settings}), tuple(order)

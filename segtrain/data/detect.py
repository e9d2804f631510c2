"""Which layout is this folder, and which splits does it hold?"""

from __future__ import annotations

import glob
import os

from segtrain import config
from segtrain.data.layouts import SUFFIXES, no_folder
from segtrain.data.shards.foreign import splits_in
from segtrain.errors import DataError

_LIST_ENDINGS = (".csv", ".tsv", ".jsonl")


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
    for sub in ("", "VOC2012", os.path.join("VOCdevkit", "VOC2012")):
        lists = glob.glob(os.path.join(glob.escape(os.path.join(root, sub)), "ImageSets", "Segmentation", "*.txt"))
        if lists:
            return _found(root, "voc", [os.path.splitext(os.path.basename(path))[0] for path in lists])
    camvid = [split for split in _folders(root) if os.path.isdir(os.path.join(root, split + "annot"))]
    if camvid:
        return _found(root, "camvid", camvid)
    for masks in ("masks", "labels", "annotations"):
        found = _pair_of_folders(root, masks)
        if found:
            return found
    lists = [name for name in sorted(os.listdir(root)) if name.endswith(_LIST_ENDINGS)]
    if lists:
        ending = os.path.splitext(lists[0])[1]
        same = [os.path.splitext(name)[0] for name in lists if name.endswith(ending)]
        return _found(root, "list", same, index="{split}" + ending)
    tars = splits_in(root)  # last: the tar that a set came in may lie beside it
    if tars:
        return _found(root, "shards", tars)
    raise DataError(
        f"{root}: no known layout (shards, CamVid, Cityscapes, ADE20K, Pascal VOC, images/ beside masks/, a CSV or JSONL list): "
        "describe it in a config with data.layout=folders, data.images=..., data.masks=..."
    )


def _pair_of_folders(root: str, masks: str) -> tuple[config.Data, tuple[str, ...]] | None:
    """``images/SPLIT`` beside ``masks/SPLIT``, or ``images`` beside ``masks`` without splits."""
    images = os.path.join(root, "images")
    if not (os.path.isdir(images) and os.path.isdir(os.path.join(root, masks))):
        return None
    splits = [split for split in _folders(root, "images") if os.path.isdir(os.path.join(root, masks, split))]
    if splits:
        return _found(root, "folders", splits, masks=masks + "/{split}")
    if any(os.path.splitext(name)[1].lower() in SUFFIXES for name in os.listdir(images)):
        return _found(root, "folders", ["all"], images="images", masks=masks)
    return None


def _folders(root: str, sub: str = "") -> list[str]:
    place = os.path.join(root, sub)
    return [name for name in sorted(os.listdir(place)) if os.path.isdir(os.path.join(place, name)) and name[0] != "."]


def _found(root: str, layout: str, splits: list[str], **settings: str) -> tuple[config.Data, tuple[str, ...]]:
    known = ("train", "val", "test")
    order = sorted(splits, key=lambda split: (known.index(split) if split in known else len(known), split))
    return config.Data.model_validate({"root": root, "layout": layout, **settings}), tuple(order)

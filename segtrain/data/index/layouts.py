"""The table of layouts, in the order in which ``detect`` tries them on a folder."""

from __future__ import annotations

from segtrain.data.index.folders import FOLDERS
from segtrain.data.index.layout import Detected, Layout
from segtrain.data.index.lists import LIST
from segtrain.data.index.split_folders import ADE20K, CAMVID, CITYSCAPES
from segtrain.data.index.voc import VOC
from segtrain.data.storage import Store


def _packed(root: str, store: Store) -> Detected | None:
    """Detect shards with an index. ``detect.detect`` tries tar files without an index last: they may be a download."""
    # Imported here: the shard reader imports data/datasets.py, which imports this table.
    from segtrain.data.shards.foreign import splits_in

    splits = splits_in(root, indexed=True, store=store)
    return ({}, splits) if splits else None


SHARDS = Layout("shards", "SPLIT*.tar", _packed)
LAYOUTS = {layout.name: layout for layout in (SHARDS, CITYSCAPES, ADE20K, VOC, CAMVID, FOLDERS, LIST)}

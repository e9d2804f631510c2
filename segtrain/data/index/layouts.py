"""The table of layouts, in the order in which a folder is compared with them."""

from __future__ import annotations

from segtrain.data.index.folders import FOLDERS
from segtrain.data.index.layout import Detected, Layout
from segtrain.data.index.lists import LIST
from segtrain.data.index.split_folders import ADE20K, CAMVID, CITYSCAPES
from segtrain.data.index.voc import VOC


def _packed(root: str) -> Detected | None:
    """Shards with an index. Those without one come last, see ``detect``: they may only be the download of the set."""
    # The shard reader imports the data set, and the data set imports this table.
    from segtrain.data.shards.foreign import splits_in

    splits = splits_in(root, indexed=True)
    return ({}, splits) if splits else None


SHARDS = Layout("shards", "SPLIT*.tar", _packed)
LAYOUTS = {layout.name: layout for layout in (SHARDS, CITYSCAPES, ADE20K, VOC, CAMVID, FOLDERS, LIST)}

"""The layout ``shards``: tar files, with the index that segtrain packed or that is made of shards
of other tools.
"""

from __future__ import annotations

import os

from segtrain import config
from segtrain.data.dataset import Dataset
from segtrain.data.index.layout import Detected, Layout, root_store
from segtrain.data.pixels.reading import Reading
from segtrain.data.shards import index as shard_index
from segtrain.data.shards.foreign import index_of, splits_in
from segtrain.data.shards.index import ShardEntries
from segtrain.data.shards.reader import ShardDataset
from segtrain.data.storage import Store
from segtrain.errors import file_error


def _open_shards(layout: Layout, data: config.Data, split: str) -> Dataset:
    """A split in shards. For shards that other tools wrote, make an index or take it from the
    cache.
    """
    store = root_store(data)
    root = store.place(data.root)
    index_file = split + shard_index.ENDING
    if index_file in store.list(root, shard_index.ENDING):
        table = shard_index.load(os.path.join(root, index_file), store)
    else:
        table = index_of(root, split, store)
    for shard in table.description.shards:
        file = f"{root}/{shard.name}"
        size = store.stat(file).size
        if size != shard.size:
            raise file_error(
                file,
                f"has {size:,} bytes, but its index {table.path} says {shard.size:,}: fetch "
                "it or pack it again",
                code="shard-size-differs",
                found=size,
                expected=shard.size,
            )
    # With damaged rows, a run would train on other samples than those that were packed.
    damage = shard_index.damage(table)
    if damage is not None:
        raise damage
    count = min(len(table), data.limit or len(table))
    if not count:
        raise file_error(table.path, "the split has no samples: pack it again", code="split-empty")
    labels = layout.label_space(data, table.description.labels)
    entries, reading = ShardEntries(table, root, count), Reading.from_data(data)
    return ShardDataset(
        os.path.basename(root), split, labels, entries, root, reading=reading, store=store
    )


def _detect(root: str, store: Store) -> Detected | None:
    """Detect shards with an index. ``detect.detect`` tries tar files without an index last: they
    may be a download.
    """
    splits = splits_in(root, indexed=True, store=store)
    return ({}, splits) if splits else None


SHARDS = Layout("shards", "SPLIT*.tar", _detect, open=_open_shards)

"""Selects the store that reads a data set: the local disk or a bucket."""

from __future__ import annotations

from segtrain.bucket import is_bucket, split_url
from segtrain.config import Data
from segtrain.data.storage import LOCAL, Store

# Seconds without an answer after which reading names, lists, and class files fails. They are read
# while a run starts, when an error loses no work.
OUTAGE_S = 60.0


def store_of(place: str, outage_s: float, data: Data | None = None) -> Store:
    """The store of a folder or file, with the disk cache that ``data`` describes.

    ``outage_s``: see BucketStore. Raises MissingExtra, ConfigError.
    """
    if not is_bucket(place):
        return LOCAL
    from segtrain.data.bucket.store import BucketStore

    cache = None
    if data is not None and data.cache == "disk":
        from segtrain.data.bucket.disk_cache import cache_of

        cache = cache_of(data)
    return BucketStore(split_url(place)[0], outage_s, cache=cache)

"""Data sets in buckets: which places are buckets, and the store that reads one."""

from __future__ import annotations

from segtrain.data.storage import LOCAL, Store
from segtrain.errors import ConfigError

SCHEMES = ("s3://", "gs://", "az://", "https://", "http://")


def is_bucket(place: str) -> bool:
    """Whether a path or URL names a place in a bucket rather than on the disk."""
    return place.startswith(SCHEMES)


def store_of(place: str, outage_s: float) -> Store:
    """The store of a folder or file. ``outage_s``: see BucketStore. Raises MissingExtra, ConfigError."""
    if not is_bucket(place):
        return LOCAL
    from segtrain.data.bucket.store import BucketStore

    scheme, _, rest = place.partition("://")
    bucket = rest.partition("/")[0]
    if not bucket:
        says = f"data.root={place} names no bucket: write {scheme}://BUCKET/FOLDER"
        raise ConfigError(says, code="bucket-name-missing", key="data.root", found=place)
    return BucketStore(f"{scheme}://{bucket}", outage_s)

"""Data sets in buckets: which places are buckets, and the store that reads one."""

from __future__ import annotations

from segtrain.data.storage import LOCAL, Store

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
    return BucketStore(f"{scheme}://{rest.partition('/')[0]}", outage_s)

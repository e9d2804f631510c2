"""Stores of a bucket on another host: it expects the etags that this host knows, and uses its own
credentials.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from segtrain.bucket import CLOUDS
from segtrain.data.bucket.disk_cache import DiskCache
from segtrain.data.bucket.store import BucketStore

# Where buckets are, and whether they are public. Secrets do not travel.
VARIABLES = [
    variable
    for cloud in CLOUDS.values()
    for variables in cloud.variables.values()
    for variable in variables
]


def reduce_for_host(store: BucketStore) -> tuple[Any, ...]:
    """How to pickle a store for another host, as ``__reduce__`` returns it."""
    settings = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    return rebuild, (store.base, store.outage_s, store.objects.table(), store.cache, settings)


def rebuild(
    base: str,
    outage_s: float,
    table: np.ndarray,
    cache: DiskCache | None,
    settings: Mapping[str, str],
) -> BucketStore:
    """The store on the other host. ``settings``: environment variables, where this host has no
    others.
    """
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    store = BucketStore(base, outage_s, cache=cache)
    store.objects.extend([table])
    return store

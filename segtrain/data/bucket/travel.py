"""Stores of a bucket on another host: it expects the etags that this host knows, and uses its own
credentials.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from segtrain.data.bucket.disk_cache import DiskCache
from segtrain.data.bucket.store import BucketStore

# Where a bucket is, and whether it is public. Secrets do not travel.
SETTINGS = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_SKIP_SIGNATURE",
    "STORAGE_EMULATOR_HOST",
    "GOOGLE_SKIP_SIGNATURE",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_SKIP_SIGNATURE",
)


def reduce_for_host(store: BucketStore) -> tuple[Any, ...]:
    """How to pickle a store for another host, as ``__reduce__`` returns it."""
    settings = {name: os.environ[name] for name in SETTINGS if name in os.environ}
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

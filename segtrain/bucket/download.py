"""Downloads objects of any size to local files, in parts that are read in parallel."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from segtrain.bucket.client import PART, Client
from segtrain.errors import DataError

_PARALLEL = 8
_TRIES = 3  # attempts to read an object that is replaced meanwhile


def download(client: Client, key: str, path: Path, size: int, outage_s: float) -> None:
    """Write one complete version of an object of about ``size`` bytes to a file. Raises DataError
    and OSError.
    """
    if size <= PART:
        path.write_bytes(client.get(key, None, "", outage_s).content)
        return
    for left in reversed(range(_TRIES)):
        try:
            return _in_parts(client, key, path, outage_s)
        except DataError as error:
            if error.code not in ("object-changed", "file-ends-early") or not left:
                raise


def _in_parts(client: Client, key: str, path: Path, outage_s: float) -> None:
    _, size, etag, _ = client.head(key, outage_s)

    def fetch(begin: int) -> None:
        end = min(begin + PART, size)
        left = memoryview(client.get(key, (begin, end), etag, outage_s).content)
        while left:  # a full disk may take only some of the bytes at first
            left = left[os.pwrite(file, left, end - len(left)) :]

    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    pool = ThreadPoolExecutor(_PARALLEL)
    try:
        list(pool.map(fetch, range(0, size, PART)))
    finally:
        pool.shutdown(cancel_futures=True)
        os.close(file)

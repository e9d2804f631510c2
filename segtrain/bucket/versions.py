"""Conditional writes: an object is written only if nobody else has written it since it was read.

This is not guaranteed by stores that ignore the condition (``If-None-Match``, ``If-Match``; Google:
generations).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from segtrain.bucket.client import Client
from segtrain.errors import DataError

Version = Mapping[str, str]


class Versioned(NamedTuple):
    """The content of an object, and its version, which a later write passes as the version to
    replace.
    """

    content: bytes
    version: Version


def read_version(client: Client, key: str, outage_s: float) -> Versioned | None:
    """Read an object with its version. Returns None if the object does not exist. Raises
    DataError.
    """
    import obstore

    def attempt() -> Versioned:
        result = obstore.get(client.store, key)
        return Versioned(bytes(result.bytes()), _version(result.meta))

    try:
        return client._repeated(key, attempt, outage_s)
    except DataError as error:
        if error.code == "object-missing":
            return None
        raise


def write_version(
    client: Client, key: str, content: bytes, replaced: Version | None, outage_s: float
) -> Version | None:
    """Replace the version ``replaced``, or create the object if ``replaced`` is None.

    Returns the new version, or None if the object has another version by now. This call itself may
    have written that version, if the answer to its first request was lost. To find out, compare the
    contents. Raises DataError, also if there is no such bucket.
    """
    import obstore

    mode: Any = "create" if replaced is None else dict(replaced)

    def attempt() -> Version | None:
        try:
            return _version(obstore.put(client.store, key, content, mode=mode))
        except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
            return None
        except FileNotFoundError:
            # To create an object, only the bucket must exist, so the bucket is missing.
            if replaced is None:
                raise
            return None

    return client._repeated(key, attempt, outage_s)


def _version(meta: Any) -> Version:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name)}

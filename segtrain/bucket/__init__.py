"""Buckets of S3, Google Cloud Storage, and Azure: how to recognize their URLs, and requests with
retries.
"""

from __future__ import annotations

import posixpath
import re

from segtrain.errors import ConfigError

# Buckets that can be listed and written, and all places that are read by requests.
CLOUDS = ("s3://", "gs://", "az://")
SCHEMES = (*CLOUDS, "https://", "http://")


def is_bucket(place: str) -> bool:
    """Whether a path or URL names a place in a bucket rather than on the disk.

    Raises ConfigError for a misspelled URL such as ``s3:/bucket``, which would become the name of a
    local folder.
    """
    if place.startswith(SCHEMES):
        return True
    if wrong := re.match(r"(s3|gs|az|https?):/+", place, re.IGNORECASE):
        meant = f"{wrong[1].lower()}://{place[wrong.end() :]}"
        raise ConfigError(
            f"{place} is not a URL of a bucket: write {meant}",
            code="bucket-url-misspelled",
            found=place,
        )
    return False


def split_url(url: str) -> tuple[str, str]:
    """``gs://BUCKET/A/B/`` -> (``gs://BUCKET``, ``A/B``)."""
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    return f"{scheme}://{bucket}", prefix.strip("/")


def key_in(base: str, path: str) -> str:
    """The key of ``path``, a file or folder in the bucket ``base``. The path may hold ``./`` and
    ``../``.
    """
    key = path.removeprefix(base).strip("/")
    return posixpath.normpath(key) if "./" in key else key

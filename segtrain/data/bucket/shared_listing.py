"""Shares listings of buckets among the processes of a host: the first process lists, the others
read its result.
"""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from segtrain.base.files import alone, cache_folder, digest_of, writing
from segtrain.bucket.client import etag_of

_PREFIX = "listing-pages-"
# Seconds after which a shared listing is removed. A process that starts later than that lists
# again.
_OLD = 3600.0
_start = ""


@contextlib.contextmanager
def listed_once(start: str) -> Iterator[None]:
    """Share listings with all processes of this host that have the same ``start``; if it is empty,
    share none.

    ``start``: an id of one launch of a job, so that no listing is older than the launch.
    """
    global _start
    before, _start = _start, start
    if start:
        _tidy()
    try:
        yield
    finally:
        _start = before


def pages(place: str, fetch: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """The JSON values that ``fetch`` yields for a listing of ``place``. Only the first process to
    ask for it fetches.

    If the cache cannot be written, each process fetches, with a warning. Raises what ``fetch``
    raises.
    """
    name = digest_of(f"{_start}\n{place}", 24)
    file, lines = cache_folder() / f"{_PREFIX}{name}.jsonl", None
    with contextlib.ExitStack() as stack:
        if _start:
            try:
                with alone(file):
                    if not file.exists():
                        with writing(file) as stream:
                            stream.writelines(json.dumps(page).encode() + b"\n" for page in fetch())
                    lines = stack.enter_context(open(file, "rb"))
            except OSError as error:
                message = (
                    f"{file}: cannot be written ({error.strerror or error}): each process "
                    f"lists {place} itself"
                )
                warnings.warn(f"{message}: set SEGTRAIN_CACHE to a writable folder", stacklevel=2)
        yield from fetch() if lines is None else map(json.loads, lines)


def _tidy() -> None:
    """Remove old listings of other launches, and the unfinished files of killed processes."""
    for file in cache_folder().glob(f"*{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < time.time() - _OLD:
                file.unlink()


def rows(objects: Iterable[Any]) -> Sequence[tuple[str, int, str]]:
    """(key, size in bytes, etag) of each object that obstore describes as a dictionary."""
    return [(item["path"], item["size"], etag_of(item)) for item in objects]

"""Listings of a bucket: one page after a given key, or a large folder in parallel."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

from segtrain.bucket import CLOUDS, scheme_of
from segtrain.bucket.client import PAGE, Client
from segtrain.errors import DataError

# Pages that are fetched at the same time.
_PARALLEL = 16
# Alphabets (sorted) of the counters in names such as frame_000123, and the largest number of places
# in a name at which a range of names is split.
_ALPHABETS = (
    digits,
    digits + "abcdef",
    digits + "ABCDEF",
    digits + ascii_lowercase,
    digits + ascii_uppercase + ascii_lowercase,
)
_PLACES = 8


def page(client: Client, prefix: str, after: str, outage_s: float) -> list[Any]:
    """The first objects below a folder whose keys come after ``after``, at most PAGE, in the order
    of keys.
    """
    import obstore

    def attempt() -> list[Any]:
        stream = obstore.list(client.store, prefix or None, offset=after or None, chunk_size=PAGE)
        return list(next(iter(stream), ()))

    return client._repeated(prefix, attempt, outage_s)


def side_by_side(client: Client, prefix: str, outage_s: float) -> Iterator[list[Any]]:
    """Pages of all objects below a folder, in any order; at most 16 of them are in memory.

    While threads are free, the remaining range of keys is split, so that a single large folder is
    also listed in parallel. A store that does not list in the order of keys is listed page by page.
    Raises DataError.
    """
    cloud = CLOUDS.get(scheme_of(client.base))
    first = page(client, prefix, "", outage_s) if cloud and cloud.sorted_listing else []
    keys, half = _keys(first), len(first) // 2
    if len(first) < PAGE or keys != sorted(keys):
        yield from [first] if 0 < len(first) < PAGE else client.below(prefix, outage_s)
        return
    # Some stores do not start right after the requested key.
    if _keys(page(client, prefix, keys[half], outage_s))[: PAGE - half - 1] != keys[half + 1 :]:
        yield from client.below(prefix, outage_s)
        return
    # A range (after, last) holds the keys that come after ``after``, up to and including ``last``
    # ("": to the end).
    waiting, running = deque(_divided(keys, "")), dict[Future[list[Any]], tuple[str, str]]()
    with ThreadPoolExecutor(_PARALLEL) as pool:
        try:
            yield first
            while waiting or running:
                while waiting and len(running) < _PARALLEL:
                    span = waiting.popleft()
                    running[pool.submit(page, client, prefix, span[0], outage_s)] = span
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    after, last = running.pop(future)
                    objects = future.result()
                    keys = _keys(objects)
                    if [after, *keys] != sorted({after, *keys}):
                        message = (
                            f"{client.base}/{prefix}: the listing is not in the order of "
                            "keys: start again"
                        )
                        raise DataError(message, code="listing-disordered", folder=prefix)
                    inside = [item for item in objects if not last or item["path"] <= last]
                    if len(inside) == PAGE and (not last or keys[-1] < last):
                        busy = len(waiting) + len(running) >= _PARALLEL
                        waiting.extend([(keys[-1], last)] if busy else _divided(keys, last))
                    yield inside
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _keys(objects: list[Any]) -> list[str]:
    return [item["path"] for item in objects]


def _divided(keys: list[str], last: str) -> list[tuple[str, str]]:
    """Split the range that follows a page of keys, up to ``last`` ("": to the end). Returns ranges
    (after, last).

    The names are assumed to hold a counter. After frame_000999, the range is split at frame_01,
    frame_02, ..., frame_1, frame_2, ...
    """
    end = keys[-1]
    # The first key is a prefix of the last one if it is the marker object of a folder.
    place = next(
        (at for at, (start, stop) in enumerate(zip(keys[0], end)) if start != stop), len(keys[0])
    )
    seen = {key[place] for key in keys if len(key) > place}
    alphabet = next((letters for letters in _ALPHABETS if seen <= {*letters}), sorted(seen))
    # The digits before the first difference are constant within a page. The nearest one changes
    # about once per page: ranges split there would be too small.
    run = [*itertools.takewhile(lambda at: end[at] in alphabet, range(place - 1, -1, -1))]
    places = (run[1:] or run or [place])[:_PLACES]
    cuts = [end[:at] + letter for at in places for letter in alphabet if letter > end[at]]
    bounds = [end, *(cut for cut in cuts if not last or cut < last), last]
    return list(itertools.pairwise(bounds))

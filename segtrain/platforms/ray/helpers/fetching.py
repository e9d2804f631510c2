"""The bytes of ordered samples, which a helper fetches from a bucket before it makes these
samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from segtrain.data.stages import READ
from segtrain.data.storage import Range

AHEAD = 8  # samples of an order whose bytes are fetched or held


class Fetching:
    """Fetches for ``tasks`` of the data set ``source``, in order. On a local disk it does
    nothing.
    """

    def __init__(self, source: Any, tasks: Sequence[Any], threads: ThreadPoolExecutor) -> None:
        self._source: Any = source
        self._store: Any = source.store
        self._threads, self._coming = threads, deque[Future[dict[Range, Any]]]()
        self._left = deque([] if self._store.local else tasks)
        for _ in range(AHEAD):
            self._begin()

    def _begin(self) -> None:
        if self._left:
            self._coming.append(self._threads.submit(self._fetch, self._left.popleft().index))

    def _fetch(self, index: int) -> dict[Range, Any]:
        return {wanted: self._store.part(wanted) for wanted in self._source.ranges(index)}

    def next(self) -> None:
        """Give the store the bytes of the next sample. Raises what the store raised."""
        if self._coming:
            self._begin()
            with READ:
                self._store.prefetched = self._coming.popleft().result()

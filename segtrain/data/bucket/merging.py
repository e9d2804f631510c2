"""Merges byte ranges of a sample that lie close together in a file into one request."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from segtrain.data.storage import Range

# Ranges with at most this many bytes between them become one request: these bytes cost less than
# another request.
GAP = 16 << 10


class MergedRequest:
    """A request for ranges that are fetched together. ``left``: the number of ranges that are still
    needed.

    ``local``: it is not sent, because the workers read the ranges from the local disk. ``sent``:
    when it was sent (seconds of perf_counter). ``late``: workers fetch its ranges themselves unless
    its answer is there.
    """

    def __init__(self, span: Range) -> None:
        self.span, self.left, self.bytes = span, 0, max(0, span.length)
        self.local = self.late = False
        self.sent = 0.0
        self.content: Any = None
        self.error: Exception | None = None


class Part:
    """A range that is fetched: its offset ``at`` in its request, and the positions of the samples
    that need it.
    """

    def __init__(self, request: MergedRequest, at: int) -> None:
        self.request, self.at = request, at
        self.places: deque[int] = deque()


def merged(ranges: Sequence[Range]) -> list[tuple[MergedRequest, list[tuple[Range, int]]]]:
    """Requests for ``ranges``, each with its ranges and their offsets in the request. Near ranges
    share a request.
    """
    requests: list[tuple[MergedRequest, list[tuple[Range, int]]]] = []
    for wanted in sorted(dict.fromkeys(ranges)):
        if requests and wanted.length >= 0:
            request, parts = requests[-1]
            path, begin, length, checks, _ = request.span
            if path == wanted.path and length >= 0 and wanted.offset - (begin + length) <= GAP:
                end = max(begin + length, wanted.offset + wanted.length)
                more = (
                    check._replace(offset=wanted.offset - begin + check.offset)
                    for check in wanted.checks
                )
                request.span = Range(path, begin, end - begin, (*checks, *more))
                request.bytes = end - begin
                parts.append((wanted, wanted.offset - begin))
                continue
        requests.append((MergedRequest(wanted), [(wanted, 0)]))
    return requests

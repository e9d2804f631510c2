"""Tags of a TIFF, read without decoding: decoders drop images for which they have no mode."""

from __future__ import annotations

import struct
from typing import BinaryIO


def tiff_tags(stream: BinaryIO) -> tuple[dict[int, int], int]:
    """First values of the numbers in the first directory (TIFF 6.0, section 2; BigTIFF), and the number of images.

    Reduced copies of an image do not count. ({}, 1) for a file that is not a TIFF, or is damaged.
    """
    head = stream.read(16)
    order = {b"II": "<", b"MM": ">"}.get(head[:2], "")
    version = struct.unpack(order + "H", head[2:4])[0] if order and len(head) >= 4 else 0
    if version not in (42, 43):
        return {}, 1
    # Formats of a directory's length and of an offset, bytes of an entry, and the place of the first offset.
    many, at, step, begin = ("Q", "Q", 20, 8) if version == 43 else ("H", "I", 12, 4)
    tags: dict[int, int] = {}
    places: dict[int, bool] = {}  # of directories, and whether each is an image of its own
    try:
        (place,) = struct.unpack_from(order + at, head, begin)
        while place and place not in places and len(places) < 4096:
            stream.seek(place)
            (count,) = struct.unpack(order + many, stream.read(struct.calcsize(many)))
            start = stream.tell()
            # Of later directories only the kind is needed, which is the first entry.
            own = _numbers(stream, start, 1 if places else min(count, 1000), order, at, step)
            tags = tags or own
            places[place] = not own.get(254, 0) & 5
            stream.seek(start + step * count)
            (place,) = struct.unpack(order + at, stream.read(struct.calcsize(at)))
    except (struct.error, OverflowError, ValueError, OSError):
        pass
    return tags, max(1, sum(places.values()))


def _numbers(stream: BinaryIO, start: int, count: int, order: str, at: str, step: int) -> dict[int, int]:
    """Tag -> its first value, for the entries that are whole numbers."""
    stream.seek(start)
    rows, found = stream.read(step * count), dict[int, int]()
    for row in range(0, step * count, step):
        tag, kind, values = struct.unpack_from(f"{order}HH{at}", rows, row)
        code = {3: "H", 4: "I", 16: "Q"}.get(kind)
        if code is None:
            continue
        source, value = rows, row + step - struct.calcsize(at)
        if struct.calcsize(code) * values > struct.calcsize(at):  # the entry holds the place of the values
            stream.seek(struct.unpack_from(order + at, rows, value)[0])
            source, value = stream.read(struct.calcsize(code)), 0
        found[tag] = struct.unpack_from(order + code, source, value)[0]
    return found

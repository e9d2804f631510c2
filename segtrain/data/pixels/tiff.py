"""What do the directories of a TIFF say about its pictures? Read without decoding, since decoders drop what they have no mode for."""

from __future__ import annotations

import struct
from typing import BinaryIO


def tiff_tags(stream: BinaryIO) -> tuple[dict[int, int], int]:
    """First values of the numbers in a TIFF's first directory (TIFF 6.0, section 2; BigTIFF), and its pictures without reduced copies.

    Empty, 1 for what is no TIFF, or is damaged.
    """
    head = stream.read(16)
    order = {b"II": "<", b"MM": ">"}.get(head[:2], "")
    big = order != "" and head[2:4] == struct.pack(order + "H", 43)
    if not order or not (big or head[2:4] == struct.pack(order + "H", 42)):
        return {}, 1
    many, at, step = (
        ("Q", "Q", 20) if big else ("H", "I", 12)
    )  # a directory's length, a place in the file, an entry's size
    tags: dict[int, int] = {}
    places: dict[int, bool] = {}  # of directories, and whether each is a picture of its own
    try:
        (place,) = struct.unpack_from(order + at, head, 8 if big else 4)
        while place and place not in places and len(places) < 4096:
            stream.seek(place)
            (count,) = struct.unpack(order + many, stream.read(struct.calcsize(many)))
            start = stream.tell()
            own = _numbers(
                stream, start, 1 if places else min(count, 1000), order, at, step
            )  # the kind of copy is the first entry
            tags = tags or own
            places[place] = not own.get(254, 0) & 5
            stream.seek(start + step * count)
            (place,) = struct.unpack(order + at, stream.read(struct.calcsize(at)))
    except (struct.error, OverflowError, ValueError, OSError):
        pass
    return tags, max(1, sum(places.values()))


def _numbers(stream: BinaryIO, start: int, count: int, order: str, at: str, step: int) -> dict[int, int]:
    """Tag -> its first value, of the entries that are whole numbers."""
    stream.seek(start)
    rows, found = stream.read(step * count), dict[int, int]()
    for row in range(0, step * count, step):
        tag, kind, values = struct.unpack_from(f"{order}HH{at}", rows, row)
        code = {3: "H", 4: "I", 16: "Q"}.get(kind)
        if code is None:
            continue
        value = row + step - struct.calcsize(at)
        if struct.calcsize(code) * values > struct.calcsize(at):
            stream.seek(struct.unpack_from(order + at, rows, value)[0])
            found[tag] = struct.unpack(order + code, stream.read(struct.calcsize(code)))[0]
        else:
            found[tag] = struct.unpack_from(order + code, rows, value)[0]
    return found

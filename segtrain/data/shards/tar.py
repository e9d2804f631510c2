"""Reading and writing of tar headers (POSIX ustar, pax, GNU long names), with checks against damage."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from segtrain.errors import DataError, file_error

BLOCK = 512
_ZERO = bytes(BLOCK)
_MAX_EXTENSION = 1 << 20  # bytes of an extended header: names and sizes need few
View = Callable[[int, int], memoryview]  # offset, length


@dataclass(frozen=True)
class Member:
    """A file in a tar; its content is the bytes from ``offset`` to ``offset + size``."""

    name: str
    offset: int
    size: int


def header(name: str, size: int) -> bytes:
    """The bytes before the content of a member; equal for equal names and sizes."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT)


def padding(size: int) -> bytes:
    """The bytes after a content of ``size`` bytes."""
    return bytes(-size % BLOCK)


END = bytes(2 * BLOCK)


def members(view: View, total: int, name: str) -> Iterator[Member]:
    """The plain files in a tar of ``total`` bytes, in order. ``name`` is for messages.

    Raises DataError for a tar that is damaged, compressed, or cut off (no end mark), or that holds sparse files.
    """
    place, long_name, long_size = 0, "", -1
    while True:
        if place + BLOCK > total:
            reason = f"the tar ends early, after {total:,} bytes, without its end mark"
            raise _damaged(name, reason, place, "tar-ends-early")
        block = bytes(view(place, BLOCK))
        if block == _ZERO:
            break
        if not _sum_holds(block):
            raise _damaged(name, f"byte {place:,} is not a tar header (a damaged or compressed tar)", place)
        kind, size, start = block[156:157], _number(block[124:136], name, place), place + BLOCK
        plain = kind in (b"0", b"\0", b"7")
        if plain:
            size = size if long_size < 0 else long_size
        elif kind in (b"1", b"2", b"3", b"4", b"5", b"6"):
            size = 0  # links, devices, and folders have no content, whatever they claim
        if start + size > total:
            reason = f"the tar ends early, after {total:,} bytes: the member at byte {place:,} claims {size:,} more"
            raise _damaged(name, reason, place, "tar-ends-early")
        if plain:
            yield Member(long_name or _name(block), start, size)
        if kind in (b"x", b"L"):
            if size > _MAX_EXTENSION:
                raise _damaged(name, f"the header at byte {place:,} has {size:,} bytes", place)
            body = bytes(view(start, size))
            if kind == b"L":
                long_name = _text(body)
            else:
                records = _pax(body, name, place)
                long_name = records.get("path", long_name)
                long_size = _number(records.get("size", "-1").encode(), name, place, 10)
                if any(key.startswith("GNU.sparse") for key in records):
                    raise _sparse(name, place)
        elif kind == b"S":
            raise _sparse(name, place)
        elif kind not in (b"g", b"K"):
            long_name, long_size = "", -1  # they belonged to this member
        place = start + size + (-size % BLOCK)
    step = _MAX_EXTENSION
    if any(bytes(view(at, min(step, total - at))).strip(b"\0") for at in range(place, total, step)):
        reason = f"data follows the end mark at byte {place:,} (concatenated tars)"
        raise _damaged(name, reason, place, "tar-concatenated")


def _sum_holds(block: bytes) -> bool:
    """Whether the checksum of a header is correct; its own eight bytes count as spaces."""
    try:
        claimed = int(block[148:156].strip(b" \0") or b"0", 8)
    except ValueError:
        return False
    return claimed == sum(block) - sum(block[148:156]) + 8 * 32


def _number(field: bytes, name: str, place: int, base: int = 8) -> int:
    try:
        if base == 8 and field[0] & 0x80:  # GNU: a binary number, since octal digits cannot hold it
            number = int.from_bytes(field, "big") - (0x80 << 8 * (len(field) - 1))
        else:
            number = int(field.strip(b" \0") or b"0", base)
    except ValueError:
        number = -2
    if not (0 <= number < 1 << 62 or (base == 10 and number == -1)):
        raise _damaged(name, f"the header at byte {place:,} claims a size of {field!r}", place)
    return number


def _name(block: bytes) -> str:
    """ustar stores the start of a long path in another field, which GNU tar uses for other things."""
    prefix = block[345:500] if block[257:263] == b"ustar\0" else b""
    path = _text(block[:100])
    return f"{_text(prefix)}/{path}" if prefix.strip(b"\0") else path


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _pax(body: bytes, name: str, place: int) -> dict[str, str]:
    """Records "LENGTH KEY=VALUE\\n" (POSIX.1-2001, pax)."""
    records, at = {}, 0
    while at < len(body):
        space = body.find(b" ", at, at + 20)
        try:
            length = int(body[at:space]) if space > 0 else 0
        except ValueError:
            length = 0
        key, equals, value = body[space + 1 : at + length - 1].partition(b"=")
        if length < 5 or at + length > len(body) or not equals or body[at + length - 1 : at + length] != b"\n":
            raise _damaged(name, f"the extended header at byte {place:,} is damaged", place)
        records[_text(key)] = value.decode("utf-8", "surrogateescape")
        at += length
    return records


def _sparse(name: str, place: int) -> DataError:
    reason = f"the member at byte {place:,} is a sparse file, which is not supported: write the tar without --sparse"
    return file_error(name, reason, code="tar-sparse", byte=place)


def _damaged(name: str, reason: str, place: int, code: str = "tar-header") -> DataError:
    return file_error(name, f"{reason}: fetch or write the shard again", code=code, byte=place)

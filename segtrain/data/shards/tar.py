"""Where in a tar file do its members lie? POSIX ustar and pax, GNU's long names; read without trust, written to be read by any tar."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from segtrain.errors import DataError

BLOCK = 512
_ZERO = bytes(BLOCK)
_MAX_EXTENSION = 1 << 20  # bytes of an extended header: names and sizes need few
_AGAIN = "fetch or write the shard again"


@dataclass(frozen=True)
class Member:
    """A file in a tar: bytes ``offset`` to ``offset + size`` are its content."""

    name: str
    offset: int
    size: int


def header(name: str, size: int) -> bytes:
    """What stands before the content of a member: always the same bytes for the same name and size."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT)


def padding(size: int) -> bytes:
    """What follows a content of ``size`` bytes."""
    return bytes(-size % BLOCK)


END = bytes(2 * BLOCK)


def members(content: memoryview, name: str) -> Iterator[Member]:
    """The plain files in a tar, in its order. ``name`` is for messages.

    Raises DataError for a tar that is damaged, cut off (it lacks its end mark), compressed, or holds sparse files.
    """
    place, long_name, long_size = 0, "", -1
    while True:
        block = bytes(content[place : place + BLOCK])
        if len(block) < BLOCK:
            raise DataError(f"{name}: the tar ends early, after {len(content):,} bytes, without its end mark: {_AGAIN}")
        if block == _ZERO:
            break
        if not _sum_holds(block):
            raise DataError(f"{name}: no tar header at byte {place:,} (a damaged or compressed tar): {_AGAIN}")
        kind, size, start = block[156:157], _number(block[124:136], name, place), place + BLOCK
        plain = kind in (b"0", b"\0", b"7")
        if plain:
            size = size if long_size < 0 else long_size
        elif kind in (b"1", b"2", b"3", b"4", b"5", b"6"):  # links, devices, folders: no content, whatever they claim
            size = 0
        if start + size > len(content):
            raise DataError(
                f"{name}: the tar ends early, after {len(content):,} bytes: the member at byte {place:,} claims {size:,} more: {_AGAIN}"
            )
        if plain:
            yield Member(long_name or _name(block), start, size)
        if kind in (b"x", b"L"):
            if size > _MAX_EXTENSION:
                raise DataError(f"{name}: a header of {size:,} bytes at byte {place:,}: {_AGAIN}")
            body = bytes(content[start : start + size])
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
            long_name, long_size = "", -1  # they were of this member
        place = start + size + (-size % BLOCK)
    if any(bytes(content[at : at + _MAX_EXTENSION]).strip(b"\0") for at in range(place, len(content), _MAX_EXTENSION)):
        raise DataError(f"{name}: there is more after the end mark at byte {place:,} (tars put together): {_AGAIN}")


def _sum_holds(block: bytes) -> bool:
    """Whether the checksum of a header is right; its own eight bytes count as spaces."""
    try:
        claimed = int(block[148:156].strip(b" \0") or b"0", 8)
    except ValueError:
        return False
    return claimed == sum(block) - sum(block[148:156]) + 8 * 32


def _number(field: bytes, name: str, place: int, base: int = 8) -> int:
    try:
        if base == 8 and field[0] & 0x80:  # GNU: a binary number, for what octal digits cannot hold
            number = int.from_bytes(field, "big") - (0x80 << 8 * (len(field) - 1))
        else:
            number = int(field.strip(b" \0") or b"0", base)
    except ValueError:
        number = -2
    if not (0 <= number < 1 << 62 or (base == 10 and number == -1)):
        raise DataError(f"{name}: the header at byte {place:,} claims a size of {field!r}: {_AGAIN}")
    return number


def _name(block: bytes) -> str:
    """ustar puts the start of a long path elsewhere; GNU's own format keeps other things there."""
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
            raise DataError(f"{name}: the extended header at byte {place:,} is damaged: {_AGAIN}")
        records[_text(key)] = value.decode("utf-8", "surrogateescape")
        at += length
    return records


def _sparse(name: str, place: int) -> DataError:
    return DataError(f"{name}: the member at byte {place:,} is stored sparse, which is not read: write the tar without")

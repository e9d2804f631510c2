"""Makes tar headers for packed shards, and lists the members of any tar shard while checking it for
damage.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple, cast

from segtrain.errors import DataError, file_error

BLOCK = 512
END = bytes(2 * BLOCK)
_STEP = 1 << 20  # bytes that are read at once after the end mark
View = Callable[[int, int], memoryview]  # offset, length


class Member(NamedTuple):
    """A file in a tar; its content is the bytes from ``offset`` to ``offset + size``."""

    name: str
    offset: int
    size: int


def header(name: str, size: int) -> bytes:
    """The header before the content of a member. It depends only on name and size."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT)


def padding(size: int) -> bytes:
    """The zero bytes that fill the last block after a content of ``size`` bytes."""
    return bytes(-size % BLOCK)


class _TarStream:
    """A view of a tar as a file object, with only the methods that ``tarfile`` calls."""

    def __init__(self, view: View, total: int) -> None:
        self.view, self.total, self.position = view, total, 0

    def tell(self) -> int:
        return self.position

    def seek(self, position: int) -> None:
        self.position = position

    def read(self, size: int) -> bytes:
        size = max(0, min(size, self.total - self.position))
        content = bytes(self.view(self.position, size)) if size else b""
        self.position += size
        return content


def members(view: View, total: int, name: str) -> Iterator[Member]:
    """The plain files in a tar of ``total`` bytes, in order. ``name`` is for messages.

    Raises DataError for a tar that is damaged, compressed, or cut off (no end mark), or that holds
    sparse files.
    """
    offset, stream = 0, cast("BinaryIO", _TarStream(view, total))
    try:
        archive = tarfile.TarFile(fileobj=stream, encoding="utf-8", errors="surrogateescape")
        for info in iter(archive.next, None):
            if info.issparse():
                raise file_error(
                    name,
                    f"the member at byte {info.offset:,} is a sparse file: write the tar "
                    "without --sparse",
                    code="tar-sparse",
                    byte=info.offset,
                )
            if archive.offset < info.offset_data:  # a negative size
                break
            offset = archive.offset
            if offset <= total and info.isreg():
                yield Member(info.name, info.offset_data, info.size)
    except (tarfile.TarError, ValueError, LookupError, OverflowError, RecursionError):
        pass  # an error is raised below, because the bytes at ``offset`` are not a header
    if offset + BLOCK > total:
        reason = f"the tar ends early, after {total:,} bytes, without its end mark"
        raise _damaged(name, reason, offset, "tar-ends-early")
    if any(view(offset, BLOCK)):
        raise _damaged(
            name, f"byte {offset:,} is not a tar header (a damaged or compressed tar)", offset
        )
    if any(
        bytes(view(at, min(_STEP, total - at))).strip(b"\0") for at in range(offset, total, _STEP)
    ):
        reason = f"data follows the end mark at byte {offset:,} (concatenated tars)"
        raise _damaged(name, reason, offset, "tar-concatenated")


def _damaged(name: str, reason: str, offset: int, code: str = "tar-header") -> DataError:
    return file_error(name, f"{reason}: fetch or write the shard again", code=code, byte=offset)

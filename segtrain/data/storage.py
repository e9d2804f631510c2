"""Access to stored bytes: the interface of a store, the local disk behind it, and atomic writes of local files."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Union
from weakref import WeakValueDictionary

from segtrain import files
from segtrain.errors import DataError

if TYPE_CHECKING:
    from segtrain.data.bucket.ahead import ReadAhead

# Files that a process maps at once; each mapping holds a file descriptor.
_MAPS = 128
# After this many viewed bytes, a process gives its mapped pages back, so that its memory stays flat.
_RESIDENT = 32 << 20
_viewed = 0
_alive: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()
_FIX = "check the path and its permissions"
_AGAIN = "fetch it or write it again"


class Range(NamedTuple):
    """Bytes of a file: ``length`` from ``offset`` on; -1: all to the end."""

    path: str
    offset: int = 0
    length: int = -1


class FileStat(NamedTuple):
    """Size in bytes, and a number below 2**63 that changes with the content."""

    size: int
    etag: int


class Store:
    """What reading a data set needs of a store. Paths are strings with slashes. Any thread may call any method.

    A store implements ``list``, ``stat``, and ``read``, and overrides ``view`` and ``open`` if it can avoid a copy.
    Every method raises DataError. A store must pickle to few bytes, since each worker process gets a copy.
    """

    def list(self, folder: str, ending: str) -> list[str]:
        """Sorted names directly in ``folder`` with this ending, without hidden ones; empty if there is no such folder.

        Names of folders end with a slash: the ending "/" lists the folders, and ".tar" lists files.
        """
        raise NotImplementedError

    def stat(self, path: str) -> FileStat:
        """Size and etag of a file."""
        raise NotImplementedError

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """``length`` bytes from ``offset`` (None: all to the end). A file that ends earlier is an error."""
        raise NotImplementedError

    def view(self, path: str, offset: int, length: int) -> memoryview:
        """The same bytes as ``read``, without a copy where the store can do so."""
        return memoryview(self.read(path, offset, length))

    def content(self, path: str) -> bytes | memoryview:
        """All of a file."""
        return self.read(path)

    def mapped(self, path: str) -> memoryview:
        """All of a file that each process of this host uses, such as an index: mapped from a local file if possible."""
        return self.view(path, 0, self.stat(path).size)

    def copied(self, path: str) -> str:
        """A local file with the content of a file: of the local disk, the file itself."""
        return path

    def scan(self, path: str) -> Callable[[int, int], memoryview]:
        """``view`` of one file, for many small reads in ascending order, such as of the headers in a tar."""
        return partial(self.view, path)

    def walk(self, folder: str) -> Iterator[str]:
        """Paths of all files below a folder, relative to it, in the order of their bytes."""
        raise NotImplementedError

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A seekable stream, for headers: few bytes of it are read."""
        return io.BytesIO(self.read(path))

    def place(self, root: str) -> str:
        """The folder ``root`` as the paths of this store begin with it."""
        return os.path.abspath(root)

    def read_ahead(self, samples: Iterator[Sequence[Range]], batch: int, in_progress: int) -> ReadAhead | None:
        """Fetch the ranges of the next samples from now on, until it is closed. None: a store that answers at once.

        batch: samples per step. in_progress: samples that workers may hold at the same time.
        """
        return None


class LocalDisk(Store):
    """Files of this machine. ``view`` maps them: nothing is copied, and the processes of a host share the pages."""

    def __reduce__(self) -> str:
        return "LOCAL"

    def list(self, folder: str, ending: str) -> list[str]:
        try:
            with os.scandir(folder) as found:
                if ending == "/":
                    return sorted(f"{e.name}/" for e in found if e.name[0] != "." and e.is_dir())
                return sorted(e.name for e in found if e.name.endswith(ending) and e.name[0] != "." and e.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _unreadable(folder, error) from None

    def stat(self, path: str) -> FileStat:
        try:
            status = os.stat(path)
        except OSError as error:
            raise _unreadable(path, error) from None
        return FileStat(status.st_size, status.st_mtime_ns)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        with opened(path) as stream:
            if length is None:
                length = max(0, os.fstat(stream.fileno()).st_size - offset)
            stream.seek(offset)
            content = stream.read(length)
        if len(content) != length:
            raise _too_short(path, offset + len(content), offset + length)
        return content

    def view(self, path: str, offset: int, length: int) -> memoryview:
        global _viewed
        try:
            status = os.stat(path)
            content = _mapped(path, status.st_ino, status.st_size, status.st_mtime_ns)
        except (OSError, ValueError) as error:  # ValueError: the file has shrunk since
            raise _unreadable(path, error) from None
        if offset < 0 or length < 0 or offset + length > len(content):
            raise _too_short(path, len(content), offset + length)
        _viewed += length
        if _viewed >= _RESIDENT:
            _viewed = 0
            _release_pages()
        return content[offset : offset + length]

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        return opened(path)


LOCAL = LocalDisk()


@contextmanager
def opened(path: Union[str, os.PathLike[str]], name: str = "") -> Iterator[BinaryIO]:
    """A regular local file to read; ``name`` is for messages. Errors while it is read become DataError too.

    A FIFO, a socket, or a device is refused at once: those have no end, or wait for a writer.
    """
    name = name or os.fspath(path)
    try:
        with open(path, "rb", opener=_without_waiting) as stream:
            _refuse_other_kinds(os.fstat(stream.fileno()).st_mode, name)
            yield stream
    except OSError as error:
        with contextlib.suppress(OSError):
            _refuse_other_kinds(os.stat(path).st_mode, name)  # a socket or a folder cannot be opened
        raise _unreadable(name, error) from None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _refuse_other_kinds(mode: int, name: str) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = ((stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"), (stat.S_ISDIR, "a folder"))
    kind = next((kind for test, kind in kinds if test(mode)), "a device")
    says = f"{name}: is {kind}, not a file: take it out of the data set"
    raise DataError(says, code="file-not-regular", file=name, found=kind)


@contextmanager
def writing(path: str, folder: str = "") -> Iterator[BinaryIO]:
    """A local file to write and read. When the block ends, it is flushed to the disk and replaces ``path`` in one step.

    Until then it is hidden in the same folder, or in ``folder`` on the same disk.
    Raises DataError if it cannot be written; after any error nothing of it remains.
    """
    beside = Path(folder or os.path.dirname(path))
    try:
        beside.mkdir(parents=True, exist_ok=True)
        with files.writing(Path(path), sync=True, beside=beside) as stream:
            yield stream
    except OSError as error:
        reason = error.strerror or str(error)
        says = f"{path}: cannot be written ({reason}): check the free space and the permissions"
        raise DataError(says, code="file-unwritable", file=path, found=reason) from None


# Views that are in use keep a mapping alive after it has left this cache. Any thread may call it.
@lru_cache(_MAPS)
def _mapped(path: str, inode: int, size: int, mtime_ns: int) -> memoryview:
    """The mapped file. Another file under the same name has another inode, size, or time, and so another mapping."""
    if not size:
        raise DataError(f"{path}: the file has 0 bytes: {_AGAIN}", code="file-empty", file=path)
    with open(path, "rb") as stream:
        content = mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ)
    _alive[id(content)] = content
    return memoryview(content)


def _release_pages() -> None:
    """The files are only read: a page that is needed again comes back with the same bytes."""
    for reference in _alive.valuerefs():
        content = reference()
        if content is not None and hasattr(mmap, "MADV_DONTNEED"):
            content.madvise(mmap.MADV_DONTNEED)


def _too_short(path: str, size: int, needed: int) -> DataError:
    says = f"{path}: the file ends at byte {size:,}, but is read up to byte {needed:,}: {_AGAIN}"
    return DataError(says, code="file-ends-early", file=path, found=size, expected=needed)


def _unreadable(path: str, error: Exception) -> DataError:
    reason = getattr(error, "strerror", None) or str(error)
    return DataError(f"{path}: cannot be read ({reason}): {_FIX}", code="file-unreadable", file=path, found=reason)

"""Access to stored bytes: the interface of a store, the local disk behind it, and atomic writes of
local files.
"""

from __future__ import annotations

import contextlib
import errno
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

from segtrain.base import files
from segtrain.errors import DataError, file_error

if TYPE_CHECKING:
    from segtrain.data.bucket.ahead import ReadAhead

# A process caches at most this many mappings of files, because each mapping holds a file
# descriptor.
_MAPS = 128
# After this many viewed bytes, a process releases its memory-mapped pages, so that its memory does
# not grow.
_RESIDENT = 32 << 20
_viewed = 0
_alive: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()
_FIX = "check the path and its permissions"
_AGAIN = "fetch it or write it again"
# Folders that systems and tools write beside the data, in lower case. Their copies of images are
# not samples.
_SYSTEM = frozenset(
    (
        "@eadir",
        "@recycle",
        "@recently-snapshot",
        "@tmp",
        "#recycle",
        "#snapshot",
        "~snapshot",
        "$recycle.bin",
        "recycler",
        "__macosx",
        "__pycache__",
        "lost+found",
        "system volume information",
        "network trash folder",
    )
)


@lru_cache(4096)
def system_folder(path: str) -> str:
    """The first folder in a relative path that is hidden or written by a system, and so holds no
    data; or "".
    """
    return next(
        (name for name in path.split("/") if name[:1] == "." != name or name.lower() in _SYSTEM), ""
    )


def is_run(folder: str) -> bool:
    """Whether it is the folder of a run, such as runs/NAME-HASH inside the data set."""
    return all(
        os.path.isfile(os.path.join(folder, name)) for name in ("journal.jsonl", "config.yaml")
    )


class Check(NamedTuple):
    """The checksum that the ``length`` bytes from ``offset`` within a range must have."""

    offset: int
    length: int
    checksum: int


class Range(NamedTuple):
    """``length`` bytes of a file from ``offset`` (-1: all to the end). Bytes from a bucket must
    match ``checks``.

    ``within``: the range of the whole sample, which a cache keeps as one entry; None: this range is
    the whole sample.
    """

    path: str
    offset: int = 0
    length: int = -1
    checks: tuple[Check, ...] = ()
    within: Range | None = None


class FileStat(NamedTuple):
    """Size in bytes, and a number below 2**63 that changes with the content."""

    size: int
    etag: int


class Store:
    """Interface of a store from which a data set is read. Paths are strings with slashes; all
    methods are thread-safe.

    A store implements ``list``, ``stat``, and ``read``, and overrides ``view`` and ``open`` if it
    can avoid a copy. Every method raises DataError. A store must pickle to few bytes, since each
    worker process gets a copy.
    """

    # Whether this store has a cache. The cache keeps each sample that a pass over the data set
    # reads as one entry.
    keeps = False
    # Whether these are files of this machine.
    local = False

    def leaves_out(self, path: str) -> bool:
        """Whether ``data.leave_out`` names this file or folder, which no listing has then."""
        return False

    def list(self, folder: str, ending: str) -> list[str]:
        """Sorted names directly in ``folder`` with this ending, without hidden ones and system
        folders.

        Empty if there is no such folder.

        Names of folders end with a slash: the ending "/" lists the folders, and ".tar" lists files.
        """
        raise NotImplementedError

    def stat(self, path: str) -> FileStat:
        """Size and etag of a file."""
        raise NotImplementedError

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """``length`` bytes from ``offset`` (None: all to the end). A file that ends earlier is an
        error.
        """
        raise NotImplementedError

    def view(self, path: str, offset: int, length: int) -> memoryview:
        """The same bytes as ``read``, without a copy where the store can do so."""
        return memoryview(self.read(path, offset, length))

    def part(self, wanted: Range) -> memoryview:
        """The bytes of a range, taken from the read-ahead if it has fetched them."""
        return self.view(*wanted[:3])

    def content(self, path: str) -> bytes | memoryview:
        """All bytes of a file."""
        return self.read(path)

    def mapped(self, path: str) -> memoryview:
        """All bytes of a file that every process of this host needs, such as an index;
        memory-mapped if possible.
        """
        return self.view(path, 0, self.stat(path).size)

    def copied(self, path: str) -> str:
        """The path of a local file with the same content: on the local disk, ``path`` itself."""
        return path

    def scan(self, path: str) -> Callable[[int, int], memoryview]:
        """``view`` of one file, for many small reads in ascending order, such as of the headers in
        a tar.
        """
        return partial(self.view, path)

    def walk(self, folder: str) -> Iterator[str]:
        """Paths of all files below a folder, relative to it, in any order; on a disk, without
        folders of runs and of the system.
        """
        raise NotImplementedError

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A seekable stream, from which callers read only a few bytes, such as a header."""
        return io.BytesIO(self.read(path))

    def place(self, root: str) -> str:
        """The folder ``root`` in the form that all paths of this store start with; here, an
        absolute path.
        """
        return os.path.abspath(root)

    def read_ahead(
        self, samples: Iterator[Sequence[Range]], batch: int, in_progress: int
    ) -> ReadAhead | None:
        """Start to fetch the ranges of the next samples. Fetching goes on until the result is
        closed.

        batch: samples per step. in_progress: samples that workers may hold at the same time.
        Returns None if the store needs no read-ahead.
        """
        return None


class LocalDisk(Store):
    """Files of this machine. ``view`` memory-maps them: no copy, and the processes of a host share
    the pages.
    """

    def __reduce__(self) -> str:
        return "LOCAL"

    local = True

    def list(self, folder: str, ending: str) -> list[str]:
        try:
            with os.scandir(folder) as found:
                if ending == "/":
                    return sorted(
                        f"{e.name}/"
                        for e in found
                        if e.is_dir() and not system_folder(e.name) and not self.leaves_out(e.path)
                    )
                return sorted(
                    e.name
                    for e in found
                    if e.name.endswith(ending)
                    and e.name[0] != "."
                    and e.is_file()
                    and not self.leaves_out(e.path)
                )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _unreadable(folder, error) from None

    def stat(self, path: str) -> FileStat:
        try:
            status = os.stat(path)
        except OSError as error:
            raise _unreadable(path, error) from None
        # A file that is replaced can get the earlier mtime, but not the earlier ctime.
        return FileStat(status.st_size, status.st_mtime_ns + status.st_ctime_ns)

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
        except (OSError, ValueError) as error:  # ValueError: the file has shrunk since os.stat
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

    def walk(self, folder: str) -> Iterator[str]:
        for above, inner, names in os.walk(folder):
            inner[:] = [
                name
                for name in inner
                if not system_folder(name) and not is_run(os.path.join(above, name))
            ]
            below = os.path.relpath(above, folder)
            yield from (
                os.path.normpath(os.path.join(below, name))
                for name in names
                if not self.leaves_out(os.path.join(above, name))
            )


LOCAL = LocalDisk()


@contextmanager
def opened(path: Union[str, os.PathLike[str]], name: str = "") -> Iterator[BinaryIO]:
    """Open a regular local file for reading; ``name`` is for messages. Read errors in the block
    become DataError too.

    A FIFO, a socket, or a device is refused at once, because reading it might wait for a writer or
    never end.
    """
    name = name or os.fspath(path)
    try:
        with open(path, "rb", opener=files.without_waiting) as stream:
            _refuse_other_kinds(os.fstat(stream.fileno()).st_mode, name)
            yield stream
    except OSError as error:
        with contextlib.suppress(OSError):
            # a socket or a folder cannot be opened
            _refuse_other_kinds(os.stat(path).st_mode, name)
        raise _unreadable(name, error) from None


def _refuse_other_kinds(mode: int, name: str) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = ((stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"), (stat.S_ISDIR, "a folder"))
    kind = next((kind for test, kind in kinds if test(mode)), "a device")
    message = f"is {kind}, not a file: take it out of the data set"
    raise file_error(name, message, code="file-not-regular", found=kind)


@contextmanager
def writing(path: str, folder: str = "") -> Iterator[BinaryIO]:
    """A local file to write and read. When the block ends, it is flushed to the disk and replaces
    ``path`` atomically.

    Until then it has a hidden name in the same folder, or in ``folder`` on the same disk.
    Raises DataError if it cannot be written. After any error it is removed.
    """
    beside = Path(folder or os.path.dirname(path))
    try:
        beside.mkdir(parents=True, exist_ok=True)
        with files.writing(Path(path), sync=True, beside=beside) as stream:
            yield stream
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"cannot be written ({reason}): check the free space and the permissions"
        raise file_error(path, message, code="file-unwritable", found=reason) from None


# Views that are in use keep a mapping alive after it has left this cache. Any thread may call this
# function.
@lru_cache(_MAPS)
def _mapped(path: str, inode: int, size: int, mtime_ns: int) -> memoryview:
    """The mapped file. Another file under the same name has another inode, size, or time, and so
    another mapping.
    """
    if not size:
        raise file_error(path, f"the file has 0 bytes: {_AGAIN}", code="file-empty")
    with open(path, "rb") as stream:
        content = mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ)
    _alive[id(content)] = content
    return memoryview(content)


def _release_pages() -> None:
    """Release the pages of all mappings. Nothing is lost: a page that is needed again comes from
    the file again.
    """
    for reference in _alive.valuerefs():
        content = reference()
        if content is not None and hasattr(mmap, "MADV_DONTNEED"):
            content.madvise(mmap.MADV_DONTNEED)


def _too_short(path: str, size: int, needed: int) -> DataError:
    message = f"the file ends at byte {size:,}, but is read up to byte {needed:,}: {_AGAIN}"
    return file_error(path, message, code="file-ends-early", found=size, expected=needed)


def _unreadable(path: str, error: Exception) -> DataError:
    reason = getattr(error, "strerror", None) or str(error)
    fix = (
        "raise the limit of open files (ulimit -n)"
        if getattr(error, "errno", 0) == errno.EMFILE
        else _FIX
    )
    return file_error(
        path, f"cannot be read ({reason}): {fix}", code="file-unreadable", found=reason
    )

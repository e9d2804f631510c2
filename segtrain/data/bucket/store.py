"""Store of a bucket: listings, sizes, and ranges of objects, taken from a read-ahead where one is running."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

from segtrain.data.bucket.ahead import ReadAhead
from segtrain.data.bucket.client import Client, client_of, etag_of
from segtrain.data.bucket.faults import ends_early
from segtrain.data.bucket.known import KnownObjects, etag_number, rows_of
from segtrain.data.bucket.tally import RequestTally
from segtrain.data.storage import LOCAL, FileStat, Range, Store
from segtrain.errors import DataError
from segtrain.files import cache_folder, writing
from segtrain.memory import memory_limit

# A stream reads an object in blocks of this size: the first one nearly always holds an image's header.
_BLOCK = 1 << 16
# An object up to this size is read at once: more requests would take longer.
_SMALL = 1 << 18
# Share of the memory that the read-aheads of a host may hold.
_MEMORY = 0.05
_MOST_MEMORY = 2 << 30
# Of the objects and of the folders in a folder.
Names = tuple[list[str], list[str]]


class BucketStore(Store):
    """Objects of a bucket; paths are URLs below ``base``, such as ``s3://bucket/train/a.png``.

    ``outage_s``: seconds without any answer after which a request fails. ``seen``: a file of known sizes and etags.
    What was listed or read once must keep its etag: a changed object is an error. A pickled store holds no more than
    these three, so that worker processes expect the same etags.
    """

    def __init__(self, base: str, outage_s: float, seen: str = "") -> None:
        self.base, self.outage_s = base, outage_s
        self._known = KnownObjects(seen)
        self._folders: dict[str, Names] = {}
        self._aheads: tuple[ReadAhead, ...] = ()
        # Bytes that came to a worker process with its task.
        self.given: dict[Range, bytes] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return BucketStore, (self.base, self.outage_s, self._known.save())

    @property
    def _client(self) -> Client:
        return client_of(self.base)

    @property
    def tally(self) -> RequestTally:
        """Requests and retries of this process, for all stores of the bucket."""
        return self._client.tally

    def _key(self, path: str) -> str:
        return path.removeprefix(self.base).strip("/")

    def place(self, root: str) -> str:
        return root.rstrip("/")

    def list(self, folder: str, ending: str) -> list[str]:
        objects, folders = self._folder(self._key(folder)) if folder.startswith(self.base) else ([], [])
        names = folders if ending == "/" else [name for name in objects if name.endswith(ending)]
        return sorted(name for name in names if name[0] != ".")

    def _folder(self, key: str) -> Names:
        """Names of the objects and of the folders in a folder, which is listed once."""
        if key not in self._folders:
            objects, folders = self._client.folder(key, self.outage_s)
            self._known.extend([rows_of(map(_row, objects))])
            names = [item["path"].rpartition("/")[2] for item in objects]
            self._folders[key] = names, [f"{name.rstrip('/').rpartition('/')[2]}/" for name in folders]
        return self._folders[key]

    def walk(self, folder: str) -> Iterator[str]:
        """Paths of all files below a folder, relative to it, in the order of keys. Their etags are kept."""
        key, pages = self._key(folder), []
        for page in self._client.below(key, self.outage_s):
            pages.append(rows_of(map(_row, page)))
            yield from (item["path"][len(key) + 1 if key else 0 :] for item in page)
        self._known.extend(pages)

    def stat(self, path: str) -> FileStat:
        key = self._key(path)
        found = self._known.find(key)
        if found is None:
            answer = self._client.head(key, self.outage_s)
            found = answer.size, answer.etag
            self._known.add(key, *found)
        return FileStat(found[0], etag_number(found[1]))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return bytes(self._content(Range(path, offset, -1 if length is None else length)))

    def view(self, path: str, offset: int, length: int) -> memoryview:
        return memoryview(self._content(Range(path, offset, length)))

    def content(self, path: str) -> memoryview:
        return memoryview(self._content(Range(path, 0, -1)))

    def mapped(self, path: str) -> memoryview:
        size = self.stat(path).size
        try:
            return LOCAL.view(self.copied(path), 0, size)
        except DataError as error:
            if error.code not in ("cache-unwritable", "file-ends-early"):
                raise
            return self.content(path)

    def scan(self, path: str) -> Callable[[int, int], memoryview]:
        size, begin, block = self.stat(path).size, 0, memoryview(b"")

        def view(offset: int, length: int) -> memoryview:
            nonlocal begin, block
            if not begin <= offset <= offset + length <= begin + len(block):
                begin, block = offset, self.view(path, offset, min(max(length, _SMALL), max(length, size - offset)))
            return block[offset - begin : offset - begin + length]

        return view

    def copied(self, path: str) -> str:
        """A local copy of an object in the cache, made once for each etag. Raises DataError."""
        size, etag = self.stat(path)
        digest = hashlib.sha256(repr((path, size, etag)).encode()).hexdigest()[:24]
        copy = cache_folder() / f"listing-copy-{digest}"
        if copy.exists():
            return str(copy)
        content = self.content(path)
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            with writing(copy) as stream:
                stream.write(content)
        except OSError as error:
            fix = "set SEGTRAIN_CACHE to a folder with free space"
            says = f"{copy}: cannot be written ({error.strerror or error}): {fix}"
            raise DataError(says, code="cache-unwritable", file=str(copy), found=error.strerror) from None
        return str(copy)

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        if self.stat(path).size <= _SMALL:
            return io.BytesIO(self.content(path))
        return io.BufferedReader(_Stream(self, path), _BLOCK)  # type: ignore[return-value]

    def read_ahead(self, samples: Iterator[Sequence[Range]], batch: int, in_progress: int) -> ReadAhead:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        most = int(min(_MOST_MEMORY, _MEMORY * memory_limit()[0] / ranks))
        ahead = ReadAhead(self._fetch, samples, batch, in_progress, most)
        with self._lock:
            running = (other for other in self._aheads if not other.closed)
            self._aheads = (*running, ahead)
        return ahead

    def _content(self, wanted: Range) -> Any:
        if wanted in self.given:
            return self.given.pop(wanted)
        passes = [ahead for ahead in self._aheads if not ahead.closed]
        # A pass that is being closed stops its workers, but not those of another pass.
        passes = [ahead for ahead in passes if not ahead.stop.is_set()] or passes
        for ahead in passes:
            found = ahead.take(wanted)
            if found is not None:
                return found
        return self._fetch(wanted, passes[-1].stop if passes else None)

    def _fetch(self, wanted: Range, stop: threading.Event | None) -> Any:
        """Bytes of a range in one request, of the object that was listed or read before."""
        path, offset, length = wanted
        key = self._key(path)
        found = self._known.find(key)
        size, etag = found or (-1, "")
        if not length or (length < 0 and not size):
            return b""
        if length < 0 and offset:
            length = max(0, self.stat(path).size - offset)
        span = None if length < 0 else (offset, offset + length)
        if found and span and span[1] > size:
            raise ends_early(path, size, span[1])
        answer = self._client.get(key, span, etag, self.outage_s, stop)
        if found is None:
            self._known.add(key, answer.size, answer.etag)
        return answer.content


def _row(item: Any) -> tuple[str, int, str]:
    return item["path"], item["size"], etag_of(item)


class _Stream(io.RawIOBase):
    """An object as a seekable stream."""

    def __init__(self, store: BucketStore, path: str) -> None:
        super().__init__()
        self._store, self._path, self._at = store, path, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        size = self._store.stat(self._path).size
        self._at = max(0, {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: size}[whence] + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = self._store.stat(self._path).size
        count = max(0, min(len(buffer), size - self._at))
        if count:
            buffer[:count] = self._store.view(self._path, self._at, count)
            self._at += count
        return count

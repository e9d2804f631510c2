"""Requests to one bucket through obstore, retried until they succeed or an outage lasts too long.

obstore's own retries are off for reads, so that each fault is seen, counted by its kind, and
bounded by one time limit. Each process makes its own clients, because obstore hangs in a forked
child.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Union

from segtrain.base import stopping
from segtrain.bucket import connection, faults
from segtrain.bucket.connection import connected, settings_of
from segtrain.bucket.tally import OF_PROCESS, RequestTally
from segtrain.errors import ConfigError, DataError, MissingExtra

T = TypeVar("T")
Content = Union[bytes, memoryview, Path]

# Seconds of the first and of the longest pause before a retry. The pause doubles after each
# failure. Each pause is shortened at random.
_FIRST_PAUSE, _LAST_PAUSE = 0.01, 2.0
# Size of a part of a large object in bytes, and the number of its parts that are in memory at once.
PART, _PARTS = 32 << 20, 4
# Time limits by size in bytes: a request for at most this many bytes is retried if it is not
# complete after this time. Otherwise a request whose bytes arrive very slowly would never end.
_TIMES = ((1 << 20, "60s"), (PART, "600s"))
_REPEATS = 20  # retries by obstore itself of each part of a large object that is written
_LITTLE = 1 << 20  # bytes; a larger body is sent with a longer time limit
# after so many seconds without an answer, a warning is printed, and a signal ends the process at
# once
_SAID_S = 5.0
PAGE = 1000  # objects per page of a listing: the maximum of the clouds
# Prefixes of values that cannot be used as a condition (If-Match): weak etags, and the times of
# ``etag_of``.
_WEAK = ("W/", "@")


def etag_of(meta: Any) -> str:
    """A value that changes with an object's content: its etag, or "@" and its modification time if
    it has no etag.
    """
    return meta.get("e_tag") or f"@{meta['last_modified'].timestamp()}"


class ObjectBytes(NamedTuple):
    """Bytes of an object (a buffer that was not copied), with the size and the etag of the whole
    object.

    ``seconds``: of the request.
    """

    content: Any
    size: int
    etag: str
    seconds: float = 0.0


class Stopped(faults.RequestError):
    """The caller stopped reading the data set during a request, so the requested bytes are no
    longer needed.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: the pass was closed", code="pass-closed", file=path)


@dataclass
class Client:
    """A thread-safe client of one bucket. ``base``: its URL, such as ``s3://BUCKET``. Keys are
    relative to that URL.
    """

    base: str
    store: Any
    # Stores with shorter time limits, each with the largest request in bytes for which it is used.
    quick: tuple[tuple[int, Any], ...]
    # A store to send more than _LITTLE bytes: it waits longer for the answer.
    sender: Any
    # A store to send large objects in parts: obstore itself retries each part.
    writer: Any
    tally: RequestTally = field(default_factory=lambda: RequestTally(OF_PROCESS))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _down_since: float | None = None
    _failed_at: float = 0.0
    _answered: bool = False
    _warned: bool = False

    def get(
        self,
        key: str,
        span: tuple[int, int] | None,
        etag: str,
        outage_s: float,
        stop: threading.Event | None = None,
        size: int = -1,
    ) -> ObjectBytes:
        """Read the bytes ``span`` (begin, end) of an object, or the whole object if ``span`` is
        None.

        ``etag``: the etag that the object must have; "" accepts any. ``size``: size of the object,
        -1 if it is not known. The request is repeated if the answer has another length.
        Raises DataError if the object is missing, denied, changed, or too short, or after
        ``outage_s`` without an answer; raises Stopped once ``stop`` is set.
        """
        return self._repeated(
            key, partial(self._get, key, span, etag, size), outage_s, stop, read=True
        )

    def _get(self, key: str, span: tuple[int, int] | None, etag: str, size: int) -> ObjectBytes:
        import obstore

        began, options = time.perf_counter(), dict[str, Any]()
        if span:
            options["range"] = span
        if etag and not etag.startswith(_WEAK):
            options["if_match"] = etag
        length = span[1] - span[0] if span else size
        store = next((quick for limit, quick in self.quick if 0 <= length <= limit), self.store)
        try:
            result = obstore.get(store, key, options=options)  # type: ignore[arg-type]
            whole, received_etag = result.meta["size"], etag_of(result.meta)
            content = result.bytes()
        except obstore.exceptions.PreconditionError:
            raise faults.changed(f"{self.base}/{key}", etag) from None
        # Some servers ignore If-Match.
        if etag and received_etag != etag:
            raise faults.changed(f"{self.base}/{key}", etag)
        if span and whole < span[1]:
            raise faults.ends_early(f"{self.base}/{key}", whole, span[1])
        if len(content) != (length if length >= 0 else whole):
            raise faults.WrongLength
        seconds = time.perf_counter() - began
        self.tally.answered(len(content), seconds)
        return ObjectBytes(content, whole, received_etag, seconds)

    def head(self, key: str, outage_s: float) -> ObjectBytes:
        """Size and etag of an object."""
        import obstore

        meta = self._repeated(key, lambda: obstore.head(self.store, key), outage_s)
        return ObjectBytes(b"", meta["size"], etag_of(meta))

    def folder(self, prefix: str, outage_s: float) -> tuple[list[Any], list[str]]:
        """The objects directly in a folder, as obstore's dictionaries, and the keys of the folders
        in it.
        """
        import obstore

        listing = self._repeated(
            prefix, lambda: obstore.list_with_delimiter(self.store, prefix or None), outage_s
        )
        return list(listing["objects"]), list(listing["common_prefixes"])

    def below(self, prefix: str, outage_s: float) -> Iterator[list[Any]]:
        """Pages of all objects below a folder, in the order of keys, as obstore's dictionaries."""
        import obstore

        last, stream = "", None

        def page() -> list[Any]:
            nonlocal stream
            # An error ends the stream: the retry opens a new one after the last key that was
            # received.
            stream = stream or iter(
                obstore.list(self.store, prefix or None, offset=last or None, chunk_size=PAGE)
            )
            try:
                return list(next(stream, ()))
            except Exception:
                stream = None
                raise

        while objects := self._repeated(prefix, page, outage_s):
            last = objects[-1]["path"]
            yield objects

    def put(
        self, key: str, content: Content, outage_s: float, stop: threading.Event | None = None
    ) -> str:
        """Write an object atomically: readers see the previous object, or the whole new one.
        Returns its etag.

        ``content``: bytes, or a local file, whose parts are sent in parallel if it is large.
        """
        import obstore

        size = content.stat().st_size if isinstance(content, Path) else len(content)
        large = isinstance(content, Path) and size > PART
        store = self.sender if size > _LITTLE else self.store

        def attempt() -> Any:
            if large:
                parts: Any = {"use_multipart": True, "chunk_size": PART, "max_concurrency": _PARTS}
                return obstore.put(self.writer, key, content, **parts)
            return obstore.put(store, key, content, use_multipart=False)  # type: ignore[arg-type]

        return str(self._repeated(key, attempt, outage_s, stop).get("e_tag") or "")

    def delete(self, keys: Sequence[str], outage_s: float) -> None:
        """Delete objects. A missing object is not an error."""
        import obstore

        for key in keys:
            try:
                self._repeated(key, partial(obstore.delete, self.store, key), outage_s)
            except DataError as error:
                # Google Cloud Storage reports an object that is already gone. A retry finds it gone
                # if the answer to the first delete was lost.
                if error.code != "object-missing":
                    raise

    def patient(self) -> None:
        """Forget when the current outage began: the next request may again take its full
        ``outage_s``.
        """
        with self._lock:
            self._down_since = None

    def _repeated(
        self,
        key: str,
        attempt: Callable[[], T],
        outage_s: float,
        stop: threading.Event | None = None,
        read: bool = False,
    ) -> T:
        """Call ``attempt``, again after each temporary fault, and return its result. Raises
        DataError.

        ``read``: whether ``attempt`` reads an object: only the faults of reads are counted.
        """
        path, first, tries = f"{self.base}/{key}", 0.0, 0
        while True:
            began = time.monotonic()
            try:
                result = attempt()
            except Exception as error:
                kind = faults.passing_kind(error)
                # Missing credentials are a temporary fault only if a request has succeeded before.
                if not kind or (faults.no_login(error) and not self._answered):
                    raise faults.lasting(path, error) from None
            else:
                self._down_since, self._answered, self._warned = None, True, False
                return result
            tries, first, now = tries + 1, first or began, time.monotonic()
            lasted = now - min(first, self._failed(began, now, outage_s))
            if lasted >= outage_s:
                raise faults.outage(path, kind, tries, lasted, outage_s)
            if lasted >= _SAID_S:
                if stopping.requested.is_set():
                    raise faults.stopped(path, kind, lasted)
                self._warn_once(kind, outage_s)
            pause = min(_LAST_PAUSE, _FIRST_PAUSE * 2 ** min(tries - 1, 20)) * random.uniform(
                0.5, 1
            )
            if read:
                self.tally.retried(kind, now - began + pause)
            if stop is None:
                time.sleep(pause)
            elif stop.wait(pause):
                raise Stopped(path)

    def _warn_once(self, kind: str, outage_s: float) -> None:
        """Print one line per outage."""
        with self._lock:
            warned, self._warned = self._warned, True
        if not warned:
            text = (
                f"warning: {self.base}: {faults.PASSING[kind]}: requests are repeated for up to "
                f"{outage_s:g} s"
            )
            print(text, file=sys.stderr, flush=True)

    def _failed(self, began: float, now: float, outage_s: float) -> float:
        """Record a failure. Returns when the outage began; after ``outage_s`` without failures, a
        new one begins.
        """
        with self._lock:
            since = self._down_since
            if since is None or now - self._failed_at > outage_s:
                since = self._down_since = began
            self._failed_at = now
            return since


_clients: dict[tuple[Any, ...], Client] = {}
_making = threading.Lock()


def client_of(base: str) -> Client:
    """The client of a bucket in this process, made on first use. It reads the environment variables
    at that time.

    Raises MissingExtra without obstore, and ConfigError for settings that obstore refuses.
    """
    try:
        import obstore  # noqa: F401
    except ImportError:
        raise MissingExtra("obstore", "buckets", f"reading {base}") from None
    settings = settings_of(base)
    key = os.getpid(), base, repr(sorted(settings.items()))
    with _making:
        if key not in _clients:
            try:
                settings |= connection.aws_login(base, settings)
                quick = tuple(
                    (limit, connected(base, settings, 0, seconds)) for limit, seconds in _TIMES
                )
                sender, writer = (
                    connected(base, settings, repeats, silent=connection.SENDING)
                    for repeats in (0, _REPEATS)
                )
                _clients[key] = Client(base, connected(base, settings, 0), quick, sender, writer)
            except Exception as error:
                reason = faults.reason_of(error)
                message = (
                    f"{base}: the bucket cannot be used ({reason}): check the URL and the "
                    "variables of its credentials"
                )
                raise ConfigError(
                    message, code="bucket-settings", file=base, found=reason
                ) from None
        return _clients[key]

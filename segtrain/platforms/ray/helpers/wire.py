"""Messages between a rank and a helper over one TCP connection.

Each side proves that it knows the key of the connection, before anything else is read. After that,
each message is its length (4 bytes) and its content. An empty message says only that its sender is
alive. Later messages are not signed, so nothing that arrives is unpickled.

A rank sends orders (``order``). For each sample of an order, in their order, the helper answers
with a message (JSON, see ``Reply``), and behind it the image, the mask, and the colors, which the
rank reads straight into its batch.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import pickle
import secrets
import socket
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from segtrain.base.files import cache_folder
from segtrain.data.bucket.store import BucketStore
from segtrain.data.bucket.travel import reduce_for_host
from segtrain.data.index.entries import Entries
from segtrain.data.shards.index import ShardIndex
from segtrain.data.stages import Cost

NONCE = 32  # bytes
PULSE_S = 0.5  # seconds between two signs of life of a helper that is making a sample
_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 20  # bytes of a message
_SMALL = 4096  # bytes of a mask below which packing does not pay


class WireError(Exception):
    """What arrived is not what the protocol allows."""


def frame(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


def read_exactly(connection: socket.socket, view: memoryview, limit_s: float | None = None) -> None:
    """Fill ``view``. Raises EOFError at the end of the connection, TimeoutError after ``limit_s``
    seconds.
    """
    until = None if limit_s is None else time.monotonic() + limit_s
    while view:
        if until is not None:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
        count = connection.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]


def read_message(connection: socket.socket) -> bytes:
    """The next message, on a connection without a time limit."""
    head = bytearray(_LENGTH.size)
    read_exactly(connection, memoryview(head))
    return _content(head, lambda view: read_exactly(connection, view))


def _content(head: bytearray, read: Callable[[memoryview], None]) -> bytes:
    (length,) = _LENGTH.unpack(head)
    if length > _LONGEST:
        raise WireError(f"a message of {length} bytes")
    content = bytearray(length)
    read(memoryview(content))
    return bytes(content)


def _proof(key: bytes, role: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, role + nonce, "sha256")


def greet(connection: socket.socket, key: bytes, role: bytes, other: bytes, limit_s: float) -> bool:
    """Whether the other side knows the key, as ``other``. It learns the same of this side, which is
    ``role``.
    """
    mine, theirs, proof = secrets.token_bytes(NONCE), bytearray(NONCE), bytearray(32)
    connection.settimeout(limit_s)
    connection.sendall(mine)
    read_exactly(connection, memoryview(theirs), limit_s)
    connection.sendall(_proof(key, role, bytes(theirs)))
    read_exactly(connection, memoryview(proof), limit_s)
    return hmac.compare_digest(bytes(proof), _proof(key, other, mine))


class Link(Protocol):
    """A rank's connection to a helper. ``heard``: when something last came, by the monotonic
    clock.
    """

    heard: float

    def order(self, content: bytes) -> None: ...
    def message(self) -> bytes: ...
    def read_into(self, view: memoryview) -> None: ...
    def close(self) -> None: ...


class SocketLink:
    """Raises OSError, EOFError, or WireError, also if ``limit_s`` seconds pass without a sign of
    life.

    Within a message, half of that is the limit: its bytes come without a pause.
    """

    def __init__(self, connection: socket.socket, limit_s: float) -> None:
        self._connection, self._limit_s = connection, limit_s
        self.heard = time.monotonic()

    def order(self, content: bytes) -> None:
        self._connection.settimeout(self._limit_s)
        self._connection.sendall(frame(content))

    def message(self) -> bytes:
        """The next message that is more than a sign of life."""
        while True:
            head = bytearray(_LENGTH.size)
            self._read(memoryview(head), self._limit_s)
            content = _content(head, self.read_into)
            if content:
                return content

    def read_into(self, view: memoryview) -> None:
        self._read(view, self._limit_s / 2)

    def _read(self, view: memoryview, silent_s: float) -> None:
        """Fill ``view``. Raises TimeoutError if nothing comes for ``silent_s`` seconds."""
        while view:
            self._connection.settimeout(silent_s)
            count = self._connection.recv_into(view)
            if not count:
                raise EOFError
            self.heard, view = time.monotonic(), view[count:]

    def close(self) -> None:
        # A thread that waits for the connection wakes up.
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._connection.close()


@dataclass(frozen=True)
class Reply:
    """What a helper says about one sample. ``mask``: bytes of the mask as it travels. ``error``: ""
    if it was made.

    ``files``: see ``helper.file_checksums``.
    """

    error: str
    mask: int
    cost: Cost
    files: Sequence[int] = ()

    def to_bytes(self) -> bytes:
        return json.dumps([self.error[:2000], self.mask, list(self.cost), self.files]).encode()

    @classmethod
    def read(cls, content: bytes) -> Reply:
        try:
            error, mask, cost, files = json.loads(content)
            return cls(str(error), int(mask), Cost(*map(float, cost)), files)  # type: ignore[arg-type]
        except (ValueError, TypeError) as failure:
            raise WireError(f"an answer that cannot be read ({failure})") from None


def order(name: bytes, tasks: Sequence[Any], colors: bool) -> bytes:
    """An order: the samples of ``tasks``, by the maker ``name``, with or without colors for the
    device.
    """
    return json.dumps([name.hex(), [astuple(task) for task in tasks], colors]).encode()


def flat(part: np.ndarray) -> memoryview:
    """The bytes of a contiguous array, to read or write."""
    view: Any = part.reshape(-1)
    return memoryview(view)


def pack_mask(mask: np.ndarray) -> bytes | memoryview:
    """A mask as it travels: compressed, if that makes it shorter."""
    raw = flat(mask)
    packed = zlib.compress(raw, 1) if len(raw) >= _SMALL else raw
    return packed if len(packed) < len(raw) else raw


def read_mask(link: Link, length: int, out: np.ndarray) -> None:
    """Read a mask that travels as ``length`` bytes into ``out``."""
    view = flat(out)
    if length == len(view):
        link.read_into(view)
        return
    if not 0 < length < len(view):
        raise WireError(f"a mask of {length} bytes for {len(view)} pixels")
    packed = bytearray(length)
    link.read_into(memoryview(packed))
    try:
        unpacker = zlib.decompressobj()
        pixels = unpacker.decompress(packed, len(view) + 1)
    except zlib.error as error:
        raise WireError(f"a damaged mask ({error})") from None
    if len(pixels) != len(view) or not unpacker.eof or unpacker.unused_data:
        raise WireError(f"a packed mask that does not end with its {len(view)} pixels")
    view[:] = pixels


class _Travel(pickle.Pickler):
    """Pickles tables with their content: another host does not have the file in the cache that they
    are mapped from.
    """

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Entries):
            return Entries, (thing.image, thing.mask, thing.meta)
        if isinstance(thing, BucketStore):
            return reduce_for_host(thing)
        if isinstance(thing, ShardIndex) and Path(thing.path).is_relative_to(cache_folder()):
            return ShardIndex, tuple(vars(thing).values())
        if isinstance(thing, memoryview):
            return bytes, (bytes(thing),)
        return NotImplemented


def packed(maker: Any) -> tuple[bytes, bytes]:
    """(name, content) of a maker of samples, for other hosts. Equal content has an equal name."""
    stream = io.BytesIO()
    _Travel(stream, protocol=5).dump(maker)
    content = stream.getvalue()
    return hashlib.blake2b(content, digest_size=16).digest(), content

"""The helper's side: it makes the samples that a rank orders. It runs on another host and imports
no torch.

One helper uses one core. The engine (see cluster.py) places it, and tells it where the rank
listens.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import platform
import queue
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from segtrain.base.repeating import repeating
from segtrain.data import stages
from segtrain.data.checksum import checksum
from segtrain.data.pixels import native
from segtrain.data.sample import COLOR_BYTES, Task, files_of
from segtrain.data.workers.memory import keep_freed_memory
from segtrain.errors import SegtrainError
from segtrain.platforms.ray.helpers.fetching import AHEAD, Fetching
from segtrain.platforms.ray.helpers.protocols import HelperRefused
from segtrain.platforms.ray.helpers.wire import (
    PULSE_S,
    Reply,
    flat,
    frame,
    greet,
    pack_mask,
    read_message,
)

_PACKAGES = ("numpy", "opencv-python-headless", "opencv-python", "pillow", "simplejpeg")
_OF_TRANSFORMS = ("albumentations", "albucore", "torch", "torchvision")


def identity(transforms: bool) -> dict[str, str]:
    """What decides the pixels of a sample besides its files: code, decoder, and versions, by name.

    ``transforms``: samples pass through the user's transforms, so the packages of these count too.
    """
    versions = {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "segtrain": _code(),
        "decoder": _decoder(),
    }
    for name in (*_PACKAGES, *(_OF_TRANSFORMS if transforms else ())):
        with contextlib.suppress(metadata.PackageNotFoundError):
            # torch without its kind of CUDA
            versions[name] = metadata.version(name).partition("+")[0]
    return versions


def _code() -> str:
    """A digest of the code that makes samples."""
    package, digest = Path(__file__).parents[3], hashlib.sha256()
    for path in sorted((*package.glob("data/**/*.py"), *package.glob("config/*.py"))):
        digest.update(
            path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )
    return digest.hexdigest()[:12]


def _decoder() -> str:
    """The decoder in use; for the native one, with a digest of its library."""
    library = (
        hashlib.sha256(native.LIBRARY.read_bytes()).hexdigest()[:12] if native.available() else ""
    )
    return f"native {library}" if library else "packages"


def file_checksums(source: Any, index: int) -> list[int]:
    """Checksums of the stored image and mask of a sample, which the rank compares with those of its
    own files.

    Zeros for a bucket, whose etags are compared, and for samples that come from code.
    """
    if not source.store.local or not source.stored:
        return [0, 0]
    record = source.record(index)
    return [checksum(memoryview(part).cast("B")) for part in (record.image, record.mask)]


def refuse_other_files(source: Any, index: int, checksums: Iterable[int]) -> None:
    """Raise HelperRefused unless the ``checksums`` that a helper has sent are those of the rank's
    files.
    """
    if list(checksums) != file_checksums(source, index):
        message = (
            f"a helping host has another version of {files_of(source, index)}: copy the data "
            "set there again"
        )
        raise HelperRefused(message, code="helper-data-differs")


@dataclass(frozen=True)
class Order:
    """Samples to make. ``fetching``: their bytes, if they come from a bucket."""

    maker: Any
    tasks: Sequence[Any]
    colors: bool
    fetching: Fetching


class Helper:
    """Makes samples with the makers that it has been given."""

    def __init__(self) -> None:
        cv2.setNumThreads(1)
        keep_freed_memory()
        self.makers: dict[bytes, Any] = {}
        self._threads = ThreadPoolExecutor(2 * AHEAD, "helper-fetch")
        self._pixels, self._mask, self._colors = (np.empty(0, np.uint8) for _ in range(3))

    def meet(self, name: bytes, content: bytes, folder: str, path: list[str]) -> None:
        """Keep a maker. ``folder`` and ``path``: the rank's working folder and import path, for
        relative names.

        Raises HelperRefused where this host's files cannot build it: without the file of
        ``data.transforms``, for example.
        """
        with contextlib.suppress(OSError):
            os.chdir(folder)
        sys.path += [entry for entry in path if entry not in sys.path]
        try:
            self.makers[name] = pickle.loads(content)
        except (SegtrainError, ImportError) as error:
            raise HelperRefused(f"it cannot make samples with its own files: {error}") from None

    def begin(self, message: bytes) -> Order:
        """Read an order, and begin to fetch for it. Any thread may call this while another one
        makes samples.
        """
        name, numbers, colors = json.loads(message)
        maker = self.makers[bytes.fromhex(name)]
        tasks = [
            Task(index, epoch, tuple(crop), tuple(scale)) for index, epoch, crop, scale in numbers
        ]
        return Order(maker, tasks, colors, Fetching(maker.source, tasks, self._threads))

    def answers(self, order: Order) -> Iterator[list[Any]]:
        """The buffers to send for each sample of an order."""
        for task in order.tasks:
            yield self._made(order, task, order.colors)

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _made(self, order: Order, task: Any, colors: bool) -> list[Any]:
        dtype = order.maker.source.labels.mask_dtype
        if (self._mask.shape, self._mask.dtype) != (task.crop, dtype):
            self._pixels = np.empty((*task.crop, 3), np.uint8)
            self._mask = np.empty(task.crop, dtype)
            self._colors = np.empty(COLOR_BYTES, np.uint8)
        parts = [self._pixels, self._mask, *([self._colors] if colors else [])]
        stages.begin()
        try:
            order.fetching.next()
            order.maker(task, *parts)
            files = file_checksums(order.maker.source, task.index)
        except (Exception, SystemExit) as error:
            return [frame(Reply(str(error) or type(error).__name__, 0, stages.end()).to_bytes())]
        mask, rest = (
            pack_mask(self._mask.view(np.uint8)),
            [flat(part) for part in (parts[0], *parts[2:])],
        )
        return [
            frame(Reply("", len(mask), stages.end(), files).to_bytes()),
            rest[0],
            mask,
            *rest[1:],
        ]


def serve(helper: Helper, address: tuple[str, int], key: bytes, limit_s: float) -> None:
    """Connect to a rank, and make what it orders until the connection ends. Raises OSError if the
    rank is not there.
    """
    connection = socket.create_connection(address, timeout=limit_s)
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not greet(connection, key, b"helper", b"rank", limit_s):
            return
        connection.settimeout(None)
        orders: queue.Queue[Order | None] = queue.Queue()

        def listen() -> None:
            try:
                with contextlib.suppress(OSError, EOFError):
                    while True:
                        orders.put(helper.begin(read_message(connection)))
            finally:
                orders.put(None)

        threading.Thread(target=listen, daemon=True, name="segtrain-helper-orders").start()
        with _alive(connection) as sending, contextlib.suppress(OSError, EOFError):
            while (order := orders.get()) is not None:
                for buffers in helper.answers(order):
                    with sending:
                        for buffer in buffers:
                            connection.sendall(buffer)


@contextlib.contextmanager
def _alive(connection: socket.socket) -> Iterator[threading.Lock]:
    """Send signs of life. Yields the lock to hold while sending anything else."""
    sending = threading.Lock()

    def pulse() -> None:
        with contextlib.suppress(OSError), sending:
            connection.sendall(frame(b""))

    with repeating(pulse, PULSE_S, "segtrain-helper-alive"):
        yield sending

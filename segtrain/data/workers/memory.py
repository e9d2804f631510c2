"""Memory of batches: a few blocks of bytes that are allocated once and reused, so that memory stays
flat.

Blocks that worker processes write are anonymous files in memory (memfd_create), mapped by both
sides: they need no room in /dev/shm, and none outlives its processes, however they end. On
platforms without memfd_create, the free space in /dev/shm is checked first. Then each block is an
unnamed temporary file there.
With a GPU, each block is page-locked once.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
import sys
import tempfile
import weakref
from typing import Any

import numpy as np

from segtrain.errors import ConfigError, DataError

PAGE = 4096
SHM = "/dev/shm"
_numbers = itertools.count()


def keep_freed_memory() -> None:
    """Let this process reuse freed memory of up to 128 MiB instead of giving it back to the system
    at once.

    A transform allocates arrays of some 100 kB to 10 MB for each sample. When their pages go back
    and forth, the system clears all of them again: measured with ten blurs of torchvision, that was
    up to a third of the CPU time. It does nothing without the C library's ``mallopt``.
    """
    import ctypes

    # M_MMAP_THRESHOLD at its largest, M_TRIM_THRESHOLD: mallopt(3)
    limits = {-3: 32 << 20, -1: 128 << 20}
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        for name, value in limits.items():
            library.mallopt(name, value)


class SharedBlock:
    """A block of memory. ``array``: uint8 [size]. ``fd``: file that another process maps; -1 if not
    shared.
    """

    def __init__(self, size: int, shared: bool, pin: bool) -> None:
        self.size = -(-size // PAGE) * PAGE
        self.number = next(_numbers)
        self.alive = True  # false: processes that have mapped it should unmap it
        self.fd = -1
        self._locked = False
        if shared:
            self.fd = _shared_file(self.size)
            self.array = np.frombuffer(mmap.mmap(self.fd, self.size), np.uint8)
            if pin:
                _cuda("cudaHostRegister", self.array.ctypes.data, self.size, 0)
                self._locked = True
        elif pin:
            import torch

            self.array = torch.empty(self.size, dtype=torch.uint8, pin_memory=True).numpy()
        else:
            self.array = np.empty(self.size, np.uint8)

    def part(self, offset: int, shape: tuple[int, ...]) -> np.ndarray:
        """A uint8 view, which keeps the memory alive even after ``close``."""
        return self.array[offset : offset + math.prod(shape)].reshape(shape)

    def close(self) -> None:
        """Release the file and the page lock. Existing views stay valid."""
        self.alive = False
        if self._locked:
            import torch

            torch.cuda.synchronize()
            _cuda("cudaHostUnregister", self.array.ctypes.data)
            self._locked = False
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Ring:
    """Blocks that are reused. There are never more of them than the largest number that was in use
    at the same time.

    If all free blocks are too small, a larger block replaces one of them.
    """

    def __init__(self, shared: bool = False, pin: bool = False) -> None:
        self.shared, self.pin = shared, pin
        self._free: list[SharedBlock] = []
        self._all: list[SharedBlock] = []

    def take(self, size: int) -> SharedBlock:
        """A block of at least ``size`` bytes with arbitrary content. Raises DataError or
        ConfigError on failure.
        """
        fit = min((b for b in self._free if b.size >= size), key=lambda b: b.size, default=None)
        if fit is not None:
            self._free.remove(fit)
            return fit
        if self._free:
            small = self._free.pop()
            small.close()
            self._all.remove(small)
        block = SharedBlock(size, self.shared, self.pin)
        self._all.append(block)
        return block

    def give(self, block: SharedBlock) -> None:
        """Return a block that is no longer read or written."""
        self._free.append(block)

    def lend(self, block: SharedBlock, views: list[np.ndarray]) -> None:
        """Return ``block`` when none of ``views``, and no tensor that was made of one, exists.
        Empties the list.
        """
        left = list(range(len(views)))

        def gone() -> None:
            if left.pop() == 0:  # only one of several threads sees the last number
                self.give(block)

        for view in views:
            weakref.finalize(view, gone).atexit = False
        views.clear()

    def close(self) -> None:
        for block in self._all:
            block.close()
        self._all, self._free = [], []


def _shared_file(size: int) -> int:
    """An open, unnamed file of ``size`` bytes of memory. Raises DataError."""
    try:
        fd = os.memfd_create("segtrain-batch", os.MFD_CLOEXEC)
    # another platform, an old kernel, or a sandbox that forbids it
    except (AttributeError, OSError):
        fd = _temporary_file(size)
    os.ftruncate(fd, size)
    return fd


def _temporary_file(size: int) -> int:
    """An open, unnamed file in /dev/shm, or on platforms without it, in the folder for temporary
    files.
    """
    folder = SHM if os.path.isdir(SHM) else None
    if folder:
        room = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        if room < size:  # a write beyond the free space would kill the process with SIGBUS
            raise DataError(
                f"{SHM} has {room / 2**20:.1f} MiB left, but a batch needs "
                f"{size / 2**20:.1f} MiB: give the "
                "container more (docker run --shm-size=2g), lower data.prefetch, or set "
                "data.worker_kind=thread",
                code="shm-too-small",
                folder=SHM,
                found=room,
                expected=size,
            )
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.dup(file.fileno())


def _cuda(name: str, *arguments: int) -> None:
    import torch

    runtime: Any = torch.cuda.cudart()
    error = getattr(runtime, name)(*arguments)
    code = int(error[0] if isinstance(error, tuple) else error)
    if code:
        fix = "raise the limit of locked memory (ulimit -l), or set data.worker_kind=thread"
        message = f"{name} of a batch failed with CUDA error {code}: {fix}"
        raise ConfigError(message, code="page-lock-failed", call=name, found=code)

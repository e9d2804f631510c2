"""Copies of a run's state from the GPU to page-locked memory, while training goes on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from segtrain.data.workers.memory import SharedBlock
from segtrain.observe.journal import Say
from segtrain.parallel.model import whole_cpu

CHUNK = 64 << 20  # bytes that are page-locked at a time; torch rounds them up to a power of two
ALIGNED = 64  # bytes


def copy_to_host(value: Tensor) -> tuple[Tensor, Any]:
    """A copy of ``value`` on the host, and the event after which it is there (None on a CPU, where
    it is there now).
    """
    if value.device.type != "cuda":
        return value, None
    home = torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(
        value, non_blocking=True
    )
    arrived = torch.cuda.Event()
    arrived.record()
    return home, arrived


class HostCopies:
    """Copies tensors to page-locked memory on a CUDA stream of its own: ``take`` each of them, then
    ``start``.

    The next update of the weights must come after ``before_update``, which lets the GPU, not the
    host, wait for the copies. A tensor that changes between updates must be cloned before it is
    taken. The memory is as large as all taken tensors, and is used again after each ``start``, so
    the previous copies must not be needed any more. If the host cannot lock so much memory, the
    remaining tensors are copied at once, which waits, and ``say`` is called once.
    """

    def __init__(self, device: torch.device, say: Say) -> None:
        self._device, self._say, self._stream = device, say, torch.cuda.Stream(device)
        self._chunks: list[SharedBlock] = []
        self._chunk = self._used = 0  # the chunk that is being filled, and its bytes in use
        self._short = False
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._copied: Any = None  # the event after the last copy
        self._awaited = True  # whether the current stream waits for that event

    def take(self, value: Any) -> Any:
        """The copy, whose values are there when ``wait`` returns.

        A sharded tensor is gathered and copied at once, because all of them together may not fit
        the GPU.
        """
        if (
            not isinstance(value, Tensor)
            or value.device != self._device
            or hasattr(value, "full_tensor")
        ):
            return whole_cpu(value)
        room = self._room(value.numel() * value.element_size())
        if room is None:
            return whole_cpu(value)
        strides = torch.empty_like(value, device="meta").stride()
        home = room.view(value.dtype).as_strided(value.shape, strides)
        self._pairs.append((home, value.detach()))
        return home

    def start(self) -> None:
        """Begin the copies of all tensors taken since the last call."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_event(current.record_event())
        with torch.cuda.stream(self._stream):
            for home, source in self._pairs:
                home.copy_(source, non_blocking=True)
                source.record_stream(self._stream)
        self._copied, self._awaited = self._stream.record_event(), False
        self._pairs = []
        self._chunk = 0
        self._used = 0

    def before_update(self) -> None:
        """Let the GPU finish the copies before what is launched next. The host does not wait."""
        if not self._awaited:
            torch.cuda.current_stream(self._device).wait_event(self._copied)
            self._awaited = True

    def wait(self) -> None:
        """Wait until the copies have ended. May be called in another thread."""
        self._copied.synchronize()

    def _room(self, size: int) -> Tensor | None:
        """``size`` bytes of page-locked memory, a storage of their own; None if there is not so
        much.
        """
        while True:
            while self._chunk < len(self._chunks):
                chunk = self._chunks[self._chunk]
                if self._used + size <= chunk.size:
                    begin = self._used
                    self._used = self._used + -(-size // ALIGNED) * ALIGNED
                    return torch.from_numpy(chunk.array[begin : begin + size])
                self._chunk, self._used = self._chunk + 1, 0
            if self._short or not self._grown(max(size, CHUNK)):
                return None

    def _grown(self, size: int) -> bool:
        try:
            self._chunks.append(SharedBlock(size, shared=False, pin=True))
            return True
        except RuntimeError as error:
            self._short = True
            held = sum(chunk.size for chunk in self._chunks) / 2**20
            self._say(
                f"warning: only {held:.0f} MiB of memory could be page-locked for checkpoints "
                f"({str(error).splitlines()[0]}): training waits while the rest of each "
                "checkpoint is copied"
            )
            return False

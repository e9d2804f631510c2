"""Copies the next batch to the GPU during a step, on a separate CUDA stream, from page-locked
memory.

On the CPU nothing is copied: the loader's tensors are used directly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


class CudaCopier:
    """Copies on a side stream of ``device``. The source must be page-locked, or the copy blocks the
    host.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)

    def copy(self, tensor: Tensor) -> Tensor:
        """Start a copy; returns the tensor on the device, which holds the values when the copy has
        ended.
        """
        # the caching allocator assigns the memory to this stream
        with torch.cuda.stream(self.stream):
            return tensor.to(self.device, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        """An event after all copies so far; its ``synchronize()`` waits until they have ended."""
        return self.stream.record_event()

    def hand_over(self, tensors: list[Tensor], mark: torch.cuda.Event) -> None:
        """Make the current stream wait for the event, and keep the tensors' memory until the stream
        has used it.
        """
        current = torch.cuda.current_stream(self.device)
        current.wait_event(mark)
        for tensor in tensors:
            tensor.record_stream(current)


class DeviceFeed:
    """Iterates over pairs: an item of the loader, and the same item with its tensors on the device.

    Call ``ahead`` after a step is launched: the next batch, if it is ready, is copied during the
    step. The loader then reuses the host tensors of the last item, so do not read them after
    ``ahead``. The feed waits until a copy has ended before it requests another batch from the
    loader.
    """

    def __init__(
        self, loader: Any, device: torch.device | str, copier: CudaCopier | None = None
    ) -> None:
        device = torch.device(device)
        self._ready: Callable[[], bool] = loader.ready
        self._items = iter(loader)
        self._copier = copier or (CudaCopier(device) if device.type == "cuda" else None)
        self._copied: Any = None  # the event after the last copy
        self._next: tuple[Any, Any] | None = None

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self

    def __next__(self) -> tuple[Any, Any]:
        item, on_device = self._next or self._take()
        self._next = None
        if self._copier is not None:
            self._copier.hand_over(_tensors(on_device), self._copied)
        return item, on_device

    def ahead(self) -> None:
        """Start to copy the next batch if it is ready. Never waits for the loader."""
        if self._copier is not None and self._next is None and self._ready():
            self._next = self._take()

    def _take(self) -> tuple[Any, Any]:
        if self._copied is not None:
            self._copied.synchronize()
        item = next(self._items)
        if self._copier is None:
            return item, item
        on_device = _moved(item, self._copier.copy)
        self._copied = self._copier.mark()
        return item, on_device


def _moved(item: Any, copy: Callable[[Tensor], Tensor]) -> Any:
    """The same lists, tuples, and dataclasses with each tensor copied."""
    if isinstance(item, Tensor):
        return copy(item)
    if isinstance(item, (list, tuple)):
        return type(item)(_moved(part, copy) for part in item)
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        parts = {f.name: _moved(getattr(item, f.name), copy) for f in dataclasses.fields(item)}
        return dataclasses.replace(item, **parts)
    return item


def _tensors(item: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _moved(item, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found

"""When each gradient is ready in the backward pass, measured in the second step of a run for
`segtrain plan`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

UNSHARDED = ("single", "ddp", "smddp")  # strategies whose parameters are those of the network


class GradientTimes:
    """Hooks on the network of one rank for one step. Its last micro-batch counts.

    On a GPU, the marks are events on its stream, for which the host never waits. On a CPU, they are
    the CPU time of the thread, which other programs do not change.
    """

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self._mark: Callable[[], Any] = _event if device.type == "cuda" else time.thread_time
        self._begin: Any = None
        # id of a parameter -> bytes and mark, in the order of the pass
        self._marks: dict[int, tuple[float, Any]] = {}
        self._handles = [network.register_forward_hook(self._forward_done)]
        for parameter in network.parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._made))

    def _forward_done(self, *_: Any) -> None:
        self._begin = self._mark()
        self._marks.clear()

    def _made(self, parameter: Tensor) -> None:
        self._marks[id(parameter)] = (
            float(parameter.numel() * parameter.element_size()),
            self._mark(),
        )

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def rows(self) -> dict[str, list[float]] | None:
        """``bytes`` of each gradient, and the share of the backward pass after which it is
        ``ready``.

        None: the device has not come that far. Empty if nothing is known.
        """
        marks = [mark for _, mark in self._marks.values()]
        if marks and not _passed(marks[-1]):
            return None
        whole = _between(self._begin, marks[-1]) if marks else 0.0
        if whole <= 0:
            return {}
        ready = [min(1.0, round(_between(self._begin, mark) / whole, 4)) for mark in marks]
        return {"bytes": [size for size, _ in self._marks.values()], "ready": ready}


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _passed(mark: Any) -> bool:
    return isinstance(mark, (int, float)) or bool(mark.query())


def _between(begin: Any, end: Any) -> float:
    return float(end - begin) if isinstance(end, (int, float)) else float(begin.elapsed_time(end))

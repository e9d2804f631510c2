"""How do all ranks come to stop after the same step? Numbers of each rank are summed with the loss's totals, and read without a wait."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from segtrain.parallel.strategy import Strategy


class Votes:
    """A few numbers of each rank that travel in the one collective of a step (``step.gradients``) and come back summed.

    On the CPU the sums of a step are read before the next one. On a GPU they are read two steps late, from page-locked memory: by
    then they have arrived, and the loop launches a step while the one before still computes. A wait for them means that the host
    is two steps ahead, and it need not be further. The delay is the same on all ranks: NCCL and SMDDP mean a GPU on each, and
    gloo, whose sums a host waits for anyway, may mix devices.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._device, self._on_gpu = strategy.device, strategy.device.type == "cuda"
        self.delay = 2 if self._on_gpu and strategy.backend != "gloo" else 1
        self._coming: deque[tuple[Tensor, Any]] = deque()

    def own(self, *numbers: float) -> Tensor:
        """This rank's numbers, float64 on the device."""
        here = torch.empty(len(numbers), dtype=torch.float64, pin_memory=self._on_gpu)
        for place, number in enumerate(numbers):
            here[place] = number
        return here.to(self._device, non_blocking=True)

    def send_home(self, sums: Tensor) -> None:
        """Once a step, with what came back: begin to copy it to the host."""
        if not self._on_gpu:
            self._coming.append((sums, None))
            return
        home = torch.empty(len(sums), dtype=sums.dtype, pin_memory=True)
        home.copy_(sums, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._coming.append((home, arrived))

    def stop(self) -> bool:
        """Whether the first number was above zero on any rank, ``delay`` steps ago. Once before each step."""
        if len(self._coming) < self.delay:
            return False
        home, arrived = self._coming.popleft()
        if arrived is not None:
            arrived.synchronize()
        return bool(home[0] > 0)

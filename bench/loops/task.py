"""What all loops share: the network, the batches, the steps, and how a step is timed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from gpu_stages.timing import forget, peak_gib, synchronize
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

IGNORE = 255
LR = 1e-4  # of AdamW, in every loop
DISTINCT = 2  # batches, used in turns


@dataclass(frozen=True)
class Case:
    """A network of SMP, and the size of a batch."""

    name: str
    arch: str
    encoder: str
    classes: int
    images: int
    size: tuple[int, int]

    @property
    def title(self) -> str:
        return f"{self.name}, {self.classes} classes, {self.images} x {self.size[0]}x{self.size[1]}"


@dataclass(frozen=True)
class Task:
    """One measurement: ``warm`` steps that do not count, then the others of ``steps``.

    ``amp``: 16-bit arithmetic where the device has units for it.
    """

    case: Case
    network: nn.Module
    device: str
    amp: bool
    warm: int
    steps: int

    def batches(self) -> DataLoader[Any]:
        """A batch for each step: images float32 (n, 3, H, W), normalized, masks int64 (n, H, W), on
        the device.
        """
        return DataLoader(_Batches(self), batch_size=None)


class _Batches(Dataset[Any]):
    def __init__(self, task: Task) -> None:
        case, self._steps = task.case, task.steps
        generator = torch.Generator(task.device).manual_seed(0)
        shape = (case.images, *case.size)
        # Random values, because a GPU computes faster on zeros.
        self._made = [
            (
                torch.randn(case.images, 3, *case.size, device=task.device, generator=generator),
                torch.randint(0, case.classes, shape, device=task.device, generator=generator),
            )
            for _ in range(DISTINCT)
        ]

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index >= self._steps:
            raise IndexError(index)
        return self._made[index % DISTINCT]


def loss_of(logits: Tensor, masks: Tensor) -> Tensor:
    return cross_entropy(logits, masks, ignore_index=IGNORE)


def smp_network(case: Case) -> nn.Module:
    """The stock network of segmentation-models-pytorch, from scratch."""
    import segmentation_models_pytorch as smp

    torch.manual_seed(0)
    return smp.create_model(case.arch, case.encoder, encoder_weights=None, classes=case.classes)  # type: ignore[no-any-return]


class Stopwatch:
    """``mark`` of a loop. Waits for the device at the end of the last step that does not count, and
    of the last one.
    """

    def __init__(self, device: str, warm: int, steps: int) -> None:
        self._device, self._warm, self._steps, self._step = device, warm, steps, 0
        self._begin = self.seconds = self.peak_gib = float("nan")

    def __call__(self, steps: int = 1) -> None:
        before, self._step = self._step, self._step + steps
        for step in (self._warm, self._steps):
            if before < step <= self._step:
                synchronize(self._device)
                now = time.perf_counter()
                if step == self._steps:
                    self.seconds, self.peak_gib = now - self._begin, peak_gib(self._device)
                else:
                    self._begin = now
                    if self._device == "cuda":
                        torch.cuda.reset_peak_memory_stats()


def fresh(device: str) -> None:
    """The state that a user's process begins with, and no memory of the loop before."""
    forget(device)
    # as in ours: its trials take a minute per case and most of the memory
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = False

"""Composer's Trainer in amp_bf16, without loggers, checkpoints, metrics, and algorithms."""

from __future__ import annotations

from typing import Any

import torch
from composer import Callback, ComposerModel, Trainer
from torch import Tensor, nn

from loops.task import LR, Stopwatch, Task, loss_of


class Segmenter(ComposerModel):  # type: ignore[misc]
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.net(batch[0])  # type: ignore[no-any-return]

    def loss(self, outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return loss_of(outputs, batch[1])


class MarkSteps(Callback):  # type: ignore[misc]
    def __init__(self, mark: Stopwatch) -> None:
        self.mark = mark

    def batch_end(self, *_: Any) -> None:
        self.mark()


def run(task: Task, mark: Stopwatch) -> None:
    model = Segmenter(task.network.train())
    trainer = Trainer(
        model=model,
        train_dataloader=task.batches(),
        max_duration=f"{task.steps}ba",
        callbacks=[MarkSteps(mark)],
        optimizers=torch.optim.AdamW(model.parameters(), lr=LR),
        device="gpu" if task.device == "cuda" else "cpu",
        device_train_microbatch_size=task.case.images,
        precision="amp_bf16" if task.amp else "fp32",
        progress_bar=False,
        log_to_console=False,
    )
    trainer.fit()
    trainer.close()

"""Lightning's Trainer with an SMP network in bf16-mixed, without loggers, checkpoints, and
metrics.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

from loops.task import LR, Stopwatch, Task, loss_of

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl


class Segmenter(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return loss_of(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=LR)


class MarkSteps(pl.Callback):  # type: ignore[misc]
    def __init__(self, mark: Stopwatch) -> None:
        self.mark = mark

    def on_train_batch_end(self, *_: Any) -> None:
        self.mark()


def run(task: Task, mark: Stopwatch) -> None:
    logging.getLogger(pl.__name__).setLevel(logging.ERROR)
    trainer = pl.Trainer(
        accelerator="gpu" if task.device == "cuda" else "cpu",
        devices=1,
        max_steps=task.steps,
        logger=False,
        precision="bf16-mixed" if task.amp else "32-true",
        callbacks=[MarkSteps(mark)],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        benchmark=True,
    )
    trainer.fit(Segmenter(task.network.train()), train_dataloaders=task.batches())

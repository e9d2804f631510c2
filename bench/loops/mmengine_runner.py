"""mmengine's Runner with its AmpOptimWrapper in bfloat16, in an iteration-based loop."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import Tensor, nn

from loops.task import LR, Stopwatch, Task, loss_of


class Segmenter(BaseModel):  # type: ignore[misc]
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor, masks: Tensor, mode: str = "tensor") -> Any:
        logits = self.net(images)
        return {"loss": loss_of(logits, masks)} if mode == "loss" else logits


class MarkSteps(Hook):  # type: ignore[misc]
    priority = "LOWEST"

    def __init__(self, mark: Stopwatch) -> None:
        self.mark = mark

    def after_train_iter(self, *_: Any, **__: Any) -> None:
        self.mark()


def run(task: Task, mark: Stopwatch) -> None:
    optimizer = torch.optim.AdamW(task.network.to(task.device).parameters(), lr=LR)
    # bfloat16 needs no scale
    amp = {"type": "AmpOptimWrapper", "dtype": "bfloat16", "loss_scale": 1.0}
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(
            model=Segmenter(task.network),
            work_dir=folder,
            train_dataloader=task.batches(),
            log_level="ERROR",
            train_cfg={"by_epoch": False, "max_iters": task.steps, "val_interval": 10**9},
            optim_wrapper={
                **(amp if task.amp and task.device == "cuda" else {"type": "OptimWrapper"}),
                "optimizer": optimizer,
            },
            default_hooks={
                "logger": {"type": "LoggerHook", "interval": 50, "log_metric_by_epoch": False},
                "checkpoint": None,
                "sampler_seed": None,
            },
            custom_hooks=[MarkSteps(mark)],
            experiment_name=f"run-{id(mark)}",
            env_cfg={"cudnn_benchmark": False},
        )
        runner.train()

"""The loop of torchvision's segmentation reference with --amp.

Its scripts are in torchvision's repository and in no package, so their structure is rebuilt here in
own words: a model that answers with a dict, autocast to float16 with a gradient scaler, a schedule
that is stepped in each iteration, and a logger that reads the loss in each step. A CPU has no
scaler, so there it computes in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from loops.task import LR, Stopwatch, Task, loss_of


class Named(nn.Module):
    """torchvision's segmentation models answer with ``{"out": logits}``."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"out": self.net(images)}


def run(task: Task, mark: Stopwatch) -> None:
    amp = task.amp and task.device == "cuda"
    model, losses = Named(task.network).to(task.device).train(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    scaler = torch.amp.GradScaler(task.device) if amp else None
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=10_000, power=0.9)
    for images, masks in task.batches():
        with torch.autocast(task.device, torch.float16 if amp else torch.bfloat16, enabled=amp):
            loss = sum(loss_of(logits, masks) for logits in model(images).values())
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        schedule.step()
        losses.append(loss.item())
        mark()

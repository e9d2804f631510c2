"""Loops without a library: what a tutorial shows, and one with what torch offers for speed."""

from __future__ import annotations

import torch

from loops.task import LR, Stopwatch, Task, loss_of


def run(task: Task, mark: Stopwatch) -> None:
    """Autocast to bfloat16, cross-entropy on the logits of full size, AdamW."""
    _train(task, mark, torch.contiguous_format)


def run_tuned(task: Task, mark: Stopwatch) -> None:
    """The same with channels_last and fused AdamW."""
    _train(task, mark, torch.channels_last, fused=True)


def _train(task: Task, mark: Stopwatch, memory: torch.memory_format, **options: bool) -> None:
    model = task.network.to(task.device, memory_format=memory).train()  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, **options)  # type: ignore[arg-type]
    for images, masks in task.batches():
        with torch.autocast(task.device, torch.bfloat16, enabled=task.amp):
            loss = loss_of(model(images.to(memory_format=memory)), masks)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        mark()

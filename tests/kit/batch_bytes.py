"""The bytes of the batches of a loader, and its threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

import torch

from segtrain.data.train_loader import Batch


def kept(steps: Iterable[list[Batch]]) -> list[list[Batch]]:
    """Batches with pixels of their own, since the loader uses its memory again."""
    return [
        [
            replace(
                batch,
                **{
                    name: part.clone()
                    for name, part in vars(batch).items()
                    if isinstance(part, torch.Tensor)
                },
            )
            for batch in parts
        ]
        for parts in steps
    ]


def content(steps: list[list]) -> list[bytes]:
    """Every byte of every sample, in the order of its step."""
    return [
        batch.images[k].numpy().tobytes()
        + batch.masks[k].numpy().tobytes()
        + bytes(f"{batch.epochs[k]}/{batch.indices[k]}", "ascii")
        for parts in steps
        for batch in parts
        for k in range(len(batch.indices))
    ]


def threads() -> int:
    return sum(thread.name.startswith("segtrain-data") for thread in threading.enumerate())

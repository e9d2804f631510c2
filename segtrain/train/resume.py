"""From which checkpoint do all ranks go on? From rank 0's, whatever lies on the other hosts: no shared file system is assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from segtrain import checkpoint
from segtrain.errors import CheckpointError
from segtrain.parallel.strategy import Strategy
from segtrain.train.prepare import Prepared

CHUNK = 1 << 24  # bytes that travel at once; a strategy keeps a few of the last ones


def load_shared_checkpoint(
    run_dir: Path, strategy: Strategy, found: Prepared
) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest whole checkpoint in rank 0's ``run_dir``, which it has ``found``, on every rank, and remarks. A collective.

    A rank whose own file is the same one, by its checksums, reads that; the others get the content over the wire.
    """
    if strategy.world_size == 1:
        return found.state, found.remarks
    path, saved, remarks = found.path, found.state, found.remarks
    offer = strategy.broadcast_object([path.name, checkpoint.fingerprint(path)] if path else [])
    remarks += _newer_elsewhere(run_dir, strategy, offer)
    if not offer:
        return None, remarks
    if strategy.rank != 0:
        saved = _same_here(run_dir / "checkpoints" / offer[0], offer[1])
    without = int(strategy.reduce(torch.tensor([int(saved is None)], device=strategy.device)))
    if without:
        content = path.read_bytes() if path else b""
        received = _broadcast(content, strategy, wanted=saved is None)
        if saved is None:
            saved = checkpoint.read(Path(offer[0]), received)
        remarks.append(
            f"{offer[0]} ({len(content) / 2**20:.1f} MiB) is not on the hosts of {without} of {strategy.world_size} ranks, or an "
            "other one is: they have rank 0's, over the network"
        )
    return saved, remarks


def _same_here(path: Path, fingerprint: str) -> dict[str, Any] | None:
    try:
        return checkpoint.read(path) if checkpoint.fingerprint(path) == fingerprint else None
    except CheckpointError:
        return None


def _newer_elsewhere(run_dir: Path, strategy: Strategy, offer: list[str]) -> list[str]:
    """Rank 0 decides; but that a host knows more than rank 0's must not stay unsaid."""
    there = checkpoint.checkpoints(run_dir)
    names = torch.zeros(strategy.world_size, dtype=torch.int64, device=strategy.device)
    names[strategy.rank] = checkpoint.step_of(there[-1]) if there else 0
    steps = strategy.reduce(names).tolist()
    ours = checkpoint.step_of(Path(offer[0])) if offer else 0
    newest = max(range(len(steps)), key=steps.__getitem__)
    if newest == 0 or steps[newest] <= ours:
        return []
    return [
        f"the host of rank {newest} has a checkpoint of step {steps[newest]}, rank 0's has "
        + (f"step {ours}: rank 0 decides" if offer else "none that loads: this run begins anew")
        + f"; to go on from the other, stop and copy it to {run_dir / 'checkpoints'} of rank 0's host"
    ]


def _broadcast(content: bytes, strategy: Strategy, wanted: bool) -> bytes:
    """Rank 0's bytes as sums of int32 with zeros: exact, and SMDDP knows no other way. b"" where they are not wanted."""
    length = int(strategy.reduce(torch.tensor([len(content)], device=strategy.device)))
    parts = []
    for begin in range(0, length, CHUNK):
        size = min(CHUNK, length - begin)
        words = np.zeros(-(-size // 4), np.int32)
        if strategy.rank == 0:
            words.view(np.uint8)[:size] = np.frombuffer(content, np.uint8, size, begin)
        whole = strategy.reduce(torch.from_numpy(words).to(strategy.device))
        if wanted:
            parts.append(whole.cpu().numpy().tobytes()[:size])
    return b"".join(parts)

"""The checkpoint that a run resumes from: rank 0's newest one, on every rank. No shared file system
is assumed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from segtrain.errors import CheckpointError
from segtrain.parallel.collective import broadcast_bytes, table
from segtrain.parallel.strategy import Strategy
from segtrain.runfolder import checkpoint


def load_shared_checkpoint(
    run_dir: Path, strategy: Strategy, newest: checkpoint.NewestCheckpoint
) -> tuple[dict[str, Any] | None, list[str]]:
    """Give every rank the ``newest`` checkpoint of rank 0. Returns it, and remarks. A collective.

    A rank reads its own file if this has the same checksums. Other ranks receive rank 0's file over
    the network.
    """
    path = newest.path
    saved = newest.state
    remarks = list(newest.remarks)
    if strategy.world_size == 1:
        return saved, remarks
    offer = strategy.broadcast_object([path.name, checkpoint.fingerprint(path)] if path else [])
    remarks += _newer_elsewhere(run_dir, strategy, offer)
    if not offer:
        return None, remarks
    if strategy.rank != 0:
        saved = _local_copy(run_dir / "checkpoints" / offer[0], offer[1])
    without = int(strategy.reduce(torch.tensor([int(saved is None)], device=strategy.device)))
    if without:
        content = path.read_bytes() if path else b""
        received = broadcast_bytes(strategy, 0, content, wanted=saved is None)
        if saved is None:
            saved = checkpoint.read(Path(offer[0]), received)
        remarks.append(
            f"{offer[0]} ({len(content) / 2**20:.1f} MiB) is missing or different on the hosts of "
            f"{without} of {strategy.world_size} ranks: they received rank 0's copy over the "
            "network"
        )
    return saved, remarks


def _local_copy(path: Path, fingerprint: str) -> dict[str, Any] | None:
    try:
        return checkpoint.read(path) if checkpoint.fingerprint(path) == fingerprint else None
    except CheckpointError:
        return None


def _newer_elsewhere(run_dir: Path, strategy: Strategy, offer: list[str]) -> list[str]:
    """A remark if another host has a newer checkpoint than rank 0's host, whose checkpoint is used.
    A collective.
    """
    local = checkpoint.checkpoints(run_dir)
    mine = torch.tensor([checkpoint.step_of(local[-1]) if local else 0], device=strategy.device)
    steps = table(strategy, mine).flatten().tolist()
    ours = checkpoint.step_of(Path(offer[0])) if offer else 0
    newest = max(range(len(steps)), key=steps.__getitem__)
    if newest == 0 or steps[newest] <= ours:
        return []
    start = (
        f"step {ours}, which is used"
        if offer
        else "none that loads, so this run starts from the beginning"
    )
    return [
        f"the host of rank {newest} has a checkpoint of step {steps[newest]}, but rank 0's host "
        f"has {start}; to continue from the newer one, stop and copy it to "
        f"{run_dir / 'checkpoints'} on rank 0's host"
    ]

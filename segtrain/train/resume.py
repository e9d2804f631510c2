"""The checkpoint that all ranks resume from: that of rank 0. No shared file system is assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from segtrain import checkpoint
from segtrain.config import Config
from segtrain.errors import CheckpointError
from segtrain.parallel.collective import broadcast_bytes, table
from segtrain.parallel.strategy import Strategy
from segtrain.train.learner import Learner, restore_learner
from segtrain.train.prepare import Prepared
from segtrain.train.state import State, on_rank_0


def restored(
    config: Config, learner: Learner, strategy: Strategy, found: Prepared, resumes: bool
) -> tuple[State, dict[str, Any] | None, list[str]]:
    """Load what rank 0 has ``found``: the state, the checkpoint (None: the run begins), remarks. A collective."""
    run_dir, begun = config.run_dir, config.model.init or config.model.encoder_weights
    saved, remarks = load_shared_checkpoint(run_dir, strategy, found) if config.checkpoint.resume else (None, [])
    if saved is None:
        if resumes and begun:
            raise CheckpointError(
                f"no checkpoint in {run_dir} can be loaded ({'; '.join(remarks)}): to start over from {begun}, choose "
                "another out=FOLDER",
                code="no-checkpoint-loads", run=run_dir,
            )  # fmt: skip
        return State(), None, remarks
    if saved.get("config_hash", config.hash) != config.hash:
        remarks.append(
            f"warning: this checkpoint was written by a run #{saved['config_hash']}, this one is #{config.hash}: "
            "another version of segtrain names runs otherwise; if none was used, the file was copied here from another "
            "run: take it away"
        )
    restore_learner(learner, saved, strategy, str(run_dir))
    state = State.read(saved["state"], str(run_dir))

    def mended() -> dict[str, Any]:
        best, told = checkpoint.mend_best(run_dir, vars(state))
        return {"step": best.step if best else 0, "miou": best.miou if best else -1.0, "remarks": told}

    best = on_rank_0(strategy, mended)
    state.best_step, state.best_miou = best["step"], best["miou"]
    return state, saved, remarks + best["remarks"]


def load_shared_checkpoint(
    run_dir: Path, strategy: Strategy, found: Prepared
) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest whole checkpoint, which rank 0 has ``found``, on every rank, and remarks. A collective.

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
        received = broadcast_bytes(strategy, 0, content, wanted=saved is None)
        if saved is None:
            saved = checkpoint.read(Path(offer[0]), received)
        remarks.append(
            f"{offer[0]} ({len(content) / 2**20:.1f} MiB) is not on the hosts of {without} of {strategy.world_size} "
            "ranks, or is another one there: they have rank 0's, over the network"
        )
    return saved, remarks


def _same_here(path: Path, fingerprint: str) -> dict[str, Any] | None:
    try:
        return checkpoint.read(path) if checkpoint.fingerprint(path) == fingerprint else None
    except CheckpointError:
        return None


def _newer_elsewhere(run_dir: Path, strategy: Strategy, offer: list[str]) -> list[str]:
    """Rank 0 decides, and a remark names a host that has a newer checkpoint. A collective."""
    there = checkpoint.checkpoints(run_dir)
    mine = torch.tensor([checkpoint.step_of(there[-1]) if there else 0], device=strategy.device)
    steps = table(strategy, mine).flatten().tolist()
    ours = checkpoint.step_of(Path(offer[0])) if offer else 0
    newest = max(range(len(steps)), key=steps.__getitem__)
    if newest == 0 or steps[newest] <= ours:
        return []
    return [
        f"the host of rank {newest} has a checkpoint of step {steps[newest]}, rank 0's has "
        + (f"step {ours}: rank 0 decides" if offer else "none that loads: this run begins anew")
        + f"; to go on from the other, stop and copy it to {run_dir / 'checkpoints'} of rank 0's host"
    ]

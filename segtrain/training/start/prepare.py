"""The beginning of a run: what rank 0 checks, locks, and writes, and the checkpoint that all ranks resume from.

Rank 0 sends its findings (as JSON) and its checkpoint to the other ranks: no shared file system is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from segtrain.config import Config
from segtrain.data.cache import refuse_cache
from segtrain.data.dataset import Dataset
from segtrain.data.index.subset import without
from segtrain.errors import CheckpointError
from segtrain.losses import build_criterion
from segtrain.observe.journal import FILE as JOURNAL
from segtrain.observe.trackers import TRACKERS, TrackerKind, refuse_trackers
from segtrain.parallel.collective import broadcast_bytes, table
from segtrain.parallel.strategy import Strategy
from segtrain.runfolder import checkpoint
from segtrain.runfolder.rundir import keep_names, make_run_dir, other_layout, prepare_run_dir, refuse_run_dir
from segtrain.runfolder.upload import FolderLock
from segtrain.training.learner import Learner, restore_learner
from segtrain.training.start import faults, same_data
from segtrain.training.state import State, on_rank_0


@dataclass
class Prepared:
    """The newest checkpoint in rank 0's run folder that can be loaded; empty on all other ranks."""

    path: Path | None = None
    state: dict[str, Any] | None = None
    remarks: list[str] = field(default_factory=list)


def refused(
    config: Config,
    train: Dataset,
    parts: dict[str, str],
    lock: FolderLock,
    local_ranks: int,
    trackers: Sequence[TrackerKind] = TRACKERS,
) -> dict[str, Any]:
    """Check, before labels are read, all that can be checked without them. Locks the run folder if it exists already.

    Raises SegtrainError. Returns the run id of a bucket, remarks, and whether the run resumes, as JSON values.
    """
    labels = train.labels
    run, remarks = lock.fetch()
    refuse_run_dir(config, parts)
    if config.data.cache == "ram":
        refuse_cache(train, local_ranks)
    remarks += lock.acquire() if config.run_dir.is_dir() else []
    refuse_trackers(config.log, trackers)
    if isinstance(config.loss.class_weights, tuple):
        build_criterion(config.loss, labels.num_classes, labels.ignore_index)
    resumes = config.checkpoint.resume and bool(checkpoint.checkpoints(config.run_dir))
    return {"run": run, "remarks": remarks, "resumes": resumes}


def prepare(
    config: Config, lock: FolderLock, found: Prepared, train: Dataset, val: Dataset, parts: dict[str, str] | None = None
) -> dict[str, Any]:
    """Check all images and labels, compare them with those of a resumed run, then write the run folder.

    Puts the newest checkpoint into ``found``. Returns JSON values: from ``faults.look``, and the record of the data.
    """
    run_dir = config.run_dir
    report = faults.look(config, train, val)
    reports, lines = report.pop("reports"), report.pop("lines")
    splits = {
        role: same_data.split_of(without(split, report["skipped"][role]), reports.get(role))
        for role, split in (("train", train), ("val", val))
    }
    make_run_dir(config)
    report["remarks"] += lock.acquire()
    refuse_run_dir(config, parts)  # again: another run may have begun and ended here meanwhile
    if config.checkpoint.resume:
        found.path, found.state, found.remarks = checkpoint.newest_file(run_dir)
    if found.state is None and (run_dir / JOURNAL).is_file() and (run_dir / "best.json").is_file():
        report["remarks"].append(
            f"warning: {run_dir} holds the journal of a run, but no checkpoint that loads: it begins again at step 0"
        )
    saved = found.state.get("data") if found.state else None
    layout = other_layout(config) if found.state else ""
    remarks, changed = same_data.check(config, saved, splits, layout) if found.state else ([], [])
    prepare_run_dir(config, train.labels, parts or {})
    faults.keep(run_dir, lines, reports.values())
    if config.data.split_by.on:
        keep_names(config, {config.data.train_split: train, config.data.split: val})
    same_data.keep_list(run_dir, splits, rewrite=found.state is None or bool(changed))
    report["remarks"] += remarks
    return {**report, "data": same_data.as_saved(splits, saved), "data_changed": "; ".join(changed)}


def restored(
    config: Config, learner: Learner, strategy: Strategy, found: Prepared, resumes: bool
) -> tuple[State, dict[str, Any] | None, list[str]]:
    """Load the checkpoint that rank 0 has ``found``. A collective.

    Returns the state, the checkpoint (None: the run begins), and remarks. Raises CheckpointError.
    """
    run_dir, begun = config.run_dir, config.model.init or config.model.encoder_weights
    saved, remarks = load_shared_checkpoint(run_dir, strategy, found) if config.checkpoint.resume else (None, [])
    if saved is None:
        if resumes and begun:
            text = f"no checkpoint in {run_dir} loads ({'; '.join(remarks)}): to start over from {begun}, change out"
            raise CheckpointError(text, code="no-checkpoint-loads", run=run_dir)
        return State(), None, remarks
    restore_learner(learner, saved, strategy, str(run_dir))
    if saved["config_hash"] != config.hash:
        remarks.append(
            f"warning: the checkpoint in {run_dir} was written by run #{saved['config_hash']}, but this run is "
            f"#{config.hash}: it was copied from another run: choose another out"
        )
    now = learner.precision.name
    if saved["precision"] != now:
        remarks.append(
            f"warning: this run was trained in {saved['precision']}, and train.precision=auto chose {now} for the "
            "devices of this start: the run goes on in other arithmetic"
        )
    learner.plain.origin = saved["origin"]
    state = State.read(saved["state"], str(run_dir))

    def repaired() -> dict[str, Any]:
        best, more = checkpoint.mend_best(run_dir, vars(state))
        return {"step": best.step if best else 0, "miou": best.miou if best else -1.0, "remarks": more}

    best = on_rank_0(strategy, repaired)
    state.best_step, state.best_miou = best["step"], best["miou"]
    return state, saved, remarks + best["remarks"]


def load_shared_checkpoint(
    run_dir: Path, strategy: Strategy, found: Prepared
) -> tuple[dict[str, Any] | None, list[str]]:
    """Give every rank the newest whole checkpoint, which rank 0 has ``found``. Returns it, and remarks. A collective.

    A rank reads its own file if this has the same checksums. Other ranks receive rank 0's file over the network.
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
            f"{offer[0]} ({len(content) / 2**20:.1f} MiB) is missing or different on the hosts of {without} of "
            f"{strategy.world_size} ranks: they received rank 0's copy over the network"
        )
    return saved, remarks


def _same_here(path: Path, fingerprint: str) -> dict[str, Any] | None:
    try:
        return checkpoint.read(path) if checkpoint.fingerprint(path) == fingerprint else None
    except CheckpointError:
        return None


def _newer_elsewhere(run_dir: Path, strategy: Strategy, offer: list[str]) -> list[str]:
    """A remark if another host has a newer checkpoint than rank 0's host, whose checkpoint is used. A collective."""
    there = checkpoint.checkpoints(run_dir)
    mine = torch.tensor([checkpoint.step_of(there[-1]) if there else 0], device=strategy.device)
    steps = table(strategy, mine).flatten().tolist()
    ours = checkpoint.step_of(Path(offer[0])) if offer else 0
    newest = max(range(len(steps)), key=steps.__getitem__)
    if newest == 0 or steps[newest] <= ours:
        return []
    return [
        f"the host of rank {newest} has a checkpoint of step {steps[newest]}, but rank 0's host has "
        + (f"step {ours}, which is used" if offer else "none that loads, so this run starts from the beginning")
        + f"; to continue from the newer one, stop and copy it to {run_dir / 'checkpoints'} on rank 0's host"
    ]

"""What rank 0 looks at, locks and writes before a run begins or goes on; what it finds is told to all ranks as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segtrain import checkpoint
from segtrain.config import Config
from segtrain.cores import cores
from segtrain.data.cache import refuse_cache
from segtrain.data.datasets import Dataset
from segtrain.data.index.subset import without
from segtrain.data.loader import worker_kind
from segtrain.data.workers.autoscaler import too_many
from segtrain.losses import build_criterion
from segtrain.observe.journal import FILE as JOURNAL
from segtrain.observe.trackers import refuse_trackers
from segtrain.train import faults, same_data
from segtrain.train.lock import RunLock
from segtrain.train.rundir import keep_names, make_run_dir, other_layout, prepare_run_dir, refuse_run_dir


@dataclass
class Prepared:
    """The newest checkpoint that loads in the run folder of this rank's host; empty on all ranks but 0."""

    path: Path | None = None
    state: dict[str, Any] | None = None
    remarks: list[str] = field(default_factory=list)


def refused(config: Config, train: Dataset, parts: dict[str, str], lock: RunLock, local_ranks: int) -> dict[str, Any]:
    """What can be refused before a label is read. A run folder that is there already is locked."""
    labels = train.labels
    refuse_run_dir(config, parts)
    if config.data.cache == "ram":
        refuse_cache(train, local_ranks)
    remarks = lock.acquire() if config.run_dir.is_dir() else []
    refuse_trackers(config.log)
    if isinstance(config.loss.class_weights, tuple):
        build_criterion(config.loss, labels.num_classes, labels.ignore_index)
    crowd = too_many(config.data.workers, worker_kind(config.data), cores(), local_ranks)
    remarks += [crowd] if crowd else []
    resumes = config.checkpoint.resume and bool(checkpoint.checkpoints(config.run_dir))
    return {"remarks": remarks, "resumes": resumes}


def prepare(
    config: Config, lock: RunLock, found: Prepared, train: Dataset, val: Dataset, parts: dict[str, str] | None = None
) -> dict[str, Any]:
    """Check every image and label, compare them with those before, then write the run folder; fills ``found``."""
    run_dir = config.run_dir
    told = faults.look(config, train, val)
    reports, lines = told.pop("reports"), told.pop("lines")
    splits = {
        role: same_data.split_of(without(split, told["skipped"][role]), reports.get(role))
        for role, split in (("train", train), ("val", val))
    }
    make_run_dir(config)
    told["remarks"] += lock.acquire()
    refuse_run_dir(config, parts)  # again: another run may have begun and ended here meanwhile
    if config.checkpoint.resume:
        found.path, found.state, found.remarks = checkpoint.newest_file(run_dir)
    if found.state is None and (run_dir / JOURNAL).is_file() and (run_dir / "best.json").is_file():
        told["remarks"].append(
            f"warning: {run_dir} holds the journal of a run, and no checkpoint that loads: it begins again at step 0"
        )
    saved = found.state.get("data") if found.state else None
    layout = other_layout(config) if found.state else ""
    remarks, changed = same_data.check(config, saved, splits, layout) if found.state else ([], [])
    prepare_run_dir(config, train.labels, parts or {})
    faults.keep(run_dir, lines)
    if config.data.split_by.on:
        keep_names(config, {config.data.train_split: train, config.data.split: val})
    same_data.keep_list(run_dir, splits, anew=found.state is None or bool(changed))
    told["remarks"] += remarks
    return {**told, "data": same_data.as_saved(splits, saved), "data_changed": "; ".join(changed)}

"""The stages of the start of a run. Each returns a frozen value, which the later ones take. All are
collectives.

Rank 0 sends what it alone knows to the other ranks as JSON: no shared file system is assumed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from segtrain.config import Config
from segtrain.data.cache import refuse_cache
from segtrain.data.dataset import Dataset
from segtrain.data.index.subset import without
from segtrain.errors import CheckpointError
from segtrain.evaluation.chosen import refuse_eval
from segtrain.evaluation.region import inside
from segtrain.losses import build_criterion
from segtrain.observe.journal import FILE as JOURNAL
from segtrain.observe.trackers import TrackerKind, refuse_trackers
from segtrain.parallel.strategy import Strategy
from segtrain.runfolder import checkpoint
from segtrain.runfolder.checkpoint import NewestCheckpoint
from segtrain.runfolder.rundir import (
    keep_names,
    make_run_dir,
    other_layout,
    prepare_run_dir,
    refuse_run_dir,
)
from segtrain.runfolder.upload import FolderLock
from segtrain.training.graphs import refuse_graphs
from segtrain.training.learner import (
    Learner,
    StartingNetwork,
    build_learner,
    build_network,
    restore_learner,
)
from segtrain.training.limits import Limit, open_limit
from segtrain.training.provided import Helpers, Provided
from segtrain.training.start import faults, same_data
from segtrain.training.start.agree import agree_on_config, agree_on_network, check_same_files
from segtrain.training.start.derived import Plan, make_plan
from segtrain.training.start.numerics import set_numerics
from segtrain.training.start.shared_checkpoint import load_shared_checkpoint
from segtrain.training.start.user_objects import (
    UserObjects,
    open_splits,
    refuse_conflicts,
    sharing_listings,
)
from segtrain.training.state import State, on_every_rank, on_rank_0


@dataclass(frozen=True)
class Start:
    """What a rank starts with, and what its settings alone decide."""

    config: Config
    strategy: Strategy
    lock: FolderLock  # of the run folder; rank 0 takes it
    objects: UserObjects
    names: dict[str, str]  # qualified names of the user's objects, by role
    precision: str  # the arithmetic that train.precision means here
    helpers: Helpers | None  # make samples for this rank
    trackers: Sequence[TrackerKind]  # the kinds that the config may ask for
    begun: float  # Unix time
    cpu_before_s: float  # CPU time that this process had used before, if segtrain.train was called


def check(
    config: Config,
    strategy: Strategy,
    lock: FolderLock,
    objects: UserObjects | None,
    provided: Provided,
) -> Start:
    """Refuse settings that contradict each other or differ among ranks."""
    # With objects of the user, the process may have worked on something else before.
    cpu_before_s = time.process_time() if objects else 0.0
    objects, begun = objects or UserObjects(), time.time()
    names = objects.names()
    agree_on_config(config, names, strategy)
    refuse_conflicts(config, objects)
    refuse_graphs(config, strategy, objects.criterion is not None)
    precision = set_numerics(config, strategy)
    helpers = None
    if config.data.helpers != "none":
        join = partial(provided.open_helpers, config.data, strategy.rank, strategy.world_size)
        helpers = on_every_rank(strategy, join)
    return Start(
        config,
        strategy,
        lock,
        objects,
        names,
        precision,
        helpers,
        provided.trackers,
        begun,
        cpu_before_s,
    )


@dataclass(frozen=True)
class FolderState:
    """The run folder when the run starts. JSON values."""

    run: str  # id of the run in a bucket
    remarks: list[str]
    resumes: bool


@dataclass(frozen=True)
class OpenedData:
    """The complete splits, and the run folder that they are trained into."""

    train: Dataset
    val: Dataset
    folder: FolderState
    limit: Limit | None  # of train.deadline and train.budget; rank 0 alone


def open_data(start: Start) -> OpenedData:
    """List the files of both splits, and check the run folder, before any label is read."""
    config, strategy = start.config, start.strategy
    with sharing_listings(config.data, strategy):
        train, val = open_splits(config, start.objects)
    check_same_files({"train": train, "val": val}, config, strategy)
    _plan(start, train)
    folder = FolderState(**on_rank_0(strategy, lambda: asdict(_claim_folder(start, train))))
    on_every_rank(strategy, lambda: start.lock.follow(folder.run))
    return OpenedData(train, val, folder, open_limit(config, strategy, start.begun))


def _plan(start: Start, train: Dataset) -> Plan:
    return make_plan(
        start.config, len(train), start.strategy.cluster, start.strategy.device.type == "cuda"
    )


def _claim_folder(start: Start, train: Dataset) -> FolderState:
    """Check all that can be checked without labels. Locks the run folder if it exists already.
    Raises SegtrainError.
    """
    config = start.config
    lock = start.lock
    labels = train.labels
    refuse_eval(config.eval, labels.names)
    run, remarks = lock.fetch()
    refuse_run_dir(config, start.names)
    if config.data.cache == "ram":
        refuse_cache(train, start.strategy.cluster.local_world_size)
    remarks += lock.acquire() if config.run_dir.is_dir() else []
    refuse_trackers(config.log, start.trackers)
    if isinstance(config.loss.class_weights, tuple):
        build_criterion(config.loss, labels.num_classes, labels.ignore_index)
    resumes = config.checkpoint.resume and bool(checkpoint.checkpoints(config.run_dir))
    return FolderState(run, remarks, resumes)


def build(start: Start, data: OpenedData) -> StartingNetwork:
    """The network with its first weights, the same on all ranks."""
    network = build_network(
        start.config, start.objects, data.train, start.strategy, data.folder.resumes
    )
    agree_on_network(network.model, start.strategy)
    return network


@dataclass(frozen=True)
class Findings:
    """What rank 0 has found in the data. JSON values."""

    remarks: list[str]
    caveats: list[str]  # warnings that apply to every score of the run
    class_weights: list[float]
    skipped: dict[str, list[int]]  # indices of the samples that are left out, by role
    records: dict[str, Any]  # of the samples, for the checkpoints: see same_data.py
    changed: str  # accepted differences from the data that the run was trained on


@dataclass(frozen=True)
class CheckedData:
    """The splits without samples that are left out, and the plan that follows from their number."""

    train: Dataset
    val: Dataset
    findings: Findings
    newest: NewestCheckpoint  # of rank 0; empty on other ranks
    plan: Plan


def check_data(start: Start, data: OpenedData) -> CheckedData:
    """Check every label, compare the data with those of a resumed run, and then write the run
    folder.
    """
    newest = NewestCheckpoint()

    def on_this_rank() -> dict[str, Any]:
        nonlocal newest
        findings, newest = prepare(start.config, start.lock, data.train, data.val, start.names)
        return asdict(findings)

    findings = Findings(**on_rank_0(start.strategy, on_this_rank))
    train = without(data.train, findings.skipped["train"])
    val = without(data.val, findings.skipped["val"])
    val = on_every_rank(start.strategy, lambda: inside(val, start.config.eval.region))
    return CheckedData(train, val, findings, newest, _plan(start, train))


def prepare(
    config: Config, lock: FolderLock, train: Dataset, val: Dataset, names: dict[str, str]
) -> tuple[Findings, NewestCheckpoint]:
    """``check_data`` on rank 0. ``names``: of the user's objects, by role. Raises SegtrainError."""
    run_dir, newest = config.run_dir, NewestCheckpoint()
    checked = faults.check_splits(config, train, val)
    splits = {
        role: same_data.split_of(without(split, checked.skipped[role]), checked.audits.get(role))
        for role, split in (("train", train), ("val", val))
    }
    make_run_dir(config)
    remarks = [*checked.remarks, *lock.acquire()]
    refuse_run_dir(config, names)  # again: another run may have begun and ended here meanwhile
    if config.checkpoint.resume:
        newest = checkpoint.newest(run_dir)
    resumes = newest.state is not None
    if not resumes and (run_dir / JOURNAL).is_file() and (run_dir / "best.json").is_file():
        remarks.append(
            f"warning: {run_dir} holds the journal of a run, but no checkpoint that loads: it "
            "begins again at step 0"
        )
    saved = newest.state.get("data") if newest.state else None
    compared, changed = (
        same_data.check(config, saved, splits, other_layout(config)) if resumes else ([], [])
    )
    prepare_run_dir(config, train.labels, names)
    faults.keep(run_dir, checked.lines, checked.audits.values())
    if config.data.split_by.on:
        keep_names(config, {config.data.train_split: train, config.data.split: val})
    same_data.keep_list(run_dir, splits, rewrite=not resumes or bool(changed))
    records = same_data.as_saved(splits, saved)
    findings = Findings(
        [*remarks, *compared],
        checked.caveats,
        checked.class_weights,
        checked.skipped,
        records,
        "; ".join(changed),
    )
    return findings, newest


@dataclass(frozen=True)
class Restored:
    """The network with its loss and optimizer, at the state that the run goes on from."""

    learner: Learner
    state: State
    saved: dict[str, Any] | None  # the checkpoint; None: the run begins
    remarks: list[str]


def restore(
    start: Start, opened: OpenedData, network: StartingNetwork, data: CheckedData
) -> Restored:
    """Build the loss and the optimizer, and load the newest checkpoint if there is one. Raises
    CheckpointError.
    """
    config = start.config
    strategy = start.strategy
    learner = build_learner(
        config,
        start.objects,
        network.model,
        data.train.labels,
        data.findings.class_weights,
        strategy,
        start.precision,
    )
    run_dir = config.run_dir
    begun = config.model.init or config.model.encoder_weights
    saved, remarks = (
        load_shared_checkpoint(run_dir, strategy, data.newest)
        if config.checkpoint.resume
        else (None, [])
    )
    if saved is None:
        if opened.folder.resumes and begun:
            raise CheckpointError(
                f"no checkpoint in {run_dir} loads ({'; '.join(remarks)}): to start over from "
                f"{begun}, change out",
                code="no-checkpoint-loads",
                run=run_dir,
            )
        return Restored(learner, State(), None, remarks)
    restore_learner(learner, saved, strategy, str(run_dir))
    if saved["config_hash"] != config.hash:
        remarks.append(
            f"warning: the checkpoint in {run_dir} was written by run #{saved['config_hash']}, but "
            f"this run is #{config.hash}: it was copied from another run: choose another out"
        )
    now = learner.precision.name
    if saved["precision"] != now:
        remarks.append(
            f"warning: this run was trained in {saved['precision']}, and train.precision=auto "
            f"chose {now} for the devices of this start: the run goes on in other arithmetic"
        )
    exact = saved.get("exact", 0)  # older checkpoints have no such entry
    if exact != config.parallel.exact:
        remarks.append(
            f"warning: this run was trained with parallel.exact={exact}, and goes on with "
            f"parallel.exact={config.parallel.exact}: its weights will have other bits"
        )
    learner.plain.origin = saved["origin"]
    state = State.read(saved["state"], str(run_dir))

    def repair() -> dict[str, Any]:
        best, best_remarks = checkpoint.mend_best(run_dir, state.best)
        return {"best": vars(best), "remarks": best_remarks}

    repaired = on_rank_0(strategy, repair)
    state.best = checkpoint.Best(**repaired["best"])
    return Restored(learner, state, saved, remarks + repaired["remarks"])

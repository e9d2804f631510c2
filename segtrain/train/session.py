"""Everything a run is made of, built once in the order in which a mistake costs least; and how it is saved and scored."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from segtrain import __version__, checkpoint
from segtrain.config import Config
from segtrain.data.datasets import Dataset, open_dataset
from segtrain.data.index.subset import without
from segtrain.data.pixels import native
from segtrain.data.workers.pool import WorkerPool
from segtrain.errors import CheckpointError, ConfigError
from segtrain.evaluate.evaluation import evaluate
from segtrain.losses import Criterion, build_criterion
from segtrain.models import build_model
from segtrain.models.deterministic import refuse_nondeterministic
from segtrain.observe import console
from segtrain.observe.journal import Journal
from segtrain.observe.trackers import Trackers, open_trackers
from segtrain.optim import Ema, LossScaler, build_optimizer
from segtrain.parallel.startup import compiler_kept_out
from segtrain.parallel.strategy import Strategy, full_state, load_full_state, unwrapped
from segtrain.train import faults, scored
from segtrain.train.agree import agree_on_config, check_same_files
from segtrain.train.derived import decoder, derive, versions, wants_channels_last
from segtrain.train.exact import mean_buffers, restore_buffers
from segtrain.train.initial import starting_network
from segtrain.train.lock import RunLock
from segtrain.train.plan import Plan, make_plan
from segtrain.train.prepare import Prepared, mended_best, prepare, refused
from segtrain.train.resume import load_shared_checkpoint
from segtrain.train.rundir import NAMES
from segtrain.train.state import (
    State,
    Stopwatch,
    all_finite,
    averaged_weights,
    copy_into,
    not_finite,
    on_rank_0,
)
from segtrain.train.step import Precision
from segtrain.train.writer import CheckpointWriter

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Session:
    """One rank's share of a run. ``model`` is wrapped for the strategy, ``plain`` is the network inside it."""

    config: Config
    strategy: Strategy
    plan: Plan
    dataset: Dataset
    validation: Dataset
    model: nn.Module
    plain: nn.Module
    criterion: Criterion
    optimizer: torch.optim.Optimizer
    ema: Ema | None
    scaler: LossScaler
    precision: Precision
    channels_last: bool
    state: State
    watch: Stopwatch
    writer: CheckpointWriter | None  # rank 0 alone
    journal: Journal
    trackers: Trackers
    screen: console.Console
    caveats: tuple[str, ...]  # warnings that every score of this run must be read with
    pool: WorkerPool  # makes the samples of training and of evaluation
    lock: RunLock  # held by rank 0 alone
    data: dict[str, Any]  # which samples this is, for the checkpoints: see same_data.py

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self.plain.parameters() if p.requires_grad]

    def save(self, reason: str) -> None:
        """A checkpoint of the present step. Every rank takes part; nothing that is not finite reaches the disk."""
        begin = time.perf_counter()
        if not all_finite(self.parameters, self.strategy):
            raise not_finite(self.state.step, "a weight", self.config)
        with mean_buffers(self.plain, self.ema, self.strategy) as of_ranks:
            weights, moments = full_state(self.model, self.optimizer)
            shadow = {} if self.ema is None else {k: _whole_cpu(v) for k, v in self.ema.shadow.items()}
        if self.writer is None:
            return
        self.lock.check()
        content = {
            "model": weights,
            "optimizer": moments,
            "ema": shadow,
            "scaler": self.scaler.state_dict(),
            "state": {**vars(self.state)},
            "config_hash": self.config.hash,
            "decoder": decoder(),
            "data": self.data,
            "world_size": self.strategy.world_size,
            "buffers_of_ranks": None if of_ranks is None else of_ranks.cpu(),
        }
        path = self.writer.save(self.state.step, content)
        seconds = time.perf_counter() - begin
        self.journal.write("checkpoint", step=self.state.step, file=path.name, reason=reason, seconds=seconds)

    def score(self) -> float:
        """mIoU on the validation split, of the moving average where there is one. Every rank takes part."""
        last = self.state.step >= self.plan.steps
        with self.watch.paused(self.state):
            with mean_buffers(self.plain, self.ema, self.strategy), averaged_weights(self.plain, self.ema):
                result = evaluate(
                    self._whole_model(),
                    self.validation,
                    self.config.eval,
                    device=self.strategy.device,
                    precision=self.config.train.precision,
                    rank=self.strategy.rank,
                    world_size=self.strategy.world_size,
                    all_reduce=self.strategy.reduce,
                    pool=self.pool,
                    channels_last=self.channels_last,
                    base_scale=self.config.data.base_scale,
                    pictures=self.config.log.pictures,
                    extremes=scored.extremes(self.config) if last else 0,
                )
            self.state.scores = result.scores.to_dict()
            if self.strategy.rank == 0:
                scored.tell(self, result)
                scored.keep(self, result, last)
        return float(result.scores.miou)

    def _whole_model(self) -> nn.Module:
        """The network to score. A sharded one is gathered first: its forward holds collectives, and ranks score unequally many."""
        if self.strategy.name != "fsdp":
            return self.plain
        whole = build_model(self.config.model.model_copy(update={"encoder_weights": None}), self.criterion.num_classes)
        whole.load_state_dict({name: _whole_cpu(value) for name, value in self.plain.state_dict().items()})
        return whole.to(self.strategy.device)


def _whole_cpu(value: Tensor) -> Tensor:
    whole: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value  # type: ignore[operator]
    return whole.detach().cpu().clone()


def open_session(config: Config, strategy: Strategy, lock: RunLock) -> Session:
    """Settings first, then names of files, the network, every label; the run folder last: a mistake costs and leaves little.

    Rank 0 takes ``lock`` before it changes anything in the run folder.
    """
    agree_on_config(config, strategy)
    on_gpu = strategy.device.type == "cuda"
    if config.train.precision == "fp16" and not on_gpu:
        raise ConfigError("train.precision=fp16 needs a GPU: use fp32 (or bf16 where the CPU has bf16 units)")
    if config.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = not config.train.deterministic  # crops have a fixed size

    dataset = open_dataset(config.data, config.data.train_split)
    validation = open_dataset(config.data, config.data.split)
    check_same_files({"train": dataset, "val": validation}, config, strategy)
    labels = dataset.labels
    plan = make_plan(config, len(dataset), strategy.cluster, on_gpu)
    run_dir = config.run_dir
    local_ranks = strategy.cluster.local_world_size
    locked = on_rank_0(strategy, lambda: refused(config, dataset, lock, local_ranks))

    torch.manual_seed(config.train.seed)  # the same weights on every rank
    # A run that goes on has its own weights: it needs no file, and no download, that it began with.
    pretrained = None if locked["resumes"] else config.model.encoder_weights
    network = build_model(config.model.model_copy(update={"encoder_weights": pretrained}), labels.num_classes)
    if not config.loss.aux_weight:
        network.freeze_auxiliary()
    if config.train.deterministic and on_gpu:
        refuse_nondeterministic(network, config.model.arch)
    begin = "" if locked["resumes"] else config.model.init
    initial = starting_network(network, begin, config.model.freeze, labels.names, strategy)
    whole = {"train": dataset, "val": validation}
    found = Prepared()
    prepared = on_rank_0(strategy, lambda: prepare(config, lock, found, **whole))
    dataset, validation = (without(split, prepared["skipped"][role]) for role, split in whole.items())
    plan = make_plan(config, len(dataset), strategy.cluster, on_gpu)  # of the samples that stay
    channels_last = strategy.name != "fsdp" and wants_channels_last(config.train.channels_last, strategy.device)
    if channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with compiler_kept_out(not config.train.compile):
        model = strategy.wrap(network)
    plain = unwrapped(model)
    weights = torch.tensor(prepared["weights"]) if prepared["weights"] else None
    criterion = build_criterion(config.loss, labels.num_classes, labels.ignore_index, weights)
    with compiler_kept_out(not config.train.compile):
        optimizer = build_optimizer(
            plain,
            plain.encoder_parameters(),  # type: ignore[operator]  # not those of before: fsdp has replaced them
            config.optim,
            plain.head_parameters(),  # type: ignore[operator]
        )
    ema = Ema(plain, config.optim.ema) if config.optim.ema else None
    scaler = LossScaler(config.train.precision == "fp16")

    state = State()
    saved, remarks = load_shared_checkpoint(run_dir, strategy, found) if config.checkpoint.resume else (None, [])
    if saved is None and locked["resumes"] and (begun := config.model.init or config.model.encoder_weights):
        raise CheckpointError(
            f"no checkpoint of {run_dir} loads ({'; '.join(remarks)}): take its folder away to begin again with {begun}"
        )
    if saved is not None and saved.get("config_hash", config.hash) != config.hash:
        remarks.append(
            f"warning: this checkpoint was written by a run #{saved['config_hash']}, this one is #{config.hash}: another version of "
            f"segtrain names runs otherwise; if none was used, the file was copied here from another run: take it away"
        )
    if saved is not None:
        checkpoint.refuse_foreign(saved, plain.state_dict(), str(run_dir), ema.shadow if ema else None)
        load_full_state(model, optimizer, saved["model"], saved["optimizer"])
        if ema is not None:
            load_shadow(ema, saved["ema"])
        restore_buffers(plain, ema, strategy, saved.get("buffers_of_ranks"))
        scaler.load_state_dict(saved["scaler"])
        state = State.read(saved["state"], str(run_dir))
        best = on_rank_0(strategy, lambda: mended_best(run_dir, vars(state)))
        state.best_step, state.best_miou = best["step"], best["miou"]
        remarks += best["remarks"]
    if config.train.compile:
        model = torch.compile(model)  # type: ignore[assignment]

    rank = strategy.rank
    screen = console.Console(plan.steps, plan.epoch(plan.steps), rank=rank)
    derived = derive(config, strategy, plan, dataset, validation, plain, channels_last)
    screen.say(console.banner(f"segtrain {__version__}  {config.name or 'run'}  #{config.hash}", derived))
    for remark in [*locked["remarks"], *(initial.lines() if initial else []), *prepared["remarks"], *remarks]:
        screen.say(remark)
    journal = Journal(run_dir / "journal.jsonl", rank)
    journal.write(
        "run_start", version=__version__, versions=versions(), name=config.name, hash=config.hash,
        host=socket.gethostname(), pid=os.getpid(), device=str(strategy.device), world_size=strategy.world_size,
        total_steps=plan.steps, eval_every=plan.eval_every, save_every=plan.save_every, derived=derived,
        warnings=prepared["caveats"],
    )  # fmt: skip
    if config.data.split_by.on:
        images = {config.data.train_split: len(whole["train"]), config.data.split: len(whole["val"])}
        journal.write("split", rule=config.data.split_by.model_dump(), images=images, folder=NAMES)
    if initial is not None:
        journal.write("init", **initial.to_dict())
    for role, skipped in prepared["skipped"].items():
        if skipped:
            journal.write("faults", role=role, skipped=len(skipped), images=len(whole[role]), file=faults.FILE)
    if saved is not None:
        screen.say(f"going on from step {state.step} of {plan.steps}")
        begun = saved.get("decoder", decoder())
        if begun != decoder():
            screen.say(
                f"the samples so far were made by the {begun} decoder, from now on by the {decoder()} one ({native.describe()}): they "
                "round alike but for a few levels, so the run is not equal to the bit"
            )
        journal.write("resume", step=state.step, world_size=saved["world_size"])
        if prepared["data_changed"]:
            journal.write("data_changed", step=state.step, text=prepared["data_changed"])
    trackers = open_trackers(
        config.log, run_dir, name=config.name or run_dir.name, hash=config.hash, rank=rank,
        config=config.model_dump(mode="json"), resume_step=state.step if saved is not None else None, say=screen.say,
    )  # fmt: skip
    if saved is None:
        trackers.text("config", config.to_yaml())
    settings, watch = config.checkpoint, Stopwatch(strategy)
    pool = WorkerPool(plan.worker_count.start, plan.worker_kind)
    watch.workers_cpu_s = pool.cpu_s
    return Session(
        config=config,
        strategy=strategy,
        plan=plan,
        dataset=dataset,
        validation=validation,
        model=model,
        plain=plain,
        criterion=criterion,
        optimizer=optimizer,
        ema=ema,
        scaler=scaler,
        precision=Precision(
            strategy.device.type, DTYPES[config.train.precision], config.loss.full_logits, config.loss.stride
        ),
        channels_last=channels_last,
        state=state,
        watch=watch,
        writer=CheckpointWriter(run_dir / "checkpoints", settings.keep, settings.background, lock.check)
        if rank == 0
        else None,
        journal=journal,
        trackers=trackers,
        screen=screen,
        caveats=tuple(prepared["caveats"]),
        pool=pool,
        lock=lock,
        data=prepared["data"],
    )


def load_shadow(ema: Ema, saved: dict[str, Tensor]) -> None:
    from segtrain.parallel.strategy import share

    copy_into(ema.shadow, {name: share(saved[name], value) for name, value in ema.shadow.items()})

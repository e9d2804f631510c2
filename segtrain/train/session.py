"""Everything a run is made of, built once in the order in which a mistake costs least; and how it is saved and scored."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from segtrain import __version__
from segtrain.config import Config
from segtrain.data import native
from segtrain.data.crew.workers import Crew
from segtrain.data.datasets import Dataset, open_dataset
from segtrain.data.labels import LabelSpace
from segtrain.data.subset import without
from segtrain.errors import ConfigError
from segtrain.losses import Criterion, build_criterion
from segtrain.models import build_model
from segtrain.observe import console
from segtrain.observe.journal import Journal
from segtrain.observe.trackers import Trackers, open_trackers, refuse_trackers
from segtrain.optim import Ema, LossScaler, build_optimizer
from segtrain.parallel.startup import compiler_kept_out
from segtrain.parallel.strategy import Strategy, full_state, load_full_state, unwrapped
from segtrain.train import checkpoint, faults, scored
from segtrain.train.agree import agree_on_config, agree_on_index
from segtrain.train.derived import decoder, derive, versions, wants_channels_last
from segtrain.train.evaluate import evaluate
from segtrain.train.exact import mean_buffers, restore_buffers
from segtrain.train.plan import Plan, make_plan
from segtrain.train.resume import agreed
from segtrain.train.rundir import prepare_run_dir, refuse_run_dir
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
    writer: checkpoint.Writer | None  # rank 0 alone
    journal: Journal
    trackers: Trackers
    screen: console.Console
    crew: Crew  # makes the samples of training and of evaluation

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
        content = {
            "model": weights,
            "optimizer": moments,
            "ema": shadow,
            "scaler": self.scaler.state_dict(),
            "state": {**vars(self.state)},
            "config_hash": self.config.hash,
            "decoder": decoder(),
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
                    crew=self.crew,
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


def open_session(config: Config, strategy: Strategy) -> Session:
    """Settings first, then names of files, the network, every label; the run folder last: a mistake costs and leaves little."""
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
    agree_on_index({"train": dataset, "val": validation}, config, strategy)
    labels = dataset.labels
    plan = make_plan(config, len(dataset), strategy.cluster, on_gpu)
    run_dir = config.run_dir
    on_rank_0(strategy, lambda: _refuse(config, labels))

    torch.manual_seed(config.train.seed)  # the same weights on every rank
    network = build_model(config.model, labels.num_classes)
    whole = {"train": dataset, "val": validation}
    prepared = on_rank_0(strategy, lambda: _prepare(config, **whole))
    dataset, validation = (without(split, prepared["skipped"][role]) for role, split in whole.items())
    plan = make_plan(config, len(dataset), strategy.cluster, on_gpu)  # of the samples that stay
    encoder = {id(p) for p in network.encoder_parameters()}
    channels_last = strategy.name != "fsdp" and wants_channels_last(config.train.channels_last, strategy.device)
    if channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with compiler_kept_out(not config.train.compile):
        model = strategy.wrap(network)
    plain = unwrapped(model)
    weights = torch.tensor(prepared["weights"]) if prepared["weights"] else None
    criterion = build_criterion(config.loss, labels.num_classes, labels.ignore_index, weights)
    with compiler_kept_out(not config.train.compile):
        optimizer = build_optimizer(plain, [p for p in plain.parameters() if id(p) in encoder], config.optim)
    ema = Ema(plain, config.optim.ema) if config.optim.ema else None
    scaler = LossScaler(config.train.precision == "fp16")

    state = State()
    saved, remarks = agreed(run_dir, strategy) if config.checkpoint.resume else (None, [])
    if saved is not None:
        checkpoint.refuse_foreign(saved, plain.state_dict(), str(run_dir))
        load_full_state(model, optimizer, saved["model"], saved["optimizer"])
        if ema is not None:
            load_shadow(ema, saved["ema"])
        restore_buffers(plain, ema, strategy, saved.get("buffers_of_ranks"))
        scaler.load_state_dict(saved["scaler"])
        state = State(**saved["state"])
    if config.train.compile:
        model = torch.compile(model)  # type: ignore[assignment]

    rank = strategy.rank
    screen = console.Console(plan.steps, plan.epoch(plan.steps), rank=rank)
    derived = derive(config, strategy, plan, dataset, validation, plain, channels_last)
    screen.say(console.banner(f"segtrain {__version__}  {config.name or 'run'}  #{config.hash}", derived))
    for remark in [*prepared["remarks"], *remarks]:
        screen.say(remark)
    journal = Journal(run_dir / "journal.jsonl", rank)
    journal.write(
        "run_start", version=__version__, versions=versions(), name=config.name, hash=config.hash,
        host=socket.gethostname(), pid=os.getpid(), device=str(strategy.device), world_size=strategy.world_size,
        total_steps=plan.steps, derived=derived,
    )  # fmt: skip
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
    trackers = open_trackers(
        config.log, run_dir, name=config.name or run_dir.name, hash=config.hash, rank=rank,
        config=config.model_dump(mode="json"), resume_step=state.step if saved is not None else None, say=screen.say,
    )  # fmt: skip
    if saved is None:
        trackers.text("config", config.to_yaml())
    settings, watch = config.checkpoint, Stopwatch(strategy)
    crew = Crew(plan.staff.start, plan.worker_kind)
    watch.workers_cpu_s = crew.cpu_s
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
        writer=checkpoint.Writer(run_dir / "checkpoints", settings.keep, settings.background) if rank == 0 else None,
        journal=journal,
        trackers=trackers,
        screen=screen,
        crew=crew,
    )


def load_shadow(ema: Ema, saved: dict[str, Tensor]) -> None:
    from segtrain.parallel.strategy import share

    copy_into(ema.shadow, {name: share(saved[name], value) for name, value in ema.shadow.items()})


def _refuse(config: Config, labels: LabelSpace) -> dict[str, Any]:
    """On rank 0: what can be refused before a label is read."""
    refuse_run_dir(config)
    refuse_trackers(config.log)
    if isinstance(config.loss.class_weights, tuple):
        build_criterion(config.loss, labels.num_classes, labels.ignore_index)
    return {}


def _prepare(config: Config, train: Dataset, val: Dataset) -> dict[str, Any]:
    """On rank 0: every image and label of both splits looked at, then the run folder. JSON values."""
    found = faults.look(config, train, val)
    prepare_run_dir(config, train.labels)
    faults.keep(config.run_dir, found.pop("lines"))
    return found

"""Output of a run: terminal, journal, and trackers, and the texts at its start and at its end."""

from __future__ import annotations

import os
import platform
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import torch

from segtrain import __version__
from segtrain.base.units import duration
from segtrain.config import SMP, Config, read_parts
from segtrain.data.dataset import Dataset
from segtrain.data.pixels import native
from segtrain.errors import EXIT_RESUMABLE
from segtrain.insight.diagnose.live import closing_line
from segtrain.observe import console
from segtrain.observe.journal import Journal
from segtrain.observe.tracker import TrackedRun
from segtrain.observe.trackers import TrackerKind, Trackers, open_trackers
from segtrain.parallel.network import describe_network
from segtrain.parallel.strategy import Strategy
from segtrain.runfolder.rundir import NAMES
from segtrain.training.learner import Learner
from segtrain.training.start import faults
from segtrain.training.start.derived import Plan
from segtrain.training.start.initial import Initial
from segtrain.training.start.price import price_of
from segtrain.training.start.user_objects import Parts
from segtrain.training.state import State

if TYPE_CHECKING:
    from segtrain.training.session import Session


@dataclass(frozen=True)
class Output:
    """Where a rank writes what happens; ranks other than 0 write nothing."""

    screen: console.Console
    journal: Journal
    trackers: Trackers
    caveats: tuple[str, ...]  # warnings that apply to every score of this run

    def close(self) -> None:
        self.screen.close()
        self.journal.close()


def announce(
    config: Config,
    parts: Parts,
    strategy: Strategy,
    plan: Plan,
    learner: Learner,
    state: State,
    saved: Mapping[str, Any] | None,
    *,
    splits: Mapping[str, Dataset],
    initial: Initial | None,
    prepared: Mapping[str, Any],
    remarks: list[str],
    begun: float,
    trackers: Sequence[TrackerKind],
) -> Output:
    """Open a run's output, and write how it begins or resumes.

    ``saved``: the resumed checkpoint. ``splits``: the complete splits, by role. ``prepared``: from ``prepare``.
    ``begun``: Unix time at which this process began. ``trackers``: the kinds that the config may ask for.
    """
    run_dir, rank, cluster = config.run_dir, strategy.rank, strategy.cluster
    screen = console.Console(plan.steps, plan.epoch(plan.steps), rank=rank)
    scored = len(splits["val"]) - len(prepared["skipped"]["val"])
    derived = _derived(config, strategy, plan, splits["train"], scored, learner, parts.names())
    screen.say(console.banner(f"segtrain {__version__}  {config.title}  #{config.hash}", derived))
    for remark in remarks:
        screen.say(remark)
    journal = Journal(run_dir / "journal.jsonl", rank)
    journal.write(
        "run_start", version=__version__, name=config.name, hash=config.hash,
        versions={"python": platform.python_version(), "torch": torch.__version__},
        host=socket.gethostname(), pid=os.getpid(), device=str(strategy.device), world_size=strategy.world_size,
        strategy=strategy.name, total_steps=plan.steps, eval_every=plan.eval_every, save_every=plan.save_every,
        derived=derived, warnings=prepared["caveats"], begun=begun, hosts=cluster.hosts,
        machine=cluster.machine, price=price_of(config, cluster.machine),
    )  # fmt: skip
    if config.data.split_by.on:
        images = {config.data.train_split: len(splits["train"]), config.data.split: len(splits["val"])}
        journal.write("split", rule=config.data.split_by.model_dump(), images=images, folder=NAMES)
    if initial is not None:
        journal.write("init", **initial.to_dict())
    for role, skipped in prepared["skipped"].items():
        if skipped:
            journal.write("faults", role=role, skipped=len(skipped), images=len(splits[role]), file=faults.FILE)
    if saved is not None:
        _resumed(plan, state, saved, prepared["data_changed"], screen, journal)
    resume_step = state.step if saved is not None else None
    run = TrackedRun(run_dir, config.title, config.hash, config.model_dump(mode="json"), resume_step)
    opened = open_trackers(config.log, run, trackers, rank=rank, say=screen.say, own=parts.trackers)
    if saved is None:
        opened.text("config", config.to_yaml())
    return Output(screen, journal, opened, tuple(prepared["caveats"]))


def _derived(
    config: Config,
    strategy: Strategy,
    plan: Plan,
    dataset: Dataset,
    scored: int,
    learner: Learner,
    parts: Mapping[str, str],
) -> dict[str, str]:
    """Derived quantities in words, for the banner and the journal.

    ``scored``: number of images to score. ``parts``: qualified names of the model, loss, and data sets that were passed
    to ``segtrain.train``, by role.
    """
    sizes = [(p.numel(), p.requires_grad) for p in learner.plain.parameters()]
    size = f"{console.count(sum(n for n, _ in sizes))} parameters"
    if config.model.freeze == "encoder":
        size += f", {console.count(sum(n for n, trained in sizes if trained))} of them trained (the encoder is frozen)"
    images, ranks, accumulate = config.train.batch_size, strategy.world_size, config.train.accumulate
    threads = f", {torch.get_num_threads()} threads each" if strategy.device.type == "cpu" else ""
    arch = f"{config.model.arch} {config.model.encoder if config.model.arch.lower() in SMP else ''}".strip()
    classes = dataset.labels.num_classes
    auto = " (auto)" if "auto" in (config.eval.every, config.checkpoint.every) else ""

    def often(every: int) -> str:
        return f"every {every}" if every < plan.steps else "at the end"

    origin = learner.plain.origin
    numbers = [learner.precision.name, "channels_last" * learner.channels_last]
    if config.train.compile:
        numbers.append("compiled" if config.train.compile is True else f"compiled ({config.train.compile})")
    return {
        "run folder": f"{config.out_bucket}, here {config.run_dir}" if config.out_bucket else str(config.run_dir),
        "data": f"{dataset.name}: {plan.samples} images to train, {scored} to score, {classes} classes",
        "model": f"{parts.get('model', arch)}, {size}",
        "images": origin.images(),
        **({"license": origin.terms()} if origin.license else {}),
        **({"loss": parts["criterion"]} if "criterion" in parts else {}),
        "ranks": f"{ranks} x {strategy.device.type}{threads}, strategy {strategy.name} {strategy.backend}".strip(),
        **({"network": describe_network()} if strategy.backend == "nccl" and strategy.cluster.hosts > 1 else {}),
        "batch": f"{images} images = {ranks} ranks x {accumulate} micro-batches x {images / ranks / accumulate:g}",
        "crops": ", ".join(f"{h}x{w} until step {until}" for until, (h, w), _ in plan.crops),
        "decoder": native.describe(),
        "steps": f"{plan.steps} = {console.epochs_text(plan.epoch(plan.steps))} epochs; eval "
        f"{often(plan.eval_every)}, save {often(plan.save_every)}{auto}",
        "numbers": ", ".join(filter(None, numbers)),
    }


def decoder() -> str:
    return "native" if native.available() else "packages"


def _resumed(
    plan: Plan, state: State, saved: Mapping[str, Any], data_changed: str, screen: console.Console, journal: Journal
) -> None:
    screen.say(f"going on from step {state.step} of {plan.steps}")
    begun = saved["decoder"]
    if begun != decoder():
        screen.say(
            f"earlier samples came from the {begun} decoder, later ones come from the {decoder()} decoder "
            f"({native.describe()}): pixels may differ by a few levels, so the run is not bit-for-bit repeatable"
        )
    journal.write("resume", step=state.step, world_size=saved["world_size"])
    if data_changed:
        journal.write("data_changed", step=state.step, text=data_changed)


def stop(session: Session, signals: list[int], signaled: bool) -> int:
    """Save the state after a signal, or at a limit if no rank was ``signaled``. Returns the exit code.

    That of a limit is 0: a scheduler that starts a run again after EXIT_RESUMABLE must not do so.
    """
    if not signaled:
        return _stop_at_limit(session)
    state, output = session.state, session.output
    name = signal.Signals(signals[0]).name if signals else "a signal on another rank"
    output.journal.write("signal", signal=name, step=state.step)
    session.save("signal")
    session.wait_saved()
    write_end(session, "stopped")
    output.screen.say(
        f"stopped by {name} after step {state.step} of {session.plan.steps}: the state is saved, and the same command "
        f"goes on from there (exit code {EXIT_RESUMABLE})"
    )
    return EXIT_RESUMABLE


def _stop_at_limit(session: Session) -> int:
    state, output, guard = session.state, session.output, session.guard
    session.save("limit")
    session.wait_saved()
    write_end(session, "stopped")
    session.strategy.broadcast_object(None)  # the other ranks go on when that is written: segtrain.train reads it
    if guard:
        seconds, dollars = guard.took()
        name, took = guard.limit.name, duration(seconds) + ("" if dollars is None else f" and ${dollars:,.2f}")
        output.screen.say(
            f"stopped by {name} after step {state.step:,} of {session.plan.steps:,}, {took}: the state is saved, and "
            f"the same command with a larger {name.partition('=')[0]} goes on from there"
        )
    return 0


def finish(session: Session) -> int:
    """Write the table of classes and what to do next. Returns the exit code."""
    state, config, output, labels = session.state, session.config, session.output, session.validation.labels
    session.wait_saved()
    write_end(session, "done")
    pixels = state.scores["pixels"]
    output.screen.say(f"\nlast evaluation, at step {state.step}")
    output.screen.say(console.class_table(labels.names, state.scores["iou"], [n / max(1, sum(pixels)) for n in pixels]))
    speed = closing_line(config.run_dir) if session.strategy.rank == 0 else None
    output.screen.say(
        f"best mIoU {100 * state.best_miou:.2f}%{console.of_classes(pixels)} at step {state.best_step}   "
        f"{state.wall_s:.0f} s of training, {state.cpu_s:.0f} CPU-s, evaluation left out\n"
        + "".join(f"warning: {text}\n" for text in output.caveats)
        + (f"{speed}\n" if speed else "")
        + (f"pictures  {config.run_dir}/pictures: val.png, worst.png, best.png\n" if config.log.pictures else "")
        + further(config.run_dir, config.log.tensorboard, read_parts(config.run_dir))
    )
    return 0


def write_end(session: Session, status: str) -> None:
    """Write the event ``run_end``, and close the trackers."""
    state, made = session.state, session.pool.made()
    helped: dict[str, Any] = {}
    if made is not None:
        text = made.line("samples" if session.strategy.world_size == 1 else "samples of rank 0")
        session.output.screen.say(text)
        helped["samples"] = {**made.to_dict(), "text": text}
    scored = {"miou": state.best_miou} if status == "done" else {}
    session.output.journal.write(
        "run_end", status=status, step=state.step, seconds=state.wall_s, cpu_s=state.cpu_s,
        workers=session.pool.count, **scored, **helped,
    )  # fmt: skip
    session.output.trackers.close(status)


def further(run_dir: Path, tensorboard: bool, parts: Mapping[str, str]) -> str:
    """Commands that continue from a finished run, ready to paste.

    Where a command needs one of ``parts`` (which was passed in from Python), a Python call stands in its place.
    """
    run, curves, text = quote(str(run_dir)), quote(f"{run_dir}/tensorboard"), repr(str(run_dir))
    model, data = (
        f", {name}={parts[role].rpartition('.')[2]}(...)" if role in parts else ""
        for name, role in (("model", "model"), ("data", "val_data"))
    )
    score = f"segtrain.evaluate({text}{data}{model})" if data or model else f"segtrain eval {run}"
    predict = f"segtrain.load({text}{model}).predict(images)" if model else f"segtrain predict {run} IMAGES"
    export = f"segtrain.export({text}, 'exported'{model})" if model else f"segtrain export {run}"
    return (
        f"curves    tensorboard --logdir {curves}\n" if tensorboard else ""
    ) + f"report    segtrain report {run}\nnext      {score}   {predict}   {export}"

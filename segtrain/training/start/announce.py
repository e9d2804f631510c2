"""First lines of a run: what rank 0 prints, and writes into the journal and the trackers, when it
begins or resumes.
"""

from __future__ import annotations

import os
import platform
import socket

import numpy as np
import torch

from segtrain import __version__
from segtrain.base.terminal import counted
from segtrain.config import SMP
from segtrain.data.pixels import native
from segtrain.observe import console
from segtrain.observe.journal import Journal
from segtrain.observe.tracker import TrackedRun
from segtrain.observe.trackers import open_trackers
from segtrain.optim import multiplier
from segtrain.parallel.network import describe_network
from segtrain.runfolder.rundir import NAMES
from segtrain.training.learner import StartingNetwork
from segtrain.training.output import Output
from segtrain.training.saver import decoder
from segtrain.training.start import faults
from segtrain.training.start.derived import Plan
from segtrain.training.start.price import price_of
from segtrain.training.start.stages import CheckedData, OpenedData, Restored, Start


def announce(
    start: Start,
    opened: OpenedData,
    network: StartingNetwork,
    data: CheckedData,
    restored: Restored,
) -> Output:
    """Open a run's output, and write how it begins or resumes."""
    config = start.config
    strategy = start.strategy
    plan = data.plan
    state = restored.state
    saved = restored.saved
    run_dir = config.run_dir
    rank = strategy.rank
    findings = data.findings
    initial = network.initial
    screen = console.Console(plan.steps, plan.epoch(plan.steps), rank=rank)
    derived = _derived(start, data, restored)
    screen.say(console.banner(f"segtrain {__version__}  {config.title}  #{config.hash}", derived))
    for remark in (
        *network.model.remarks,
        *opened.folder.remarks,
        *(initial.lines() if initial else []),
        *findings.remarks,
        *restored.remarks,
        *([opened.limit.line()] if opened.limit else []),
    ):
        screen.say(remark)
    auto = config.loss.class_weights == "auto"
    journal = Journal(run_dir / "journal.jsonl", rank)
    journal.write(
        "run_start",
        version=__version__,
        name=config.name,
        hash=config.hash,
        versions={"python": platform.python_version(), "torch": torch.__version__},
        host=socket.gethostname(),
        pid=os.getpid(),
        device=str(strategy.device),
        world_size=strategy.world_size,
        strategy=strategy.name,
        total_steps=plan.steps,
        eval_every=plan.eval_every,
        save_every=plan.save_every,
        derived=derived,
        warnings=findings.caveats,
        begun=start.begun,
        hosts=strategy.cluster.hosts,
        machine=strategy.cluster.machine,
        price=price_of(config, strategy.cluster.machine),
        **({"class_weights": findings.class_weights} if auto else {}),
    )
    complete = {"train": opened.train, "val": opened.val}
    if config.data.split_by.on:
        images = {config.data.train_split: len(opened.train), config.data.split: len(opened.val)}
        journal.write("split", rule=config.data.split_by.model_dump(), images=images, folder=NAMES)
    if initial is not None:
        journal.write("init", **initial.to_dict())
    for role, skipped in findings.skipped.items():
        if skipped:
            journal.write(
                "faults",
                role=role,
                skipped=len(skipped),
                images=len(complete[role]),
                file=faults.FILE,
            )
    if saved is not None:
        screen.say(f"going on from step {state.step} of {plan.steps}")
        if plan.steps > plan.planned:
            screen.say(_extension(start, plan))
        begun = saved["decoder"]
        if begun != decoder():
            screen.say(
                f"earlier samples came from the {begun} decoder, later ones come from the "
                f"{decoder()} decoder ({native.describe()}): pixels may differ by a few levels, so "
                "the run is not bit-for-bit repeatable"
            )
        journal.write("resume", step=state.step, world_size=saved["world_size"])
        if findings.changed:
            journal.write("data_changed", step=state.step, text=findings.changed)
    resume_step = state.step if saved is not None else None
    run = TrackedRun(
        run_dir, config.title, config.hash, config.model_dump(mode="json"), resume_step
    )
    trackers = open_trackers(
        config.log, run, start.trackers, rank=rank, say=screen.say, own=start.objects.trackers
    )
    if saved is None:
        trackers.text("config", config.to_yaml())
    return Output(screen, journal, trackers, tuple(findings.caveats))


def _extension(start: Start, plan: Plan) -> str:
    """What the learning rate does after the steps of ``train.duration``."""
    optim, planned, steps = start.config.optim, plan.planned, plan.steps
    rate = optim.lr * multiplier(optim, planned, steps, plan.warmup)
    text = f"train.extend: {steps - planned} steps after step {planned}, learning rate {rate:.3g}"
    if optim.schedule == "constant":
        return text
    return (
        f"{text} and down to 0, as {optim.schedule} has over all {steps} steps (that of "
        f"train.duration has ended at 0)"
    )


def _derived(start: Start, data: CheckedData, restored: Restored) -> dict[str, str]:
    """Derived quantities in words, for the banner and the journal."""
    config = start.config
    strategy = start.strategy
    names = start.names
    plan, learner = data.plan, restored.learner
    sizes = [(p.numel(), p.requires_grad) for p in learner.plain.parameters()]
    size = f"{console.count(sum(n for n, _ in sizes))} parameters"
    if learner.plain.frozen_parts():
        size += (
            f", {console.count(sum(n for n, trained in sizes if trained))} of them trained "
            f"(the {learner.plain.frozen} is frozen)"
        )
    images = config.train.batch_size
    ranks = strategy.world_size
    accumulate = config.train.accumulate
    count = counted(torch.get_num_threads(), "thread")
    threads = f", {count} each" if strategy.device.type == "cpu" else ""
    arch = (
        f"{config.model.arch} {config.model.encoder if config.model.arch.lower() in SMP else ''}"
    ).strip()
    auto = " (auto)" if "auto" in (config.eval.every, config.checkpoint.every) else ""

    def often(every: int) -> str:
        return f"every {every}" if every < plan.steps else "at the end"

    origin = learner.plain.origin
    wide = "; masks of more than 254 classes are decoded whole, by packages"
    numbers = [learner.precision.name, "channels_last" * learner.channels_last]
    if config.train.compile:
        numbers.append(
            "compiled" if config.train.compile is True else f"compiled ({config.train.compile})"
        )
    return {
        "run folder": f"{config.out_bucket}, here {config.run_dir}"
        if config.out_bucket
        else str(config.run_dir),
        "data": (
            f"{data.train.name}: {plan.samples} images to train, {len(data.val)} to score, "
            f"{data.train.labels.num_classes} classes"
        ),
        "model": f"{names.get('model', arch)}, {size}",
        "images": origin.images(),
        **({"license": origin.terms()} if origin.license else {}),
        **({"loss": names["criterion"]} if "criterion" in names else {}),
        "ranks": (
            f"{ranks} x {strategy.device.type}{threads}, strategy {strategy.name} "
            f"{strategy.backend}"
        ).strip(),
        **(
            {"network": describe_network()}
            if strategy.backend == "nccl" and strategy.cluster.hosts > 1
            else {}
        ),
        "batch": (
            f"{counted(images, 'image')} = {counted(ranks, 'rank')} x "
            f"{counted(accumulate, 'micro-batch')} x "
            f"{images / ranks / accumulate:g}"
        ),
        "crops": ", ".join(f"{h}x{w} until step {until}" for until, (h, w), _ in plan.crops),
        "decoder": native.describe() + wide * (data.train.labels.mask_dtype is np.uint16),
        "steps": f"{plan.steps} = {console.epochs_text(plan.epoch(plan.steps))} epochs; eval "
        f"{often(plan.eval_every)}, save {often(plan.save_every)}{auto}",
        "numbers": ", ".join(filter(None, numbers)),
    }

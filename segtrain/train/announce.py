"""What a run says at its start, and the places where it goes on saying: terminal, journal, trackers."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from segtrain import __version__
from segtrain.config import Config
from segtrain.data.datasets import Dataset
from segtrain.data.pixels import native
from segtrain.observe import console
from segtrain.observe.journal import Journal
from segtrain.observe.trackers import Trackers, open_trackers
from segtrain.parallel.strategy import Strategy
from segtrain.train import faults
from segtrain.train.derived import decoder, derive, versions
from segtrain.train.initial import Initial
from segtrain.train.learner import Learner
from segtrain.train.parts import Parts
from segtrain.train.plan import Plan
from segtrain.train.rundir import NAMES
from segtrain.train.state import State


@dataclass(frozen=True)
class Output:
    """Where a rank writes what happens; ranks other than 0 write nothing."""

    screen: console.Console
    journal: Journal
    trackers: Trackers
    caveats: tuple[str, ...]  # warnings that every score of this run must be read with

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
    counts: tuple[int, int],
    initial: Initial | None,
    prepared: Mapping[str, Any],
    remarks: list[str],
) -> Output:
    """Open a run's output, and write how it begins or resumes.

    ``saved``: the checkpoint that it resumes from. ``splits``: whole, by role. ``counts``: images to train on and to score.
    """
    run_dir, rank = config.run_dir, strategy.rank
    screen = console.Console(plan.steps, plan.epoch(plan.steps), rank=rank)
    derived = derive(
        config, strategy, plan, splits["train"], counts, learner.plain, learner.channels_last, parts.names()
    )
    screen.say(console.banner(f"segtrain {__version__}  {config.name or 'run'}  #{config.hash}", derived))
    for remark in remarks:
        screen.say(remark)
    journal = Journal(run_dir / "journal.jsonl", rank)
    journal.write(
        "run_start", version=__version__, versions=versions(), name=config.name, hash=config.hash,
        host=socket.gethostname(), pid=os.getpid(), device=str(strategy.device), world_size=strategy.world_size,
        total_steps=plan.steps, eval_every=plan.eval_every, save_every=plan.save_every, derived=derived,
        warnings=prepared["caveats"],
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
    trackers = open_trackers(
        config.log, run_dir, name=config.name or run_dir.name, hash=config.hash, rank=rank,
        config=config.model_dump(mode="json"), resume_step=state.step if saved is not None else None, say=screen.say,
        own=parts.trackers,
    )  # fmt: skip
    if saved is None:
        trackers.text("config", config.to_yaml())
    return Output(screen, journal, trackers, tuple(prepared["caveats"]))


def _resumed(
    plan: Plan, state: State, saved: Mapping[str, Any], data_changed: str, screen: console.Console, journal: Journal
) -> None:
    screen.say(f"going on from step {state.step} of {plan.steps}")
    begun = saved.get("decoder", decoder())
    if begun != decoder():
        screen.say(
            f"the samples so far were made by the {begun} decoder, from now on by the {decoder()} one ({native.describe()}): they "
            "round alike but for a few levels, so the run is not equal to the bit"
        )
    journal.write("resume", step=state.step, world_size=saved["world_size"])
    if data_changed:
        journal.write("data_changed", step=state.step, text=data_changed)

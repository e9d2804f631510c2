"""Guarantee 2: a stopped, killed, or extended run continues as if it had not been interrupted."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from segtrain.base.terminal import counted
from segtrain.config import Config
from segtrain.errors import EXIT_RESUMABLE
from segtrain.observe.journal import read_journal
from segtrain.parallel.cluster import Cluster
from segtrain.prove.ranks import TIMEOUT_S, RankFailed, Ranks, on_ranks, train_here
from segtrain.prove.short import STEPS, changed
from segtrain.prove.table import ProofRow, row
from segtrain.runfolder import checkpoint

NAME = "2 resume"
TRIES = 5  # a fast run may finish before the signal arrives


def prove_resume(folder: Path, config: Config, worlds: list[int]) -> Iterator[ProofRow]:
    """Compare interrupted and resumed runs with an uninterrupted one, which stays in
    ``folder/whole``.

    Resumes on 2 ranks only if one of ``worlds`` is larger than 1. Their weights are compared with
    parallel.exact only.
    """
    whole = changed(config, out=str(folder / "whole"))
    exact = config.parallel.exact > 0
    code = on_ranks(folder, 1, train_here, whole)[0]
    if code != 0:
        raise RankFailed(f"a run of {STEPS} steps exited with code {code}")
    if config.train.device == "cuda":
        again = changed(config, out=str(folder / "again"))
        if code := on_ranks(folder, 1, train_here, again)[0]:
            raise RankFailed(f"the second run exited with code {code}")
        yield _judge(folder, "the same run a second time", STEPS, whole, again, weights=True)
    draw = random.Random()
    cases = [
        (signal.SIGTERM, 1, 3),
        (signal.SIGKILL, 1, 0),
        *([(signal.SIGKILL, 2, 2)] if max(worlds) > 1 else []),
    ]
    for number, world, workers in cases:
        name = signal.Signals(number).name
        compared = (
            f"run stopped by {name}, resumed on {counted(world, 'rank')} with {workers} workers"
        )
        interrupted = _interrupted(folder, whole, number, draw)
        if interrupted is None:
            yield row(
                NAME,
                compared,
                f"in {TRIES} tries, the {STEPS} steps finished before the signal arrived",
            )
            continue
        partial, at = interrupted
        code = on_ranks(folder, world, train_here, changed(partial, data__workers=workers))[0]
        if code != 0:
            raise RankFailed(f"the resumed run exited with code {code}")
        yield _judge(folder, compared, at, whole, partial, weights=exact or world == 1)
    if max(worlds) < 2:
        yield row(NAME, "run stopped by SIGKILL, resumed on 2 ranks", "--ranks has only one rank")


def prove_extension(folder: Path, config: Config) -> Iterator[ProofRow]:
    """Compare runs with ``train.extend``, given once and given twice, with a run that was planned
    so long, all with a constant learning rate.
    """
    constant = changed(
        config,
        optim__schedule="constant",
        optim__poly_power=None,
        # these also depend on the planned length
        data__scale_end=None,
        train__progressive=[],
    )
    begin = STEPS // 3
    lengths = {"planned": [(STEPS, 0)], "once": [(begin, 0), (begin, STEPS - begin)]}
    lengths["twice"] = [(begin, 0), (begin, begin), (begin, STEPS - begin)]
    runs = {name: changed(constant, out=str(folder / f"extended-{name}")) for name in lengths}
    for name, starts in lengths.items():
        for steps, more in starts:
            longer = changed(runs[name], train__duration=f"{steps}st", train__extend=f"{more}st")
            if code := on_ranks(folder, 1, train_here, longer)[0]:
                raise RankFailed(f"a run of {steps} + {more} steps exited with code {code}")
    for name in ("once", "twice"):
        compared = f"run of {begin} steps extended {name}, compared with one of {STEPS}"
        yield _judge(folder, compared, begin, runs["planned"], runs[name], weights=True)


def _interrupted(
    folder: Path, whole: Config, number: int, draw: random.Random
) -> tuple[Config, int] | None:
    """Config of a run stopped after a random step, and its last step. None if all tries finished
    before the signal.
    """
    for _ in range(TRIES):
        step = draw.randint(2, STEPS // 2)
        config = changed(whole, out=str(folder / f"stopped-{signal.Signals(number).name}-{step}"))
        shutil.rmtree(config.out, ignore_errors=True)
        ranks = Ranks(folder, 1, train_here, config)
        end = time.monotonic() + TIMEOUT_S
        while ranks.running and max(_digests(config), default=0) < step and time.monotonic() < end:
            time.sleep(0.002)
        if ranks.running:
            ranks.signal(number)
        killed = number == signal.SIGKILL
        stopped = (
            ranks.wait() == [-signal.SIGKILL] if killed else ranks.results() == [EXIT_RESUMABLE]
        )
        done = max(_digests(config), default=0)
        if stopped and done < STEPS:
            return config, done
    return None


def _judge(
    folder: Path, compared: str, at: int, whole: Config, partial: Config, weights: bool
) -> ProofRow:
    """Compare samples and pixels of every step, including repeated steps, and with ``weights`` also
    the final state.
    """
    expected, resumed = _digests(whole), _digests(partial)
    wrong = sorted(step for step in expected if resumed.get(step) != expected[step])
    measured, differing = f"{len(wrong)} of {len(expected)} steps differ", 0
    remark = f"first difference: step {wrong[0]}, after the stop at step {at}" if wrong else ""
    compared += (
        ": samples, pixels, final weights and moments" if weights else ": samples and pixels"
    )
    if weights:
        differing, tensors = on_ranks(folder, 1, _unequal_weights, whole.out, partial.out)[0]
        measured += f", {differing} of {tensors} tensors"
    return row(NAME, compared, remark, not wrong and not differing, measured, "0")


def _digests(config: Config) -> dict[int, set[int]]:
    """Checksums of the samples of each step: two for a step that ran twice with different
    samples.
    """
    digests: defaultdict[int, set[int]] = defaultdict(set)
    if Path(config.out, "journal.jsonl").is_file():
        for event in read_journal(config.out, say=lambda _: None):
            if event["event"] == "step":
                digests[event["step"]].add(event["digest"])
    return digests


def _unequal_weights(cluster: Cluster, whole_folder: str, resumed_folder: str) -> tuple[int, int]:
    """How many tensors (weights, averages, moments) differ between the newest checkpoints, and how
    many there are.
    """
    first, second = final_tensors(whole_folder), final_tensors(resumed_folder)
    if first.keys() != second.keys():
        return len(first.keys() ^ second.keys()), len(first)
    return sum(not _same(first[name], second[name]) for name in first), len(first)


def final_tensors(folder: str | Path) -> dict[str, Any]:
    """Weights, averages, and moments of the newest checkpoint."""
    state = checkpoint.newest(Path(folder)).state
    if state is None:
        raise RankFailed(f"{folder} has no complete checkpoint")
    moments = {f"{p}.{k}": v for p, slots in state["optimizer"].items() for k, v in slots.items()}
    return {**state["model"], **{f"ema.{k}": v for k, v in state["ema"].items()}, **moments}


def _same(a: object, b: object) -> bool:
    return (
        torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b
    )

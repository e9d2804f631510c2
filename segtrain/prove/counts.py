"""Guarantees 3 and 4: scores, and what follows from them, do not depend on the number of ranks, nor
batches on the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from segtrain.config import Config
from segtrain.data.datasets import open_dataset
from segtrain.data.train_loader import TrainLoader
from segtrain.evaluation.evaluation import evaluate
from segtrain.losses import build_criterion
from segtrain.models import build_model
from segtrain.observe.journal import read_journal
from segtrain.observe.scores import named_score
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.strategy import start
from segtrain.prove.ranks import RankFailed, on_ranks, train_here
from segtrain.prove.short import STEPS, changed
from segtrain.prove.table import ONE_RANK, ProofRow, listed, row
from segtrain.runfolder import checkpoint
from segtrain.training.loop import _digest
from segtrain.training.start.numerics import set_numerics

SCORES, WORKERS = "3 evaluation", "4 workers"
COUNTS = (0, 1, 4)  # workers
PATIENCE = 2  # evaluations


def prove_evaluation(folder: Path, config: Config, worlds: list[int]) -> Iterator[ProofRow]:
    """Compare the confusion matrix and the validation loss on 1, 2, and 3 ranks, up to the largest
    of ``worlds``, and on each of ``worlds``.

    The weights are those of the run in ``folder/whole``, or initial ones if there is none.
    """
    several = sorted({2, 3, *worlds} & {*range(2, max(worlds) + 1)})
    if not several:
        yield row(SCORES, "confusion matrix and validation loss on several ranks", ONE_RANK)
        return
    expected, miou, loss, images = on_ranks(folder, 1, score, config, folder)[0]
    results = [
        result for world in several for result in on_ranks(folder, world, score, config, folder)
    ]
    wrong = max(int(np.count_nonzero(confusion != expected)) for confusion, *_ in results)
    place = f"on {listed(several)} ranks compared with 1, split {config.data.split!r}"
    remark = "" if expected.sum() else "no pixel was counted, because the images are all void"
    measured = f"{wrong} of {expected.size} cells differ, mIoU {100 * miou:.6f}%"
    counted = bool(expected.sum())
    compared = f"confusion matrix {place}, {images} images"
    yield row(SCORES, compared, remark, not wrong and counted, measured, "0")
    wrong = sum(result[2] != loss for result in results)
    measured = f"{wrong} of {len(results)} ranks differ, loss {loss:.9g}"
    yield row(SCORES, f"validation loss {place}", remark, not wrong and counted, measured, "0")


def prove_patience(folder: Path, config: Config, worlds: list[int]) -> Iterator[ProofRow]:
    """Compare where ``train.patience`` ends a run on each of ``worlds`` ranks with what the scores
    of that run say.

    All ranks of a run must end there. Runs on other numbers of ranks have weights that differ by
    rounding (and dropout), so their ends are shown, and not compared.
    """
    best_by, ends, wrong = named_score(config.eval.best), [], 0
    for world in worlds:
        out = folder / f"patience-{world}"
        settings = {"train__patience": PATIENCE, "eval__every": "1st", "parallel__sync_bn": True}
        patient = changed(config, out=str(out), **settings)
        if code := max(on_ranks(folder, world, train_here, patient)):
            raise RankFailed(f"a run with train.patience on {world} ranks exited with code {code}")
        events = [event for event in read_journal(out) if event["event"] == "eval"]
        values = [event["scores"][best_by.key] for event in events]
        best = ended = 0
        for ended, value in enumerate(values, 1):
            if value is not None and (not best or best_by.better(value, values[best - 1])):
                best = ended
            elif ended - best == PATIENCE:
                break
        ends.append(len(values))
        wrong += ended < len(values) or (ended < STEPS and ended - best < PATIENCE)
    measured = f"{wrong} of {len(ends)} runs end elsewhere; after {listed(ends)} of {STEPS} steps"
    where = f"end by train.patience={PATIENCE} on {listed(worlds)} ranks compared with its scores"
    yield row(SCORES, where, "", not wrong, measured, "0")


def score(cluster: Cluster, config: Config, folder: Path) -> tuple[np.ndarray, float, float, int]:
    """Confusion matrix, int64 (C, C); mIoU; loss; number of images. Every rank returns the same."""
    with start(config.parallel, cluster, config.train.device) as strategy:
        precision = set_numerics(config, strategy)
        dataset = open_dataset(config.data, config.data.split)
        labels = dataset.labels
        torch.manual_seed(config.train.seed)
        model = build_model(config.model, labels.num_classes, config.data.channels)
        model.origin = model.origin.changed(config.data)
        if checkpoint.checkpoints(folder / "whole"):
            model.load_state_dict(checkpoint.load_weights(folder / "whole", "last")[0])
        result = evaluate(
            model.to(strategy.device),
            dataset,
            config.eval,
            device=strategy.device,
            precision=precision,
            rank=cluster.rank,
            world_size=cluster.world_size,
            all_reduce=strategy.reduce,
            workers=1,
            base_scale=config.data.base_scale,
            criterion=build_criterion(config.loss, labels.num_classes, labels.ignore_index),
        )
    return result.confusion, float(result.scores.miou), result.more["loss"], len(dataset)


def prove_workers(folder: Path, config: Config, full_size: Config) -> Iterator[ProofRow]:
    """Compare the first batches that 0, 1, and 4 workers make, with crops of the user's size."""
    steps = 6
    crop = full_size.data.crop
    first, *others = [
        on_ranks(folder, 1, consumed, config, crop, steps, workers)[0] for workers in COUNTS
    ]
    if not all(first):
        raise RankFailed("a batch has no checksum")
    wrong = max(sum(a != b for a, b in zip(first, other)) for other in others)
    compared = (
        f"samples and pixels of {steps} batches with {listed(COUNTS)} workers, crops of "
        f"{crop[0]}x{crop[1]}"
    )
    yield row(WORKERS, compared, "", not wrong, f"{wrong} of {steps} batches differ", "0")


def consumed(
    cluster: Cluster, config: Config, crop: tuple[int, int], steps: int, workers: int
) -> list[int]:
    """A checksum of each batch."""
    dataset = open_dataset(config.data, config.data.train_split)
    with TrainLoader(
        dataset,
        config.data.model_copy(update={"crop": tuple(crop)}),
        seed=config.train.seed,
        batch_size=config.train.batch_size,
        last_step=steps,
        workers=workers,
        prefetch=1 + workers,
    ) as loader:
        return [_digest(batches) for batches in loader]

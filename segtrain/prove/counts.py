"""Guarantees 3 and 4: scores do not depend on the number of ranks, nor batches on the number of
workers.
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
from segtrain.models import build_model
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.strategy import start
from segtrain.prove.ranks import RankFailed, on_ranks
from segtrain.prove.table import ONE_RANK, ProofRow, listed, row
from segtrain.runfolder import checkpoint
from segtrain.training.loop import _digest
from segtrain.training.start.numerics import set_numerics

SCORES, WORKERS = "3 evaluation", "4 workers"
COUNTS = (0, 1, 4)  # workers


def prove_evaluation(folder: Path, config: Config, worlds: list[int]) -> Iterator[ProofRow]:
    """Compare the confusion matrix on 1, 2, and 3 ranks, up to the largest of ``worlds``.

    The weights are those of the run in ``folder/whole``, or initial ones if there is none.
    """
    several = list(range(2, min(3, max(worlds)) + 1))
    if not several:
        yield row(SCORES, "confusion matrix on several ranks", ONE_RANK)
        return
    expected, miou, images = on_ranks(folder, 1, score, config, folder)[0]
    results = [
        result for world in several for result in on_ranks(folder, world, score, config, folder)
    ]
    wrong = max(int(np.count_nonzero(confusion != expected)) for confusion, _, _ in results)
    compared = (
        f"confusion matrix on {listed(several)} ranks compared with 1, split {config.data.split!r}"
    )
    remark = "" if expected.sum() else "no pixel was counted, because the images are all void"
    measured = f"{wrong} of {expected.size} cells differ, mIoU {100 * miou:.6f}%"
    yield row(
        SCORES,
        f"{compared}, {images} images",
        remark,
        not wrong and bool(expected.sum()),
        measured,
        "0",
    )


def score(cluster: Cluster, config: Config, folder: Path) -> tuple[np.ndarray, float, int]:
    """Confusion matrix, int64 (C, C); mIoU; number of images. Every rank returns the same."""
    with start(config.parallel, cluster, config.train.device) as strategy:
        precision = set_numerics(config, strategy)
        dataset = open_dataset(config.data, config.data.split)
        torch.manual_seed(config.train.seed)
        model = build_model(config.model, dataset.labels.num_classes, config.data.channels)
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
        )
    return result.confusion, float(result.scores.miou), len(dataset)


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

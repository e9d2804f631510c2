"""Evaluation of a run: `segtrain eval` and `segtrain.evaluate`, on one rank or many."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from segtrain.base.cores import cores
from segtrain.base.terminal import say
from segtrain.config import Config, keys_with, parse_overrides, read_parts
from segtrain.config.mistakes import fields
from segtrain.data.audit.audit import refuse_void
from segtrain.data.audit.images import flip_finding
from segtrain.data.audit.statistics import label_warnings
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.index.subset import without
from segtrain.data.labels.space import LabelSpace
from segtrain.data.own import own_dataset
from segtrain.data.pixels.reading import Reading
from segtrain.data.workers.autoscaler import worker_count
from segtrain.errors import ConfigError, DataError
from segtrain.evaluation import evaluation
from segtrain.evaluation.chosen import refuse_eval
from segtrain.evaluation.load import load_run
from segtrain.evaluation.region import inside
from segtrain.losses import build_criterion
from segtrain.observe.image_table import table
from segtrain.observe.journal import FILE as JOURNAL
from segtrain.observe.journal import read_journal
from segtrain.observe.scores import BEST, LOSS, named_score
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.strategy import start
from segtrain.runfolder.rundir import open_run
from segtrain.training.score_output import (
    extremes,
    open_folder,
    refuse_confusion,
    write_confusion,
    write_images,
)
from segtrain.training.start.faults import FILE, left_out
from segtrain.training.start.numerics import chosen_precision
from segtrain.training.start.same_data import DAMAGED, list_file, read_list, rows_of
from segtrain.training.start.user_objects import sharing_listings

_SHOWN = 5  # worst images that are listed
# A run counts as trained on these samples if there are more than _SURE x (1 + number by chance)
# matches.
_SURE = 3


def score(
    run_dir: Path,
    overrides: list[str],
    which: str,
    cluster: Cluster,
    quiet: bool,
    images: Path | None = None,
    confusion: Path | None = None,
    items: Any = None,
    module: nn.Module | None = None,
) -> dict[str, Any]:
    """Scores, protocol, and checkpoint as JSON values. Rank 0 prints a table unless ``quiet``, and
    writes files.

    The arguments are those of ``segtrain.evaluate``; ``items``: its ``data`` if that is a dataset,
    ``module``: its ``model``.
    """
    if confusion:
        refuse_confusion(confusion)
    _refuse_unread(overrides)
    model, trained, labels = load_run(run_dir, which, module)
    config = open_run(run_dir, overrides)
    with start(config.parallel, cluster, config.train.device) as strategy:
        with sharing_listings(config.data, strategy):
            dataset = _dataset(run_dir, config, labels, items, overrides)
        skipped = left_out(run_dir, dataset)
        dataset = inside(without(dataset, skipped), config.eval.region)
        refuse_eval(config.eval, dataset.labels.names)
        if skipped and not quiet and not cluster.rank:
            say(
                f"{len(skipped):,} faulty images of {dataset.split} are left out, as in the run: "
                f"{run_dir / FILE}"
            )
        refuse_void(dataset)
        weights = strategy.broadcast_object(_class_weights(run_dir, config))
        criterion = None
        if weights is not None:
            classes, ignored = dataset.labels.num_classes, dataset.labels.ignore_index
            known = torch.tensor(weights) if weights else None
            criterion = build_criterion(config.loss, classes, ignored, known)
        if images and not cluster.rank:
            open_folder(images)
        local_ranks = strategy.cluster.local_world_size
        on_cpu = strategy.device.type == "cpu"
        workers = worker_count(config.data.workers, cores(), local_ranks, on_cpu)
        result = evaluation.evaluate(
            model.to(strategy.device),
            dataset,
            config.eval,
            device=strategy.device,
            precision=chosen_precision(config.train.precision, strategy),
            rank=strategy.rank,
            world_size=strategy.world_size,
            all_reduce=strategy.reduce,
            workers=workers.start,
            base_scale=config.data.base_scale,
            extremes=extremes(config) if images else 0,
            criterion=criterion,
        )
    flips = flip_finding("eval.flip" if config.eval.flip else "", dataset.labels)
    caveats = (
        *label_warnings(labels.names, result.scores.pixels),
        *_trained_on(run_dir, dataset, trained),
    )
    caveats += tuple(finding.text() for finding in flips)
    scores = result.values()
    worst = [row for row in result.images.rows(dataset) if row.miou is not None][:_SHOWN]
    if not cluster.rank:
        lines = []
        if images:
            written = write_images(images, result, dataset, f"{config.title}  {which}")
            lines.append(f"written into {images}: {', '.join(written)}\n")
        if confusion:
            write_confusion(confusion, result.confusion.tolist(), labels.names)
            lines.append(
                f"confusion matrix (rows: truth, columns: prediction, pixels) in {confusion}\n"
            )
        if not quiet:
            say(result.scores.table(labels.names))
            say(f"per image: {named_score('mean_image_dice').text(scores)}")
            for name, distance in zip(labels.names, scores.get("hausdorff", ())):
                shown = "-" if distance is None else f"{distance:.2f} px"
                say(f"Hausdorff distance (95 %) of {name}: {shown}")
            say(f"\n{table(worst)}\n" if worst else "no image has a score: all of them are void")
            for line in lines:
                say(line)
            loss = LOSS.text(scores) if criterion else "loss unknown"
            say(f"{BEST.text(scores)}  {loss}  {result.protocol['line']}")
            for text in caveats:
                say(f"warning: {dataset.split}: {text}")
    return {
        **scores,
        "class_names": list(labels.names),
        "warnings": list(caveats),
        "protocol": result.protocol,
        "run": str(run_dir),
        "which": which,
        "worst_images": [asdict(row) for row in worst],
        "seconds": round(result.seconds, 3),
    }


def _refuse_unread(overrides: list[str]) -> None:
    """Raise ConfigError for a setting that would change nothing in an evaluation."""
    for section, values in parse_overrides(overrides).items():
        for name in values if isinstance(values, dict) else [""]:
            key = f"{section}.{name}".rstrip(".")
            if key in fields() and key not in keys_with("eval"):
                raise ConfigError(
                    f"{key} has no effect on an evaluation: leave it out, or give it to "
                    "segtrain train",
                    code="setting-not-for-eval",
                    key=key,
                )


def _class_weights(run_dir: Path, config: Config) -> list[float] | None:
    """The automatic class weights of the run's loss, which are in its journal; empty without such.

    None if the loss cannot be made again: it is from Python, or the journal lacks the weights.
    """
    if "criterion" in read_parts(run_dir):
        return None
    if config.loss.class_weights != "auto":
        return []
    events = read_journal(run_dir) if (run_dir / JOURNAL).is_file() else []
    starts = [event for event in events if event["event"] == "run_start"]
    return starts[-1].get("class_weights") if starts else None


def _dataset(
    run_dir: Path, config: Config, labels: LabelSpace, items: Any, overrides: list[str]
) -> Dataset:
    """The split to score. Raises ConfigError if the run used a dataset from Python, and none was
    passed.

    Raises DataError if the number of classes differs.
    """
    own = read_parts(run_dir).get("val_data", "")
    if items is not None:
        dataset = own_dataset(items, labels, config.data.split, Reading.from_data(config.data))
    elif own and not any(word.lstrip("-").startswith("data.") for word in overrides):
        raise ConfigError(
            f"{run_dir} was scored on a {own} from Python: pass one, as in "
            f"segtrain.evaluate({str(run_dir)!r}, data={own.rpartition('.')[2]}(...)), or set "
            "data.layout and data.root",
            code="own-data-missing",
            data=own,
        )
    else:
        dataset = open_dataset(config.data, config.data.split)
    if dataset.labels.num_classes != labels.num_classes:
        raise DataError(
            f"{dataset.name} has {dataset.labels.num_classes} classes, but the run {run_dir} was "
            f"trained on {labels.num_classes}: score it on data with the same classes",
            code="class-count-differs",
            found=dataset.labels.num_classes,
            expected=labels.num_classes,
        )
    return dataset


def _trained_on(run_dir: Path, dataset: Dataset, trained: Config) -> list[str]:
    """A warning if the run was trained on some of these images."""
    count = trained_on(run_dir, dataset, dataset.split == trained.data.train_split)
    if not count:
        return []
    images = (
        "these images"
        if count == len(dataset)
        else f"at least {count:,} of these {len(dataset):,} images"
    )
    return [
        f"by names and sizes, the run was trained on {images}: the score says little about "
        "new images"
    ]


def trained_on(run_dir: Path, dataset: Dataset, same_split: bool) -> int:
    """Count the samples of ``dataset`` that the run was trained on, by names and file sizes; 0 if
    that is unknown.

    ``same_split``: ``dataset`` has the name of the split that was trained on. If all samples with a
    common name then have equal sizes, they all count. Otherwise, other images may have the same
    names, so there must be clearly more matches than by chance. Samples whose sizes the run has not
    recorded do not count. Raises DataError for a missing file.
    """
    samples = {
        name: (image, mask) for name, image, mask, _ in rows_of(dataset, dataset.stamps()[:, :, 0])
    }
    sizes: Counter[int] = Counter()
    same_name = same_size = 0
    try:
        for name, image, mask, _ in read_list(list_file(run_dir, "train")):
            sizes[image] += 1
            same_name += name in samples
            same_size += samples.get(name) == (image, mask)
    except DAMAGED:
        return 0
    # generated samples have no files: names identify them
    if not dataset.root or (same_split and same_size == same_name):
        return same_size
    by_chance = (
        same_name * sum(count * count for count in sizes.values()) / max(1, sizes.total()) ** 2
    )
    return same_size if same_size > _SURE * (1 + by_chance) else 0

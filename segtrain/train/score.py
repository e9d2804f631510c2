"""`segtrain eval`: a run's weights on a split, on one rank or many."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from segtrain.config import Config
from segtrain.cores import cores
from segtrain.data.audit.statistics import label_warnings
from segtrain.data.datasets import Dataset, open_dataset
from segtrain.data.index.subset import without
from segtrain.data.workers.autoscaler import worker_count
from segtrain.errors import DataError
from segtrain.evaluate.evaluation import evaluate
from segtrain.evaluate.load import load_run
from segtrain.observe.console import of_classes
from segtrain.observe.image_table import table
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.strategy import start
from segtrain.terminal import say
from segtrain.train.faults import FILE, left_out
from segtrain.train.rundir import open_run
from segtrain.train.sample_lists import trained_on
from segtrain.train.scored import extremes, open_folder, refuse_confusion, write_confusion, write_images

_SHOWN = 5  # images by name


def score(
    run_dir: Path,
    overrides: list[str],
    which: str,
    cluster: Cluster,
    quiet: bool,
    images: Path | None = None,
    confusion: Path | None = None,
) -> dict[str, Any] | None:
    """Scores, protocol and checkpoint as JSON values on rank 0, None elsewhere. Prints a table unless ``quiet``.

    ``overrides`` change the run's config: data.root, data.split, eval.tile, ... ``images``: a folder for the scores of all
    images and pictures of the worst and the best. ``confusion``: a .csv or .json file for the confusion matrix. Nothing is written
    without them. Raises SegtrainError.
    """
    if confusion:
        refuse_confusion(confusion)
    model, trained, labels = load_run(run_dir, which)
    config = open_run(run_dir, overrides)
    dataset = open_dataset(config.data, config.data.split)
    if dataset.labels.num_classes != labels.num_classes:
        raise DataError(
            f"{dataset.name} has {dataset.labels.num_classes} classes, the run {run_dir} was trained on {labels.num_classes}: "
            "score it on data with the same classes"
        )
    skipped = left_out(run_dir, dataset)
    dataset = without(dataset, skipped)
    if skipped and not quiet and not cluster.rank:
        say(f"{len(skipped):,} faulty images of {dataset.split} are left out, as in the run: {run_dir / FILE}")
    if images and not cluster.rank:
        open_folder(images)
    with start(config.parallel, cluster, config.train.device) as strategy:
        result = evaluate(
            model.to(strategy.device),
            dataset,
            config.eval,
            device=strategy.device,
            precision=config.train.precision,
            rank=strategy.rank,
            world_size=strategy.world_size,
            all_reduce=strategy.reduce,
            workers=worker_count(
                config.data.workers, cores(), cluster.local_world_size, strategy.device.type == "cpu"
            ).start,
            base_scale=config.data.base_scale,
            extremes=extremes(config) if images else 0,
        )
    if cluster.rank:
        return None
    caveats = (*label_warnings(labels.names, result.scores.pixels), *_trained_on(run_dir, dataset, trained))
    rows = result.images.rows(dataset)
    worst = [row for row in rows if row.miou is not None][:_SHOWN]
    few = of_classes(result.scores.pixels)
    title = f"{config.name or run_dir.name}  {which}  mIoU {100 * result.scores.miou:.1f}%{few}"
    written = write_images(images, result, dataset, title) if images else []
    if confusion:
        write_confusion(confusion, result.confusion.tolist(), labels.names)
    if not quiet:
        say(result.scores.table(labels.names))
        say(f"\n{table(worst)}\n" if worst else "no image has a score: all of them are void")
        if images:
            say(f"written into {images}: {', '.join(written)}\n")
        if confusion:
            say(f"confusion matrix (rows: truth, columns: prediction, pixels) in {confusion}\n")
        say(f"mIoU {100 * result.scores.miou:.2f}%{few}  {result.protocol['line']}")
        for text in caveats:
            say(f"warning: {dataset.split}: {text}")
    return {
        **result.scores.to_dict(),
        "class_names": list(labels.names),
        "warnings": list(caveats),
        "protocol": result.protocol,
        "run": str(run_dir),
        "which": which,
        "worst_images": [asdict(row) for row in worst],
        "seconds": round(result.seconds, 3),
    }


def _trained_on(run_dir: Path, dataset: Dataset, trained: Config) -> list[str]:
    """The remark that a score must be read with where its images are some that the run was trained on."""
    count = trained_on(run_dir, dataset, dataset.split == trained.data.train_split)
    if not count:
        return []
    which = "these images" if count == len(dataset) else f"at least {count:,} of these {len(dataset):,} images"
    return [
        f"by names and sizes, the run was trained on {which}: the score does not tell how the model does on new ones"
    ]

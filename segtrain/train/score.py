"""`segtrain eval`: a run's weights on a split, on one rank or many."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from segtrain.cores import cores
from segtrain.data.crew.pace import staff
from segtrain.data.datasets import open_dataset
from segtrain.data.subset import without
from segtrain.errors import DataError
from segtrain.infer.load import load_run
from segtrain.observe.image_table import table
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.strategy import start
from segtrain.train.evaluate import evaluate
from segtrain.train.faults import FILE, left_out
from segtrain.train.rundir import open_run
from segtrain.train.scored import extremes, open_folder, write_images

_SHOWN = 5  # images by name


def score(
    run_dir: Path, overrides: list[str], which: str, cluster: Cluster, quiet: bool, images: Path | None = None
) -> dict[str, Any] | None:
    """Scores, protocol and checkpoint as JSON values on rank 0, None elsewhere. Prints a table unless ``quiet``.

    ``overrides`` change the run's config: data.root, data.split, eval.tile, ... ``images``: a folder for the scores of all
    images and pictures of the worst and the best; nothing is written without it. Raises SegtrainError.
    """
    model, _, labels = load_run(run_dir, which)
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
        print(f"{len(skipped):,} faulty images of {dataset.split} are left out, as in the run: {run_dir / FILE}")
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
            workers=staff(config.data.workers, cores(), cluster.local_world_size, strategy.device.type == "cpu").start,
            base_scale=config.data.base_scale,
            extremes=extremes(config) if images else 0,
        )
    if cluster.rank:
        return None
    rows = result.images.rows(dataset)
    worst = [row for row in rows if row.miou is not None][:_SHOWN]
    title = f"{config.name or run_dir.name}  {which}  mIoU {100 * result.scores.miou:.1f}%"
    written = write_images(images, result, dataset, title) if images else []
    if not quiet:
        print(result.scores.table(labels.names))
        print(f"\n{table(worst)}\n" if worst else "no image has a score: all of them are void")
        if images:
            print(f"written into {images}: {', '.join(written)}\n")
        print(f"mIoU {100 * result.scores.miou:.2f}%  {result.protocol['line']}")
    return {
        **result.scores.to_dict(),
        "class_names": list(labels.names),
        "protocol": result.protocol,
        "run": str(run_dir),
        "which": which,
        "worst_images": [asdict(row) for row in worst],
        "seconds": round(result.seconds, 3),
    }

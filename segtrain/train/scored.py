"""What does a run keep of an evaluation? Lines in journal and terminal, curves; at the best and the last one a table of images; pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from segtrain.config import Config
from segtrain.data.labels import LabelSpace
from segtrain.errors import DataError
from segtrain.observe import image_table, pictures
from segtrain.train.checkpoint import write_atomically

if TYPE_CHECKING:
    from segtrain.train.evaluate import Evaluation
    from segtrain.train.session import Session

MOST_CLASSES = 64  # whose confusion matrix goes into the journal: some 30 kB a line


def extremes(config: Config) -> int:
    """How many of the worst, and of the best images are shown: together as many as of those that are spread evenly."""
    return (config.log.pictures + 1) // 2


def tell(session: Session, result: Evaluation) -> None:
    state, labels, scores = session.state, session.validation.labels, result.scores
    epoch = session.plan.epoch(state.step)
    few = {"confusion": result.confusion} if len(result.confusion) <= MOST_CLASSES else {}
    session.journal.write(
        "eval", step=state.step, epoch=epoch, scores=state.scores, protocol=result.protocol,
        seconds=result.seconds, cpu_s=state.cpu_s, **few,
    )  # fmt: skip
    session.screen.say(
        f"epoch {epoch:.2f}  step {state.step}  mIoU {100 * scores.miou:.2f}%  pixel accuracy {100 * scores.accuracy:.2f}%  "
        f"({result.seconds:.1f} s, {result.protocol['line']})"
    )
    values = {"val/miou": scores.miou, "val/accuracy": scores.accuracy}
    session.trackers.scalars({**values, **{f"val/iou/{n}": v for n, v in zip(labels.names, scores.iou)}}, state.step)


def keep(session: Session, result: Evaluation, last: bool) -> None:
    """Into the run folder; every file is written whole or not at all. Raises CheckpointError or DataError where that fails."""
    state, run_dir = session.state, session.config.run_dir
    better = result.scores.miou > state.best_miou
    if better or last:
        table = image_table.as_csv(result.images.rows(session.validation))
        for name, wanted in ((image_table.BEST, better), (image_table.LAST, last)):
            if wanted:
                write_atomically(run_dir / name, table)
    title = f"{session.config.name or 'run'}  step {state.step}  mIoU {100 * result.scores.miou:.1f}%"
    for name, sheet in write_sheets(run_dir / "pictures", result, session.validation.labels, title).items():
        session.trackers.image(name, sheet, state.step)


def write_sheets(folder: Path, result: Evaluation, labels: LabelSpace, title: str) -> dict[str, np.ndarray]:
    """``val.png``, ``worst.png`` and ``best.png``, those that the evaluation has pictures for. Returns the sheets by name."""
    sheets = {}
    for name, samples, head in (
        ("val", result.pictures, title),
        ("worst", result.worst, f"the worst images: {title} over all"),
        ("best", result.best, f"the best images: {title} over all"),
    ):
        if samples:
            sheets[name] = pictures.contact_sheet(
                samples, labels.names, labels.palette, ignore_index=labels.ignore_index, title=head
            )
            pictures.save_png(folder / f"{name}.png", sheets[name])
    return sheets


def open_folder(folder: Path) -> None:
    """Make ``folder``. Raises DataError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot make the folder {folder}: {error.strerror}: choose another with --images DIR"
        ) from None


def write_images(folder: Path, result: Evaluation, dataset: Any, title: str) -> list[str]:
    """Of ``segtrain eval --images``: the table of all images, and pictures. Returns the names of the files."""
    write_atomically(folder / "images.csv", image_table.as_csv(result.images.rows(dataset)))
    drawn = write_sheets(folder, result, dataset.labels, title)
    for name in {"worst", "best"} - set(drawn):  # of an earlier evaluation
        (folder / f"{name}.png").unlink(missing_ok=True)
    return ["images.csv", *(f"{name}.png" for name in drawn)]

"""Results of an evaluation: lines in journal and terminal, curves, tables of images, pictures,
confusion matrix.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from segtrain.base.files import write_atomically
from segtrain.config import Config
from segtrain.data.labels.space import LabelSpace
from segtrain.errors import DataError
from segtrain.observe import image_table, pictures
from segtrain.observe.scores import BEST, LOSS, SHOWN, named_score

if TYPE_CHECKING:
    from segtrain.data.dataset import Dataset
    from segtrain.evaluation.evaluation import Evaluation
    from segtrain.training.output import Output
    from segtrain.training.state import State

# With more, the confusion matrix is not written to the journal: with 64, it has about 30 kB.
MOST_CLASSES = 64


def extremes(config: Config) -> int:
    """How many of the worst images, and how many of the best, are shown: half of ``log.pictures``
    each, rounded up.
    """
    return (config.log.pictures + 1) // 2


def announce_scores(
    output: Output, state: State, epoch: float, labels: LabelSpace, result: Evaluation, best: bool
) -> None:
    """Write the scores to the journal, the terminal, and the trackers. ``best``: whether they are
    the best so far.
    """
    small = len(result.confusion) <= MOST_CLASSES
    output.journal.write(
        "eval",
        step=state.step,
        epoch=epoch,
        scores=state.scores,
        protocol=result.protocol,
        seconds=result.seconds,
        cpu_s=state.cpu_s,
        best=best,
        **({"confusion": result.confusion} if small else {}),
    )
    shown = dict.fromkeys([*SHOWN, LOSS, named_score(state.best.by)])
    scores = [score for score in shown if state.scores.get(score.key) is not None]
    output.screen.say(
        f"epoch {epoch:.2f}  step {state.step}  "
        f"{'  '.join(score.text(state.scores) for score in scores)}  "
        f"({result.seconds:.1f} s, {result.protocol['line']})"
    )
    values = {
        **{f"val/{score.key}": state.scores[score.key] for score in scores},
        "val/seconds": result.seconds,
        **{f"val/iou/{name}": iou for name, iou in zip(labels.names, result.scores.iou)},
    }
    output.trackers.scalars(values, state.step)


def write_tables(
    output: Output,
    config: Config,
    state: State,
    validation: Dataset,
    result: Evaluation,
    best: bool,
    last: bool,
) -> None:
    """Write tables and pictures into the run folder. Raises CheckpointError or DataError."""
    run_dir = config.run_dir
    if best or last:
        table = image_table.as_csv(result.images.rows(validation))
        for name, is_due in ((image_table.BEST, best), (image_table.LAST, last)):
            if is_due:
                write_atomically(run_dir / name, table)
    title = f"{config.title}  step {state.step}"
    for name, sheet in write_sheets(run_dir / "pictures", result, validation.labels, title).items():
        output.trackers.image(name, sheet, state.step)


def write_sheets(
    folder: Path, result: Evaluation, labels: LabelSpace, title: str
) -> dict[str, np.ndarray]:
    """Write ``val.png``, ``worst.png`` and ``best.png``, where there are pictures, each with
    ``title`` and the score. Returns the sheets by name.
    """
    sheets = {}
    title += f"  {BEST.text(result.scores.to_dict(), digits=1)}"
    for name, samples, heading in (
        ("val", result.pictures, title),
        ("worst", result.worst, f"the worst images: {title} over all"),
        ("best", result.best, f"the best images: {title} over all"),
    ):
        if samples:
            sheets[name] = pictures.contact_sheet(
                samples,
                labels.names,
                labels.palette,
                ignore_index=labels.ignore_index,
                title=heading,
            )
            pictures.save_png(folder / f"{name}.png", sheets[name])
    return sheets


def open_folder(folder: Path) -> None:
    """Make ``folder``. Raises DataError if that fails, or if nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot make the folder {folder}: {error.strerror}: choose another with --images DIR",
            code="folder-not-made",
            file=str(folder),
        ) from None
    _refuse_rights(f"--images {folder}", folder)


def _refuse_rights(option: str, folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(
            f"{option}: no permission to write to the folder {folder}: choose another",
            code="no-right-to-write",
            file=str(folder),
        )


def refuse_confusion(path: Path) -> None:
    """Raises DataError if the confusion matrix could not be written to ``path`` later; nothing is
    written.
    """
    reason = ""
    if path.suffix.lower() not in (".csv", ".json"):
        reason = "unknown file extension: name FILE.csv or FILE.json"
    elif not path.parent.is_dir():
        reason = f"there is no folder {path.parent}: make it, or choose another"
    elif path.is_dir():
        reason = f"that is a folder: choose another FILE{path.suffix}"
    if reason:
        raise DataError(f"--confusion {path}: {reason}", code="bad-confusion-file", file=str(path))
    _refuse_rights(f"--confusion {path}", path.parent)


def write_confusion(path: Path, counts: list[list[int]], names: Sequence[str]) -> None:
    """Write the pixel counts by true class (rows) and predicted class (columns), with the class
    names.
    """
    if path.suffix.lower() == ".json":
        text = json.dumps(
            {"rows": "truth", "columns": "prediction", "classes": list(names), "pixels": counts}
        )
    else:
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["truth \\ prediction", *names])
        writer.writerows([name, *row] for name, row in zip(names, counts))
        text = stream.getvalue()
    write_atomically(path, text.encode(), "--confusion FILE")


def write_images(folder: Path, result: Evaluation, dataset: Any, title: str) -> list[str]:
    """Write the files of ``segtrain eval --images``: the table of all images, and pictures. Returns
    their names.
    """
    write_atomically(
        folder / "images.csv", image_table.as_csv(result.images.rows(dataset)), "--images DIR"
    )
    sheets = write_sheets(folder, result, dataset.labels, title)
    for name in {"worst", "best"} - set(sheets):  # left by an earlier evaluation
        (folder / f"{name}.png").unlink(missing_ok=True)
    return ["images.csv", *(f"{name}.png" for name in sheets)]

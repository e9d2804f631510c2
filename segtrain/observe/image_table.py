"""A CSV table of scores per image, the worst first: ``images-best.csv`` and ``images-last.csv`` of a run folder."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segtrain.errors import DataError

BEST, LAST = "images-best.csv", "images-last.csv"  # of the best and of the last evaluation of a run
COLUMNS = ("image", "miou", "accuracy", "pixels", "worst_class", "worst_iou", "note")
ALL_VOID = "all void: no score"


@dataclass(frozen=True)
class ImageRow:
    """Scores in [0, 1], None where no pixel of the image has a class; ``pixels`` are those that have one."""

    image: str
    miou: float | None
    accuracy: float | None
    pixels: int
    worst_class: str = ""  # the one with the lowest IoU in this image
    worst_iou: float | None = None


def as_csv(rows: Sequence[ImageRow]) -> bytes:
    """UTF-8, scores as fractions of six places; a name that is no UTF-8 keeps its bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        note = ALL_VOID if row.miou is None else ""
        writer.writerow(
            (
                row.image,
                _number(row.miou),
                _number(row.accuracy),
                row.pixels,
                row.worst_class,
                _number(row.worst_iou),
                note,
            )
        )
    return text.getvalue().encode("utf-8", "surrogateescape")


def read(path: Path) -> list[ImageRow]:
    """Raises DataError where the file is missing or is no such table."""
    try:
        with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise ValueError("other columns")
            return [
                ImageRow(
                    cells["image"], _score(cells["miou"]), _score(cells["accuracy"]), int(cells["pixels"]),
                    cells["worst_class"], _score(cells["worst_iou"]),
                )
                for cells in reader
            ]  # fmt: skip
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (TypeError, ValueError, csv.Error):
        raise DataError(f"{path} is no table of images with the columns {', '.join(COLUMNS)}") from None


def short_names(images: Sequence[str]) -> list[str]:
    """The names without the folders that all of them share."""
    parts = [image.split("/") for image in images]
    first, last = min(parts, default=[]), max(parts, default=[])
    shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first[:-1], last[:-1]))))
    return ["/".join(part[shared:]) for part in parts]


def table(rows: Sequence[ImageRow]) -> str:
    """Lines for people: a row an image, in the order given."""
    names = short_names([row.image for row in rows])
    width = max(len("the worst images"), *map(len, names))
    lines = [f"{'the worst images':{width}}    mIoU  accuracy  worst class"]
    for row, name in zip(rows, names):
        lines.append(
            f"{name:{width}} {_percent(row.miou)}    {_percent(row.accuracy)}  {row.worst_class} {_percent(row.worst_iou).strip()}"
        )
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


def _score(text: str) -> float | None:
    value = float(text) if text else None
    if value is not None and not math.isfinite(value):
        raise ValueError(text)
    return value


def _percent(value: float | None) -> str:
    return f"{'-':>7}" if value is None else f"{100 * value:7.2f}"

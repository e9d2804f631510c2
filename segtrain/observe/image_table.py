"""CSV table of the scores of single images, the worst first: ``images-best.csv`` and
``images-last.csv`` of a run.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from segtrain.base.files import open_file
from segtrain.base.terminal import columns
from segtrain.base.units import percent
from segtrain.errors import file_error

BEST, LAST = "images-best.csv", "images-last.csv"  # of the best and the last evaluation of a run
COLUMNS = ("image", "miou", "accuracy", "pixels", "worst_class", "worst_iou", "note")
SCORES = ("miou", "accuracy", "worst_iou")
ALL_VOID = "all void: no score"


@dataclass(frozen=True)
class ImageRow:
    """Scores in [0, 1], None if no pixel of the image has a class; ``pixels`` counts the pixels
    with a class.
    """

    image: str
    miou: float | None
    accuracy: float | None
    pixels: int
    worst_class: str = ""  # the class with the lowest IoU in this image
    worst_iou: float | None = None


def as_csv(rows: Sequence[ImageRow]) -> bytes:
    """The table as UTF-8, with scores to six places. A name that is not valid UTF-8 keeps its
    bytes.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        scores = {
            name: "" if (score := getattr(row, name)) is None else f"{score:.6f}" for name in SCORES
        }
        writer.writerow(asdict(row) | scores | {"note": ALL_VOID if row.miou is None else ""})
    return text.getvalue().encode("utf-8", "surrogateescape")


def read(path: Path) -> list[ImageRow]:
    """The rows of a table. Raises DataError if the file is missing or is not such a table."""
    try:
        with open_file(path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
            head, *lines = filter(None, csv.reader(text))
        if tuple(head) != COLUMNS:
            raise ValueError("other columns")
        return [
            ImageRow(
                image, _score(miou), _score(accuracy), int(pixels), worst_class, _score(worst_iou)
            )
            for image, miou, accuracy, pixels, worst_class, worst_iou, _ in lines
        ]
    except OSError as error:
        raise file_error(
            str(path), f"cannot be read: {error.strerror}", code="image-table-unreadable"
        ) from None
    except (TypeError, ValueError, csv.Error):
        raise file_error(
            str(path),
            f"it is not a table of images with the columns {', '.join(COLUMNS)}",
            code="not-an-image-table",
        ) from None


def short_names(images: Sequence[str]) -> list[str]:
    """The names without the leading folders that all of them share."""
    parts = [image.split("/") for image in images]
    first, last = min(parts, default=[]), max(parts, default=[])
    shared = len(
        list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first[:-1], last[:-1])))
    )
    return ["/".join(part[shared:]) for part in parts]


def table(rows: Sequence[ImageRow]) -> str:
    """Aligned text with one line per image, in the given order."""
    cells = [("the worst images", "mIoU", "accuracy", "worst class")]
    for name, row in zip(short_names([row.image for row in rows]), rows):
        worst = f"{row.worst_class} {percent(row.worst_iou, 2)}"
        cells.append((name, percent(row.miou, 2), percent(row.accuracy, 2), worst))
    return "\n".join(columns(cells, right={1, 2}))


def _score(text: str) -> float | None:
    value = float(text) if text else None
    if value is not None and not math.isfinite(value):
        raise ValueError(text)
    return value

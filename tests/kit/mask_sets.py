"""Data sets whose masks are written in a given encoding of known labels, and their checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from segtrain.data.audit.check import check_folder
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.audit.statistics import AuditReport

# Labels uint8 (H, W) of class ids, 255 for void; the path of the mask without ending.
Encode = Callable[[np.ndarray, Path], None]
TWO, THREE = "data.classes=[background, cell]", "data.classes=[background, road, car]"
FOUR = "data.classes=[background, road, car, sky]"
COLORS = np.array([[0, 0, 0], [128, 64, 128], [0, 0, 142]], np.uint8)


def truth(seed: int, classes: int, void: bool) -> np.ndarray:
    """Circles on class 0, the first class's the largest; with ``void`` a bar of 255."""
    rng, mask = np.random.default_rng(seed), np.zeros((48, 64), np.uint8)
    for value in range(1, classes):
        center = (int(rng.integers(12, 52)), int(rng.integers(12, 36)))
        cv2.circle(mask, center, int(rng.integers(5, 9)) + 4 * (value == 1), value, -1)
    if void:
        mask[:3] = 255
    return mask


def make(
    root: Path, encode: Encode, classes: int, void: bool = False, first: int = 0
) -> dict[str, list[int]]:
    """``images/SPLIT`` beside ``masks/SPLIT``, 12 + 4 pairs. Returns the pixels of each class by
    split.
    """
    counts = {}
    for split, numbers in (
        ("train", range(first, first + 12)),
        ("val", range(first + 12, first + 16)),
    ):
        counts[split] = [0] * classes
        for part in ("images", "masks"):
            (root / part / split).mkdir(parents=True)
        for number in numbers:
            mask = truth(number, classes, void)
            noise = np.random.default_rng(number).integers(0, 60, (*mask.shape, 3))
            image = np.where(mask == 255, 0, mask)[..., None] * 60 + noise
            cv2.imwrite(str(root / f"images/{split}/n{number:02d}.png"), image.astype(np.uint8))
            encode(mask, root / f"masks/{split}/n{number:02d}")
            for value in range(classes):
                counts[split][value] += int((mask == value).sum())
    return counts


def by_table(table: dict[int, int], kind: Any = np.uint8, ending: str = ".png") -> Encode:
    """Class id -> stored value, in one channel."""

    def encode(mask: np.ndarray, path: Path) -> None:
        stored = np.vectorize(lambda value: table.get(int(value), int(value)))(mask).astype(kind)
        Image.fromarray(stored).save(path.with_name(path.name + ending))

    return encode


def rgb(colors: np.ndarray) -> Encode:
    def encode(mask: np.ndarray, path: Path) -> None:
        Image.fromarray(colors[np.where(mask == 255, 0, mask)]).save(
            path.with_name(path.name + ".png")
        )

    return encode


def palette(indices: list[int], colors: np.ndarray) -> Encode:
    """A palette PNG: class ``c`` has the index ``indices[c]`` and the color ``colors[c]``."""

    def encode(mask: np.ndarray, path: Path) -> None:
        picture = Image.fromarray(np.array(indices, np.uint8)[mask])
        table = np.full((256, 3), 7, np.uint8)
        table[indices] = colors[: len(indices)]
        picture.putpalette(table.ravel().tolist())
        picture.save(path.with_name(path.name + ".png"))

    return encode


def one_bit(mask: np.ndarray, path: Path) -> None:
    Image.fromarray(mask > 0).save(path.with_name(path.name + ".png"))


def check(root: Path, *settings: str) -> dict[str, AuditReport]:
    return {
        report.split: report for report in check_folder(str(root), None, list(settings)).reports
    }


def failed(reports: dict[str, AuditReport]) -> bool:
    return any(report.failed for report in reports.values())


def pixels(reports: dict[str, AuditReport]) -> dict[str, list[int]]:
    return {split: report.pixels.tolist() for split, report in reports.items()}


def fix(reports: dict[str, AuditReport]) -> SplitFinding:
    """The one fatal finding."""
    (found,) = [
        finding for report in reports.values() for finding in report.findings if finding.fatal
    ]
    return found

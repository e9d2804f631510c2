"""Generated images for the buckets' benches: as large as those of ImageNet, or as those of driving
scenes; files and shards.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from segtrain.data.scenes.scene import scene

BUCKET = "bucket"
_SCENES = 8  # different streets; every image has its own sensor noise


@dataclass(frozen=True)
class Kind:
    """A data set: (height, width) of the images and of a crop, range of scales, JPEG quality,
    strength of the noise.
    """

    size: tuple[int, int]
    crop: tuple[int, int]
    scale: tuple[float, float]
    quality: int
    noise: float


KINDS = {
    "photos": Kind((375, 500), (224, 224), (0.6, 1.5), 93, 12.0),
    "streets": Kind((1024, 2048), (512, 1024), (0.5, 2.0), 93, 6.0),
}


def make(folder: Path, name: str, count: int) -> str:
    """Write ``count`` pairs and their shards into the bucket below ``folder``, once. Returns a line
    that says what it is.
    """
    files, shards, made = (
        folder / BUCKET / name,
        folder / BUCKET / f"{name}-shards",
        folder / f"{name}.json",
    )
    if made.exists() and json.loads(made.read_text())["count"] == count:
        return str(json.loads(made.read_text())["said"])
    for old in folder.glob(f"{BUCKET}/{name}*"):
        shutil.rmtree(old, ignore_errors=True)
    for split, number in (("train", count), ("val", 8)):
        for part in ("images", "masks"):
            (files / part / split).mkdir(parents=True)
        for index, (image, mask) in enumerate(_pairs(KINDS[name], number)):
            quality = [cv2.IMWRITE_JPEG_QUALITY, KINDS[name].quality]
            cv2.imwrite(
                str(files / "images" / split / f"{index:06d}.jpg"), image[..., ::-1], quality
            )
            cv2.imwrite(str(files / "masks" / split / f"{index:06d}.png"), mask)
    (files / "classes.txt").write_text("even\nodd\n", encoding="utf-8")
    for split in ("train", "val"):
        line = [
            sys.executable,
            "-m",
            "segtrain",
            "data",
            "pack",
            str(files),
            str(shards),
            "--split",
            split,
        ]
        subprocess.run([*line, "--image", "keep"], check=True, stdout=subprocess.DEVNULL)
    sizes = [path.stat().st_size for path in (files / "images" / "train").iterdir()]
    height, width = KINDS[name].size
    said = f"{count} JPEGs {width}x{height}, {sum(sizes) / len(sizes) / 1000:.0f} kB each on average, and PNG masks"
    made.write_text(json.dumps({"count": count, "said": said}))
    return said


def _pairs(kind: Kind, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Images uint8 (h, w, 3), RGB, and masks uint8 (h, w) of two classes."""
    streets = [scene(0, index, kind.size) for index in range(min(count, _SCENES))]
    rng = np.random.default_rng(0)
    grain = rng.standard_normal((2 * kind.size[0], 2 * kind.size[1], 1), np.float32) * kind.noise
    for index in range(count):
        image, mask = streets[index % len(streets)]
        top, left = (int(rng.integers(side)) for side in kind.size)
        own = grain[top : top + kind.size[0], left : left + kind.size[1]]
        yield np.clip(image + own, 0, 255).astype(np.uint8), mask % 2

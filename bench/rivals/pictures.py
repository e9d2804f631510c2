"""The pictures of all sides: images/{train,val} (JPEG) and masks/{train,val} (PNG, ids 0..C-1, 255
void).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from data_rivals.pictures import camvid_pairs
from PIL import Image


def make(
    folder: Path, source: str, classes: int, count: int = 367, size: tuple[int, int] = (360, 480)
) -> str:
    """Generate streets (``source`` empty), turn CamVid's folders into this layout, or take a folder
    that has it.

    Returns one line that says what they are. The validation split is tiny: nothing here is scored.
    """
    if source and not (Path(source) / "trainannot").is_dir():
        if not (Path(source) / "images" / "train").is_dir():
            raise SystemExit(
                f"{source} has neither trainannot (CamVid) nor images/train: --data cannot use it"
            )
        return f"images of {Path(source).name}"
    for kind in ("images", "masks"):
        for split in ("train", "val"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
    if source:
        return _camvid(Path(source), folder, classes)
    from segtrain.data.scenes.scene import scene

    for split, number in (("train", count), ("val", 4)):
        for index in range(number):
            image, mask = scene(number, index, size)
            mask[mask != 255] %= classes
            Image.fromarray(image).save(folder / "images" / split / f"{index:04d}.jpg", quality=95)
            Image.fromarray(mask).save(folder / "masks" / split / f"{index:04d}.png")
    return f"{count} generated streets, {size[0]}x{size[1]}, JPEG quality 95"


def _camvid(source: Path, folder: Path, classes: int) -> str:
    pairs = camvid_pairs(source)
    for split, chosen in (("train", pairs), ("val", pairs[:4])):
        for image, annotation in chosen:
            shutil.copy(image, folder / "images" / split / image.name)
            mask = np.array(Image.open(annotation))
            mask[mask >= classes] = 255
            Image.fromarray(mask).save(folder / "masks" / split / annotation.name)
    return f"CamVid, {len(pairs)} training images"

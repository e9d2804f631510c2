"""Small data sets in the layouts of other projects, for digests: soft blocks of classes, the same
bytes in each call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

TRAIN, VAL, SIZE = 12, 4, (96, 128)
# Paths of an image and its mask, and the ids of masks, by layout.
PATHS = {
    "camvid": ("{split}/{stem}.png", "{split}annot/{stem}.png"),
    "cityscapes": (
        "leftImg8bit/{split}/city/{stem}_000000_000019_leftImg8bit.png",
        "gtFine/{split}/city/{stem}_000000_000019_gtFine_labelIds.png",
    ),
    "ade20k": ("images/{part}/{stem}.jpg", "annotations/{part}/{stem}.png"),
    "voc": ("JPEGImages/{stem}.jpg", "SegmentationClass/{stem}.png"),
    "folders": ("images/{split}/{stem}.jpg", "masks/{split}/{stem}.png"),
    "list": ("a/{stem}.jpg", "b/{stem}.png"),
}
IDS = {
    "camvid": list(range(12)),
    "cityscapes": [0, 7, 8, 11, 21, 23, 24, 26, 33],
    "ade20k": list(range(0, 151, 10)),
    "voc": [*range(21), 255],
    "folders": [0, 1, 2, 9],
    "list": [0, 1, 2],
}
# of the layout list
COLORS = {"road": [128, 64, 128], "car": [0, 0, 142], "building": [70, 70, 70]}


def pictures(
    folder: Path,
    names: list[tuple[str, str]],
    ids: list[int],
    seed: int,
    colors: list[Any] | None = None,
) -> None:
    """Write images and masks of soft blocks, at (image path, mask path) below ``folder``. With
    ``colors``, RGB masks.
    """
    random = np.random.default_rng(seed)
    for image, mask in names:
        classes = random.integers(0, len(ids), (SIZE[0] // 16, SIZE[1] // 16))
        large = np.kron(classes, np.ones((16, 16), dtype=int))
        shade = random.integers(0, 256, (len(ids), 3))[large] + random.integers(-20, 20, (*SIZE, 3))
        values = np.array(ids)[large] if colors is None else np.array(colors)[large][..., ::-1]
        for name, pixels in ((image, shade.clip(0, 255)), (mask, values)):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            assert cv2.imwrite(str(path), pixels.astype(np.uint8)), path


def write_layout(folder: Path, layout: str) -> list[str]:
    """Write the data set, and return the settings that read it."""
    image, mask = PATHS[layout]
    colors = list(COLORS.values()) if layout == "list" else None
    for seed, (split, count) in enumerate((("train", TRAIN), ("val", VAL)), start=1):
        part = {"train": "training", "val": "validation"}[split]
        stems = [f"{split}{i:02}" for i in range(count)]
        names = [
            tuple(path.format(split=split, part=part, stem=stem) for path in (image, mask))
            for stem in stems
        ]
        pictures(folder, names, IDS[layout], seed, colors)
        if layout == "voc":
            lists = folder / "ImageSets/Segmentation"
            lists.mkdir(parents=True, exist_ok=True)
            (lists / f"{split}.txt").write_text("\n".join(stems) + "\n")
        if layout == "list":
            (folder / f"{split}.csv").write_text(
                "image,mask\n" + "".join(f"{a},{b}\n" for a, b in names)
            )
    settings = [f"data.layout={layout}", f"data.root={folder}"]
    if layout == "folders":
        settings += ["data.classes=[ground, road, car]", "data.label_map={0: 0, 1: 1, 2: 2, 9: -1}"]
    if layout == "list":
        settings.append(f"data.classes={COLORS}".replace("'", ""))
    return settings

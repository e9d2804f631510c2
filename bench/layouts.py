"""Small data sets in the layouts of other projects, for digests: soft blocks of classes, the same bytes in each call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

TRAIN, VAL, SIZE = 12, 4, (96, 128)
CITYSCAPES_IDS = [0, 7, 8, 11, 21, 23, 24, 26, 33]


def pictures(
    folder: Path, names: list[tuple[str, str]], ids: list[int], seed: int, colors: list[Any] | None = None
) -> None:
    """Write images and masks of soft blocks, at (image path, mask path) below ``folder``. With ``colors``, RGB masks."""
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
    names = {split: [f"{split}{i:02}" for i in range(count)] for split, count in (("train", TRAIN), ("val", VAL))}
    seeds = {"train": 1, "val": 2}
    for split, stems in names.items():
        seed = seeds[split]
        if layout == "camvid":
            pictures(folder, [(f"{split}/{s}.png", f"{split}annot/{s}.png") for s in stems], list(range(12)), seed)
        elif layout == "cityscapes":
            places = [f"{split}/city/{s}_000000_000019" for s in stems]
            pairs = [(f"leftImg8bit/{p}_leftImg8bit.png", f"gtFine/{p}_gtFine_labelIds.png") for p in places]
            pictures(folder, pairs, CITYSCAPES_IDS, seed)
        elif layout == "ade20k":
            part = {"train": "training", "val": "validation"}[split]
            pictures(
                folder,
                [(f"images/{part}/{s}.jpg", f"annotations/{part}/{s}.png") for s in stems],
                list(range(0, 151, 10)),
                seed,
            )
        elif layout == "voc":
            pictures(
                folder, [(f"JPEGImages/{s}.jpg", f"SegmentationClass/{s}.png") for s in stems], [*range(21), 255], seed
            )
            lists = folder / "ImageSets/Segmentation"
            lists.mkdir(parents=True, exist_ok=True)
            (lists / f"{split}.txt").write_text("\n".join(stems) + "\n")
        elif layout == "folders":
            pictures(folder, [(f"images/{split}/{s}.jpg", f"masks/{split}/{s}.png") for s in stems], [0, 1, 2, 9], seed)
        elif layout == "list":
            pairs = [(f"a/{s}.jpg", f"b/{s}.png") for s in stems]
            pictures(folder, pairs, [0, 1, 2], seed, [[128, 64, 128], [0, 0, 142], [70, 70, 70]])
            (folder / f"{split}.csv").write_text("image,mask\n" + "".join(f"{a},{b}\n" for a, b in pairs))
    settings = [f"data.layout={layout}", f"data.root={folder}"]
    if layout == "folders":
        settings += ["data.classes=[ground, road, car]", "data.label_map={0: 0, 1: 1, 2: 2, 9: -1}"]
    if layout == "list":
        settings += ["data.classes={road: [128, 64, 128], car: [0, 0, 142], building: [70, 70, 70]}"]
    return settings

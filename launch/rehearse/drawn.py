"""What fills a data channel where no sample is given? Generated street scenes, written as the layout that the job's config reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from segtrain.errors import ConfigError

MOST = 24  # training images; a quarter more to evaluate on
# layout -> image and mask of one sample; the folders of ADE20K have other names than its splits
PLACES = {
    "camvid": ("{split}/{name}.png", "{split}annot/{name}.png"),
    "cityscapes": (
        "leftImg8bit/{split}/street/{name}_leftImg8bit.png",
        "gtFine/{split}/street/{name}_gtFine_labelIds.png",
    ),
    "ade20k": ("images/{split}/{name}.jpg", "annotations/{split}/{name}.png"),
    "voc": ("JPEGImages/{name}.jpg", "SegmentationClass/{name}.png"),
    "list": ("images/{name}.png", "masks/{name}.png"),
}
ADE20K = {"train": "training", "val": "validation"}


def draw(folder: Path, config: Any) -> dict[str, Any]:
    """Write them into ``folder``. Returns the settings that must be others for this data: layout "scenes" becomes "folders".

    Raises ConfigError where the layout cannot be written, and MissingExtra where a package is absent.
    """
    data = config.data
    if data.layout not in (*PLACES, "folders", "scenes"):
        raise ConfigError(f"data.layout={data.layout}: no data are at hand for the channel: give --sample FOLDER")
    changes: dict[str, Any] = {}
    if data.layout == "scenes":
        from segtrain.data.labels.presets import SCENES

        changes = {"data.layout": "folders", "data.classes": list(SCENES.names)}
        data = data.model_copy(update={"layout": "folders", "root": "/", "classes": SCENES.names})
    first, few = 0, max(2, MOST // 4)
    parts: tuple[tuple[str, int], ...] = ((data.train_split, MOST), (data.split, few))
    if data.split_by.on:  # one pool; its names have no groups
        from segtrain.data.index.split_by import POOL

        changes["data.split_by"] = {"val": few, "test": few if data.split_by.test else "", "group": ""}
        parts = ((data.split_by.of or POOL, MOST + 2 * few),)
    for split, count in parts:
        _split(folder, data, split, range(first, first + count))
        first += count
    return changes


def _split(folder: Path, data: Any, split: str, indices: range) -> None:
    import cv2

    from segtrain.data.scenes.scene import scene

    ids, listed = _raw_ids(data), []
    for index in indices:
        image, mask = scene(0, index, data.scene_size)
        image_file, mask_file = (
            text.format(split=_folder(data, split), name=f"street_{index:04d}") for text in _places(data)
        )
        for name, pixels in ((image_file, image[..., ::-1]), (mask_file, ids[mask])):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(folder / name), pixels)
        listed.append((image_file, mask_file))
    if data.layout == "list":
        _write(folder / data.index.replace("{split}", split), ["image,mask", *(",".join(row) for row in listed)])
    if data.layout == "voc":
        names = [Path(image).stem for image, _ in listed]
        _write(folder / f"ImageSets/Segmentation/{split}.txt", names)


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def _places(data: Any) -> tuple[str, str]:
    if data.layout == "folders":
        return f"{data.images}/{{name}}.png", f"{data.masks}/{{name}}.png"
    return PLACES[data.layout]


def _folder(data: Any, split: str) -> str:
    return ADE20K.get(split, split) if data.layout == "ade20k" else split


def _raw_ids(data: Any) -> Any:
    """uint8[256]: train id of a drawn scene -> an id that a mask of this data set may hold. The classes need not mean the same."""
    import numpy as np

    raw_to_train = data.label_map or _known(data)
    ignored = data.ignore_index
    raw = {train: raw for raw, train in sorted(raw_to_train.items(), reverse=True) if 0 <= raw <= 255}
    void = raw.pop(ignored, raw.pop(-1, ignored))
    table = np.full(256, void, np.uint8)
    for train in range(min(len(raw), 255)):
        table[train] = raw[sorted(raw)[train]]
    for train in range(len(raw), 32):  # fewer classes than a street has: they share
        table[train] = table[train % len(raw)]
    return table


def _known(data: Any) -> dict[int, int]:
    from segtrain.data.labels import presets

    spaces = {
        "camvid": presets.CAMVID11,
        "cityscapes": presets.CITYSCAPES19,
        "ade20k": presets.ADE20K150,
        "voc": presets.VOC21,
    }
    if data.layout in spaces:
        return dict(spaces[data.layout].raw_to_train)
    count = (
        len(data.classes) if isinstance(data.classes, tuple) else 1
    )  # names in a file: the first id is there for sure
    return {index: index for index in range(max(1, count))}

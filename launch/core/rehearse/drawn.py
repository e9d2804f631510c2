"""Data for a rehearsal without --sample: generated street scenes in the layout that the job's
config reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from segtrain.errors import ConfigError

MOST = 24  # number of training images; a quarter of it is added for evaluation


def draw(folder: Path, config: Any) -> dict[str, Any]:
    """Write images and masks into ``folder``. Returns the settings that must change for this data,
    such as layout "scenes" to "folders".

    Raises ConfigError where the layout cannot be written, and MissingExtra where a package is
    absent.
    """
    from segtrain.data.index.layouts import LAYOUTS

    data = config.data
    if data.layout != "scenes" and LAYOUTS[data.layout].files is None:
        raise ConfigError(
            f"data.layout={data.layout}: no data can be generated in this layout: give "
            "--sample FOLDER",
            code="rehearsal-layout",
        )
    changes: dict[str, Any] = {}
    if data.layout == "scenes":
        from segtrain.data.labels.presets import SCENES

        changes = {"data.layout": "folders", "data.classes": list(SCENES.names)}
        data = data.model_copy(update={"layout": "folders", "root": "/", "classes": SCENES.names})
    first, few = 0, max(2, MOST // 4)
    parts: tuple[tuple[str, int], ...] = ((data.train_split, MOST), (data.split, few))
    if data.split_by.on:  # one set of images, which split_by divides; the file names have no groups
        from segtrain.data.index.split_by import POOL

        changes["data.split_by"] = {
            "val": few,
            "test": few if data.split_by.test else "",
            "group": "",
        }
        parts = ((data.split_by.of or POOL, MOST + 2 * few),)
    for split, count in parts:
        _split(folder, data, split, range(first, first + count))
        first += count
    return changes


def _split(folder: Path, data: Any, split: str, indices: range) -> None:
    import cv2

    from segtrain.data.index.layouts import LAYOUTS
    from segtrain.data.scenes.scene import scene

    layout, ids, listed = LAYOUTS[data.layout], _raw_ids(data), []
    for index in indices:
        image, mask = scene(0, index, data.scene_size)
        place = {
            "split": layout.split_folders.get(split, split),
            "city": "street",
            "name": f"street_{index:04d}",
        }
        assert layout.files is not None, "checked before anything is drawn"
        files = [text.format(**place) for text in layout.files(data)]
        for name, pixels in zip(files, (image[..., ::-1], ids[mask])):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(folder / name), pixels)
        listed.append((files[0], files[1]))
    if layout.list_of:
        path, lines = layout.list_of(data, split, listed)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("\n".join(lines) + "\n")


def _raw_ids(data: Any) -> Any:
    """A uint8[256] table: the train id of a generated scene -> an id that is valid in a mask of
    this data set.

    The two ids need not mean the same class.
    """
    import numpy as np

    raw_to_train = data.label_map or _known(data)
    ignored = data.ignore_index
    raw = {
        train: raw for raw, train in sorted(raw_to_train.items(), reverse=True) if 0 <= raw <= 255
    }
    void = raw.pop(ignored, raw.pop(-1, ignored))
    table = np.full(256, void, np.uint8)
    for train in range(min(len(raw), 255)):
        table[train] = raw[sorted(raw)[train]]
    # if there are fewer ids than scene classes, several classes share an id
    for train in range(len(raw), 32):
        table[train] = table[train % len(raw)]
    return table


def _known(data: Any) -> dict[int, int]:
    from segtrain.data.index.layouts import LAYOUTS

    labels = LAYOUTS[data.layout].labels
    if labels is not None:
        return dict(labels.raw_to_train)
    # The class names may be in a file that is not on this machine. Then only id 0 is known to
    # exist.
    count = len(data.classes) if isinstance(data.classes, tuple) else 1
    return {index: index for index in range(max(1, count))}

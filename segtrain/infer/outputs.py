"""Files that `segtrain predict` writes: palette masks, overlays with a legend, and
probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from segtrain.base.files import writing
from segtrain.data.labels.space import LabelSpace, is_background
from segtrain.data.pixels.bands import NODATA_TAG, tifffile_for
from segtrain.errors import DataError

# Marks the files written here: the name of a text in PNG files, and of an array in NPZ files. Only
# files with this mark are replaced.
MARK = "segtrain"


def write_mask(path: Path, ids: np.ndarray, labels: LabelSpace) -> None:
    """Ids uint8 (H, W) as an 8-bit palette PNG: index = train id, color = class color, void and the
    rest black.
    """
    from PIL import Image

    picture = Image.fromarray(ids)
    picture.putpalette(labels.colorize(np.arange(256, dtype=np.uint8)[None])[0].tobytes())
    _write_png(path, picture, "class ids")


def write_geotiff(
    path: Path, ids: np.ndarray, labels: LabelSpace, place: dict[int, tuple[Any, ...]]
) -> None:
    """Ids uint8 (H, W) as an 8-bit palette GeoTIFF with the tags ``place``; void is its nodata
    value.
    """
    colors = labels.colorize(np.arange(256, dtype=np.uint8)[None])[0]
    nodata = (NODATA_TAG, 2, 0, str(labels.ignore_index), True)
    tifffile = tifffile_for(f"writing {path}")
    _write(
        path,
        lambda file: tifffile.imwrite(
            file,
            ids,
            photometric="palette",
            colormap=colors.T.astype(np.uint16) * 257,
            compression="zlib",
            software=MARK,
            metadata=None,
            extratags=[*place.values(), nodata],
        ),
    )


def write_probabilities(path: Path, probabilities: np.ndarray, labels: LabelSpace) -> None:
    """``probabilities`` float16 (C, H, W), ``classes`` (C,), and the mark of a prediction as one
    .npz file.
    """
    marked: dict[str, Any] = {MARK: np.array("probabilities")}
    classes = np.array(labels.names)
    _write(
        path, lambda file: np.savez(file, probabilities=probabilities, classes=classes, **marked)
    )


def write_overlay(path: Path, image: np.ndarray, ids: np.ndarray, labels: LabelSpace) -> None:
    """``LabelSpace.overlay`` as PNG, and below it a legend of the classes that occur."""
    from PIL import Image

    pixels = np.concatenate([labels.overlay(image, ids), legend(ids, labels, image.shape[1])])
    _write_png(path, Image.fromarray(pixels), "overlay", compress_level=1)


def legend(ids: np.ndarray, labels: LabelSpace, width: int) -> np.ndarray:
    """Color, name and share of each class in ``ids``, largest first, as uint8 (height, width, 3);
    rows wrap.
    """
    from PIL import Image, ImageDraw, ImageFont

    from segtrain.observe.pictures import drawable

    counts = np.bincount(ids.ravel(), minlength=256)[: labels.num_classes]
    order = [int(index) for index in np.argsort(-counts, kind="stable") if counts[index]]
    font = ImageFont.load_default()
    line, box, gap = 18, 10, 6  # pixels
    entries = []
    x = gap
    y = 4
    for index in order:
        plain = ", not tinted" if is_background(labels.names, index) else ""
        name = drawable(labels.names[index])
        text = f"{name} {100 * counts[index] / ids.size:.1f}%{plain}"
        length = box + gap + round(font.getlength(text)) + 2 * gap
        if x + length > width and x > gap:
            x, y = gap, y + line
        entries.append((x, y, index, text))
        x += length
    picture = Image.new("RGB", (width, y + line), "white")
    draw = ImageDraw.Draw(picture)
    for x, y, index, text in entries:
        fill = "white" if is_background(labels.names, index) else tuple(labels.palette[index])
        draw.rectangle((x, y, x + box, y + box), fill=fill, outline="black")
        draw.text((x + box + gap, y - 1), text, fill="black", font=font)
    return np.asarray(picture)


def _write_png(path: Path, picture: Any, kind: str, **options: Any) -> None:
    from PIL import PngImagePlugin

    info = PngImagePlugin.PngInfo()
    info.add_text(MARK, kind)
    _write(path, lambda file: picture.save(file, format="PNG", pnginfo=info, **options))


def _write(path: Path, save: Callable[[BinaryIO], Any]) -> None:
    """Write a file atomically. Raises DataError, and leaves no partial file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as file:
            save(file)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}: free space or choose another folder",
            code="prediction-unwritable",
        ) from None

"""Files that `segtrain predict` writes: palette masks, overlays with a legend, and
probabilities.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from segtrain.base.files import writing
from segtrain.base.terminal import counted
from segtrain.data.labels.space import LabelSpace, is_background
from segtrain.data.pixels.bands import NODATA_TAG, tifffile_for
from segtrain.errors import ConfigError, DataError, some_of

# Marks the files written here: the name of a text in PNG files, and of an array in NPZ files. Only
# files with this mark are replaced.
MARK = "segtrain"


def raw_ids(labels: LabelSpace) -> np.ndarray:
    """The raw id of each train id, uint8 or uint16: of several, the lowest that is not negative.
    For ignored pixels also one that occurs in no mask, if the label map ignores none.

    Raises ConfigError for a class that has none.
    """
    table = np.full(max(labels.num_classes, labels.ignore_index + 1), -1)
    for raw, train_id in sorted(labels.raw_to_train.items(), reverse=True):
        if 0 <= raw < 1 << 16:
            table[train_id] = raw
    missing = [name for name, raw in zip(labels.names, table) if raw < 0]
    if missing:
        message = f"no id from 0 to 65535 of a mask becomes {missing[0]!r}: leave out --ids raw"
        raise ConfigError(message, code="raw-id-missing", found=missing)
    if table[labels.ignore_index] < 0:
        candidates = labels.ignore_index, *range(1 << 16)
        table[labels.ignore_index] = next(v for v in candidates if v not in labels.raw_to_train)
    return table.astype(np.uint8 if table.max() < 256 else np.uint16)


def write_raw(path: Path, raw: np.ndarray) -> None:
    """Raw ids (H, W) as a gray PNG of 8 or 16 bits, without colors."""
    from PIL import Image

    _write_png(path, Image.fromarray(raw), "raw ids")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Polygons as JSON, which begins with the mark of a prediction. Bytes of file names that are
    not UTF-8 are escaped.
    """
    text = json.dumps(content, ensure_ascii=False).encode(errors="backslashreplace")
    _write(path, lambda file: file.write(_marked(text)))


def is_untouched_json(path: Path) -> bool:
    """Whether a file is as ``write_json`` has written it."""
    text = path.read_bytes()
    return text == _marked(b"{" + text[len(_marked(b"{")) :])


def refuse_loss(file: Path, names: set[str]) -> None:
    """Raise DataError if a file of COCO has images that are not among ``names``."""
    lost = {image["file_name"] for image in json.loads(file.read_bytes())["images"]} - names
    if lost:
        raise DataError(
            f"{file} has {counted(len(lost), 'image')} that would be lost: "
            f"{some_of(sorted(lost), 3)}: predict all images together, or choose another output "
            "folder",
            code="output-lost",
            file=str(file),
            found=sorted(lost),
        )


def _marked(text: bytes) -> bytes:
    """A JSON object with the mark of a prediction, which has a digest of the rest."""
    mark = f'{{"{MARK}": "polygons {hashlib.sha256(text).hexdigest()}", '
    return mark.encode() + text[1:]


def write_mask(path: Path, ids: np.ndarray, labels: LabelSpace) -> None:
    """Ids uint8 (H, W) as an 8-bit palette PNG: index = train id, color = class color, void and the
    rest black; ids uint16 as a gray PNG of 16 bits.
    """
    from PIL import Image

    picture = Image.fromarray(ids)
    if ids.dtype == np.uint8:
        picture.putpalette(labels.colorize(np.arange(256)[None])[0].tobytes())
    _write_png(path, picture, "class ids")


def write_geotiff(
    path: Path,
    ids: np.ndarray,
    labels: LabelSpace,
    place: dict[int, tuple[Any, ...]],
    raw: np.ndarray | None = None,
) -> None:
    """Ids uint8 (H, W) as an 8-bit palette GeoTIFF with the tags ``place``; void is its nodata
    value. Ids uint16 as a gray GeoTIFF; with ``raw``, the raw id of each train id, one of raw ids.
    """
    if raw is None and ids.dtype == np.uint8:
        colors = labels.colorize(np.arange(256)[None])[0]
        look = {"photometric": "palette", "colormap": colors.T.astype(np.uint16) * 257}
    else:
        look = {"photometric": "minisblack"}
    void = labels.ignore_index if raw is None else raw[labels.ignore_index]
    nodata = (NODATA_TAG, 2, 0, str(void), True)
    tifffile = tifffile_for(f"writing {path}")
    _write(
        path,
        lambda file: tifffile.imwrite(
            file,
            ids if raw is None else raw[ids],
            **look,
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
    from PIL import Image, ImageDraw

    from segtrain.observe.pictures import drawable, font_of

    counts = np.bincount(ids.ravel(), minlength=labels.num_classes)[: labels.num_classes]
    order = [int(index) for index in np.argsort(-counts, kind="stable") if counts[index]]
    font = font_of(labels.names)
    line, box, gap = 18, 10, 6  # pixels
    entries = []
    x = gap
    y = 4
    for index in order:
        plain = ", not tinted" if is_background(labels.names, index) else ""
        name = drawable(labels.names[index], font)
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

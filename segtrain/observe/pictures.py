"""Contact sheets of predictions as PNG: image, truth, prediction, and errors side by side, one row
per image.

Captions give the mIoU of each image, and a legend shows the classes that occur.
"""

from __future__ import annotations

import contextlib
import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from segtrain.base.files import writing
from segtrain.errors import file_error

Color = tuple[int, int, int]
Font = ImageFont.ImageFont | ImageFont.FreeTypeFont
PAPER: Color = (255, 255, 255)
INK: Color = (32, 34, 38)
PALE: Color = (120, 124, 130)
WRONG: Color = (230, 30, 60)
VOID: Color = (196, 196, 200)
_STRIPE = np.array((156, 156, 160), np.uint8)
_GAP, _MARGIN, _HEAD, _CAPTION, _KEY, _PANEL_WIDTH = 6, 16, 26, 28, 22, 320  # pixels


@dataclass(frozen=True)
class PredictedImage:
    """``image``: uint8 (H, W, 3) RGB. ``prediction``, ``truth``: (H, W) train ids."""

    name: str
    image: np.ndarray
    prediction: np.ndarray
    truth: np.ndarray


def image_miou(
    truth: np.ndarray, prediction: np.ndarray, num_classes: int, ignore_index: int = 255
) -> float:
    """Mean IoU of one image over the classes in its truth or prediction; NaN if all pixels are
    void.
    """
    valid = truth != ignore_index
    # A prediction that is not a class, such as void, is wrong. It gets its own column.
    guess = np.minimum(prediction[valid].astype(np.int64), num_classes)
    pairs = truth[valid].astype(np.int64) * (num_classes + 1) + guess
    table = np.bincount(pairs, minlength=num_classes * (num_classes + 1)).reshape(
        num_classes, num_classes + 1
    )[:, :-1]
    hit = np.diagonal(table)
    union = np.bincount(truth[valid], minlength=num_classes) + table.sum(0) - hit
    return float((hit[union > 0] / union[union > 0]).mean()) if union.any() else math.nan


def colorize(mask: np.ndarray, palette: Sequence[Color], ignore_index: int = 255) -> np.ndarray:
    """(H, W) train ids to (H, W, 3) colors; void is gray."""
    table = np.full((max(ignore_index + 1, 256), 3), VOID, np.uint8)
    table[: len(palette)] = palette
    table[ignore_index] = VOID
    return table[mask]


def fit(picture: np.ndarray, width: int, height: int, labels: bool = False) -> np.ndarray:
    """Resize to (height, width). Labels take the nearest pixel. Pictures shrink by area mean and
    grow linearly.
    """
    if picture.shape[:2] == (height, width):
        return picture
    shrinks = height < picture.shape[0]
    mode = cv2.INTER_NEAREST_EXACT if labels else cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cv2.resize(picture, (width, height), interpolation=mode)


def _hatch(height: int, width: int) -> np.ndarray:
    rows, columns = np.ogrid[:height, :width]
    return ((rows + columns) % 6 < 2)[:, :, None]


def error_panel(
    sample: PredictedImage, width: int, height: int, ignore_index: int = 255
) -> np.ndarray:
    """The image in pale gray, with wrong pixels in red and void pixels hatched. uint8 (height,
    width, 3).

    If the panel is smaller than the image, a pixel is the redder, the more of the pixels that it
    covers are wrong.
    """
    gray = cv2.cvtColor(fit(sample.image, width, height), cv2.COLOR_RGB2GRAY).astype(np.float32)
    panel = np.repeat((160 + 0.35 * gray)[:, :, None], 3, axis=2)
    void = sample.truth == ignore_index
    wrong = ((sample.truth != sample.prediction) & ~void).astype(np.float32)
    density = fit(wrong, width, height)[:, :, None]
    panel = panel * (1 - density) + np.array(WRONG, np.float32) * density
    hatched = (fit(void.astype(np.float32), width, height)[:, :, None] >= 0.5) & _hatch(
        height, width
    )
    return np.where(hatched, _STRIPE, panel).round().astype(np.uint8)


# Fonts with many letters that Linux, macOS, and Windows may have, by the names of their files.
_FONTS = (
    "NotoSansCJK-Regular.ttc",
    "wqy-microhei.ttc",
    "DroidSansFallbackFull.ttf",
    "Arial Unicode.ttf",
    "msyh.ttc",
    "DejaVuSans.ttf",
)


def font_of(texts: Iterable[str], size: float = 10) -> Font:
    """A font of this machine that has the letters of ``texts``, or else the one of Pillow."""
    return _font_of(frozenset("".join(texts)), size)


@lru_cache
def _font_of(letters: frozenset[str], size: float) -> Font:
    for name in () if "".join(letters).isascii() else _FONTS:
        with contextlib.suppress(OSError):
            font = ImageFont.truetype(name, size)
            absent = bytes(font.getmask("\uffff"))
            if all(bytes(font.getmask(letter)) != absent for letter in letters):
                return font
    return ImageFont.load_default(size)


def drawable(text: str, font: Font) -> str:
    r"""``text`` as ``font`` can draw it: with the one of Pillow, ``é`` becomes ``e``, and ``青``
    ``\u9752``.
    """
    if isinstance(getattr(font, "path", None), str):
        return text
    letters = unicodedata.normalize("NFKD", text)
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return plain.encode("ascii", "backslashreplace").decode()


def _clip(
    draw: ImageDraw.ImageDraw, text: str, font: Font, width: float, tail: bool = False
) -> str:
    """``text``, cut to ``width`` pixels.

    Its end is cut off, or its start if ``tail`` is set: file names should keep their ends, in which
    they differ.
    """
    if draw.textlength(text, font) <= width:
        return text
    while len(text) > 1 and draw.textlength("..." + text, font) > width:
        text = text[1:] if tail else text[:-1]
    return "..." + text if tail else text + "..."


def _legend(items: Sequence[tuple[str, Color | None]], font: Font, width: int) -> Image.Image:
    """Swatches with their texts, in rows of at most ``width`` pixels; a swatch without a color is
    hatched.
    """
    ruler = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    places = []
    x = 0
    y = 0
    for text, _ in items:
        needs = 20 + math.ceil(ruler.textlength(text, font)) + 18
        if x and x + needs > width:
            x, y = 0, y + _KEY
        places.append((x, y))
        x += needs
    legend = Image.new("RGB", (width + _MARGIN, y + _KEY), PAPER)
    draw = ImageDraw.Draw(legend)
    for (x, y), (text, color) in zip(places, items):
        box = (x, y + 2, x + 13, y + 15)
        if color is None:
            legend.paste(
                Image.fromarray(np.where(_hatch(14, 14), _STRIPE, np.array(VOID, np.uint8))),
                box[:2],
            )
        draw.rectangle(box, fill=color, outline=PALE)
        draw.text((x + 20, y), text, INK, font)
    return legend


def contact_sheet(
    samples: Sequence[PredictedImage],
    names: Sequence[str],
    palette: Sequence[Color],
    *,
    ignore_index: int = 255,
    title: str = "",
) -> np.ndarray:
    """Draw a sheet of at least one sample: uint8 (H, W, 3) RGB. Panels keep the aspect ratio and
    are at most 2x as wide as the widest image.
    """
    width = min(_PANEL_WIDTH, 2 * max(sample.image.shape[1] for sample in samples))
    heads = ("image", "truth", "prediction", "errors")
    masks = [mask for sample in samples for mask in (sample.prediction, sample.truth)]
    used = {index for mask in masks for index in np.unique(mask).tolist()}
    texts = [*names, title, *(sample.name for sample in samples)]
    font, small, large = (font_of(texts, size) for size in (14, 12, 17))
    items: list[tuple[str, Color | None]] = [
        (drawable(name, font), palette[i]) for i, name in enumerate(names) if i in used
    ]
    items += [*([("void", None)] if ignore_index in used else []), ("wrong", WRONG)]

    total_width = 2 * _MARGIN + len(heads) * width + (len(heads) - 1) * _GAP
    legend = _legend(items, font, total_width - 2 * _MARGIN)
    heights = [max(1, round(s.image.shape[0] * width / s.image.shape[1])) for s in samples]
    top = _MARGIN + (32 if title else 0) + legend.height + 8
    sheet = Image.new(
        "RGB", (total_width, top + _HEAD + sum(h + _CAPTION for h in heights) + _MARGIN), PAPER
    )
    draw = ImageDraw.Draw(sheet)
    if title:
        draw.text(
            (_MARGIN, _MARGIN - 2),
            _clip(draw, drawable(title, large), large, total_width - 2 * _MARGIN),
            INK,
            large,
        )
    sheet.paste(legend, (_MARGIN, top - 8 - legend.height))
    for column, head in enumerate(heads):
        draw.text((_MARGIN + column * (width + _GAP), top + 4), head, PALE, font)
    y = top + _HEAD
    for sample, height in zip(samples, heights):
        for column, panel in enumerate(_panels(sample, palette, ignore_index, width, height)):
            sheet.paste(Image.fromarray(panel), (_MARGIN + column * (width + _GAP), y))
        _draw_caption(draw, sample, len(names), ignore_index, small, y + height + 3, width)
        y += height + _CAPTION
    return np.asarray(sheet)


def _panels(
    sample: PredictedImage,
    palette: Sequence[Color],
    ignore_index: int,
    width: int,
    height: int,
) -> list[np.ndarray]:
    def labels(mask: np.ndarray) -> np.ndarray:
        small = fit(mask, width, height, labels=True)
        colored = colorize(small, palette, ignore_index)
        hatched = (small == ignore_index)[:, :, None] & _hatch(height, width)
        return np.where(hatched, _STRIPE, colored)

    return [
        fit(sample.image, width, height),
        labels(sample.truth),
        labels(sample.prediction),
        error_panel(sample, width, height, ignore_index),
    ]


def _draw_caption(
    draw: ImageDraw.ImageDraw,
    sample: PredictedImage,
    num_classes: int,
    ignore_index: int,
    font: Font,
    y: int,
    width: int,
) -> None:
    name = _clip(draw, drawable(sample.name, font), font, 2 * width, tail=True)
    draw.text((_MARGIN, y), name, INK, font)
    miou = image_miou(sample.truth, sample.prediction, num_classes, ignore_index)
    valid = sample.truth != ignore_index
    wrong = float((sample.truth != sample.prediction)[valid].mean()) if valid.any() else math.nan
    for column, text in (
        (2, f"mIoU {100 * miou:.1f} %"),
        (3, f"{100 * wrong:.1f} % of the pixels wrong"),
    ):
        draw.text(
            (_MARGIN + column * (width + _GAP), y),
            "all void" if math.isnan(miou) else text,
            INK,
            font,
        )


def save_png(path: str | Path, picture: np.ndarray) -> Path:
    """Write uint8 (H, W, 3) RGB or (H, W) as PNG, atomically. Raises DataError."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as stream:
            Image.fromarray(picture).save(stream, format="PNG")
    except OSError as error:
        raise file_error(
            str(path),
            f"the picture cannot be written: {error.strerror or error}: check the "
            "permissions of the folder",
            code="picture-unwritable",
        ) from None
    return path

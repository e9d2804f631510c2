"""Label spaces: class names, colors, and the table from raw ids in a mask to train ids."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from segtrain.base.terminal import counted
from segtrain.errors import ConfigError, DataError, file_error, some_of

Color = tuple[int, int, int]
# Of uint8 masks. Two more values are needed: ignore_index, and the mark of unknown ids.
_SMALL = 254
# Half of the values that interpolation makes cover fewer pixels of a mask than this.
BORDER = 1000
# A confusion matrix of so many classes has 8 GB.
MAX_CLASSES = 1 << 15
ALPHA = 0.55  # share of the class colors in an overlay


@dataclass(frozen=True)
class LabelSpace:
    """Classes of a task. Train ids are 0 .. num_classes - 1, and ``ignore_index`` for pixels that
    do not count.

    raw_to_train: raw id in a mask file -> train id or ``ignore_index``; any other id is an error.
    colors: color 0xRRGGBB in an RGB mask -> train id or ``ignore_index``; empty: RGB masks are an
    error. mirror: the train id of each class in a mirrored image; empty: no class changes.
    """

    names: tuple[str, ...]
    palette: tuple[Color, ...]
    ignore_index: int = 255
    raw_to_train: dict[int, int] = field(default_factory=dict, hash=False)
    colors: dict[int, int] = field(default_factory=dict, hash=False)
    mirror: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.names)
        if not 1 <= count <= MAX_CLASSES:
            message = f"data.classes has {count} names: give 1 to {MAX_CLASSES}"
            raise ConfigError(message, code="classes-count-invalid", found=count)
        double = sorted(name for name, times in Counter(self.names).items() if times > 1)
        if double:
            message = f"data.classes names {double[0]!r} twice: give each class its own name"
            raise ConfigError(message, code="class-name-repeated", name=double[0])
        void = self.ignore_index
        if void < count:
            message = (
                f"data.ignore_index={void} is the train id of class {self.names[void]!r}: "
                f"use {fitting_void(count, 255)}, and map raw ids "
                f"that should not count with data.label_map={{{void}: -1, ...}}"
            )
            raise ConfigError(message, code="ignore-index-is-a-class", found=void)
        for raw, train in [*self.raw_to_train.items(), *self.colors.items()]:
            if train != void and not 0 <= train < count:
                message = (
                    f"data.label_map maps raw id {raw} to {train}, but train ids go from 0 "
                    f"to {count - 1}: "
                    "name more classes in data.classes (void and ignore are not classes), or use "
                    "-1 to ignore it"
                )
                raise ConfigError(message, code="train-id-invalid", found=train, raw=raw)
        if len(self.palette) != count:
            message = f"{len(self.palette)} colors for {count} classes: give each class one"
            raise ConfigError(
                message, code="palette-size-differs", found=len(self.palette), expected=count
            )

    @property
    def num_classes(self) -> int:
        return len(self.names)

    @cached_property
    def counted(self) -> bool:
        """Whether the raw ids of the classes are 0, 1, ... in the order of the names."""
        ids = {raw: train for raw, train in self.raw_to_train.items() if train != self.ignore_index}
        return ids == {index: index for index in range(self.num_classes)}

    @cached_property
    def mask_dtype(self) -> type[np.unsignedinteger[Any]]:
        """The type of masks of train ids: uint8 up to 254 classes, else uint16."""
        return np.uint8 if self.num_classes <= _SMALL and self.ignore_index < 256 else np.uint16

    @property
    def mask_values(self) -> int:
        """The number of values that a mask of train ids can hold."""
        return int(np.iinfo(self.mask_dtype).max) + 1

    @cached_property
    def unknown(self) -> int:
        """A value of masks that is not a train id. It marks unknown ids."""
        values = range(self.num_classes, self.mask_values)
        return next(value for value in reversed(values) if value != self.ignore_index)

    @cached_property
    def _table(self) -> np.ndarray:
        """``mask_dtype`` [65536]: train id of each raw id, or ``unknown``."""
        table = np.full(1 << 16, self.unknown, self.mask_dtype)
        for raw, train in self.raw_to_train.items():
            if 0 <= raw < len(table):
                table[raw] = train
        return table

    @cached_property
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """Two arrays [256]: the train id of each 8-bit raw id, and whether the raw id is
        known, uint8 (1 or 0).
        """
        table = self._table[:256].copy()
        return table, (table != self.unknown).astype(np.uint8)

    @cached_property
    def _color_table(self) -> np.ndarray:
        """``mask_dtype`` [2 ** 24]: train id of each color. These 16 or 32 MB are made when the
        first RGB mask is read.
        """
        table = np.full(1 << 24, self.unknown, self.mask_dtype)
        for color, train in self.colors.items():
            table[color] = train
        return table

    def remap(self, raw: np.ndarray, source: str = "the mask", strict: bool = True) -> np.ndarray:
        """Map raw values to train ids: integers (H, W), or RGB uint8 (H, W, 3), to ``mask_dtype``
        (H, W).

        Raises DataError that names ``source``, each unknown value with its pixel count, and the
        fix. Without ``strict``, unknown values become ``unknown``.
        """
        colors = raw.ndim == 3 and raw.shape[2] == 3 and raw.dtype == np.uint8
        if colors and not self.colors:
            if (raw != raw[..., :1]).any():
                message = (
                    "is an RGB mask, but the classes have no colors: set "
                    "data.classes=FILE with lines "
                    "'red green blue name', or save class ids in one channel"
                )
                raise file_error(source, message, code="mask-rgb-without-colors")
            raw, colors = raw[..., 0], False  # the same ids in all three channels
        if colors:
            code = raw[..., 0].astype(np.int32) << 16
            code |= raw[..., 1].astype(np.int32) << 8
            raw = code | raw[..., 2]
            mapped = np.take(self._color_table, raw)
        elif raw.ndim != 2 or raw.dtype.kind not in "uib":
            message = (
                f"the mask has shape {raw.shape} and type {raw.dtype}: save one integer per pixel"
            )
            raise file_error(
                source, message, code="mask-type-invalid", found=(raw.shape, str(raw.dtype))
            )
        elif raw.dtype.kind != "i" and raw.dtype.itemsize <= 2:
            mapped = np.take(self._table, raw)
        else:
            values, inverse = np.unique(raw, return_inverse=True)
            train_ids = [self.raw_to_train.get(int(value), self.unknown) for value in values]
            mapped = np.array(train_ids, self.mask_dtype)[inverse.reshape(raw.shape)]
        if strict:
            self._refuse_unknown(mapped, raw, source, colors)
        return mapped

    def _refuse_unknown(
        self, mapped: np.ndarray, raw: np.ndarray, source: str, colors: bool
    ) -> None:
        unknown = mapped == self.unknown
        if not unknown.any():
            return
        values, counts = np.unique(raw[unknown], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        pixels_of = dict(zip(values[order].tolist(), counts[order].tolist()))
        most = [
            f"{tuple(v.to_bytes(3, 'big')) if colors else v} ({counted(n, 'pixel')})"
            for v, n in pixels_of.items()
        ]
        what = "colors" if colors else "ids"
        if colors:
            fix = (
                "add 'red green blue name' lines to the data.classes file (the name 'void' "
                "means ignored)"
            )
        else:
            ids = sorted(self.raw_to_train)
            span = f"{ids[0]}..{ids[-1]}" if len(ids) == ids[-1] - ids[0] + 1 else some_of(ids, 40)
            fix = (
                f"known ids are {span}; `segtrain data check` looks for a data.label_map that "
                "fits all masks"
            )
        # Values between two classes lie along borders; ids of objects cover more pixels.
        small = np.median(counts) < BORDER and counts.sum() < 0.2 * mapped.size
        if len(pixels_of) >= 5 and small:
            fix += (
                "; so many rare values mean that the mask was resized with interpolation: "
                "use nearest"
            )
        pixels = int(counts.sum())
        message = (
            f"{source}: unknown {what} {some_of(most, 8)}, {counted(pixels, 'pixel')} in all: {fix}"
        )
        shown = dict(list(pixels_of.items())[:8])
        raise DataError(
            message, code=f"mask-{what}-unknown", file=source, found=shown, pixels=pixels
        )

    def full_map(self, ignored: Iterable[int] = ()) -> dict[int, int]:
        """A complete data.label_map: the known ids, and the ids ``ignored``, which map to -1."""
        void = self.ignore_index
        own = {
            raw: -1 if train == void else train
            for raw, train in self.raw_to_train.items()
            if raw != void or train != void
        }
        return dict(sorted((own | dict.fromkeys(map(int, ignored), -1)).items()))

    def colorize(self, mask: np.ndarray) -> np.ndarray:
        """Map train ids (H, W) to RGB uint8 (H, W, 3). Ignored and unknown values are
        black.
        """
        table = np.zeros((self.mask_values, 3), np.uint8)
        table[: self.num_classes] = self.palette
        return table[mask]

    def overlay(self, image: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """The class colors over an image, uint8 (H, W, 3), with the share ``ALPHA``.

        If class 0 is named background, its pixels keep the image's own colors.
        """
        mixed = image * np.float32(1 - ALPHA) + self.colorize(mask) * np.float32(ALPHA)
        if is_background(self.names, 0):
            mixed = np.where((mask == 0)[:, :, None], image, mixed)
        return mixed.round().astype(np.uint8)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the inverse of ``from_dict``."""
        return {
            "names": list(self.names),
            "palette": [list(color) for color in self.palette],
            "ignore_index": self.ignore_index,
            "raw_to_train": {str(raw): train for raw, train in sorted(self.raw_to_train.items())},
            "colors": {f"{color:06x}": train for color, train in sorted(self.colors.items())},
            **({"mirror": list(self.mirror)} if self.mirror else {}),
        }

    def identity(self) -> bytes:
        """The bytes that represent the labels in the fingerprint of a split.

        For the default palette, the bytes have ``color_wheel`` instead, which was the default in
        older versions. Scores do not depend on colors or on ``mirror``, so the scores of such runs
        stay comparable.
        """
        content = self.to_dict()
        content["colours"] = content.pop("colors")
        content.pop("mirror", None)
        if self.palette == class_palette(self.names):
            content["palette"] = [list(color) for color in color_wheel(self.num_classes)]
        return json.dumps(content, sort_keys=True).encode()

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> LabelSpace:
        """The inverse of ``to_dict``. Raises DataError for anything else."""
        try:
            colors = content.get("colors", {})
            space = cls(
                names=tuple(map(str, content["names"])),
                palette=tuple((int(r), int(g), int(b)) for r, g, b in content["palette"]),
                ignore_index=int(content["ignore_index"]),
                raw_to_train={
                    int(raw): int(train) for raw, train in content["raw_to_train"].items()
                },
                colors={int(color, 16): int(train) for color, train in colors.items()},
                mirror=tuple(map(int, content.get("mirror", ()))),
            )
            for name, color in zip(space.names, space.palette):
                if min(color) < 0 or max(color) > 255:
                    raise ValueError(f"channels of {name!r} go from 0 to 255: {list(color)}")
            if not 0 <= space.ignore_index < 1 << 16:
                raise ValueError(f"ids go from 0 to 65535: ignore_index={space.ignore_index}")
            return space
        except Exception as error:  # any content may be in its place
            message = (
                f"not a description of labels ({type(error).__name__}: {error}): write it "
                "with to_dict()"
            )
            raise DataError(message, code="labels-invalid") from None


def color_wheel(count: int) -> tuple[Color, ...]:
    """Colors 1 to ``count`` of Pascal VOC, all distinct: the bits of the index go to red, green,
    and blue in turn.
    """
    colors = []
    for index in range(1, count + 1):
        red, green, blue = (
            sum((index >> 3 * k + channel & 1) << 7 - k for k in range(8)) for channel in range(3)
        )
        colors.append((red, green, blue))
    return tuple(colors)


def code(color: Color) -> int:
    """0xRRGGBB of a color."""
    return color[0] << 16 | color[1] << 8 | color[2]


# Okabe & Ito (2008): distinct for every common kind of color vision. A background class with id 0
# gets none of them.
_SAFE = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
)
BACKGROUND = ("background", "bg", "other", "others", "none", "unlabeled", "unlabelled")


def class_palette(names: tuple[str, ...]) -> tuple[Color, ...]:
    """Default colors: black for a first class that is a background, then colors that color-blind
    readers can distinguish, then their darker and lighter shades, then ``color_wheel``."""
    shades = [*_SAFE, *(_mixed(c, 0.45, 0) for c in _SAFE), *(_mixed(c, 0.5, 255) for c in _SAFE)]
    first = [(0, 0, 0)] if is_background(names, 0) else []
    count = len(names) - len(first)
    used = {*shades, *first}
    rest = [color for color in color_wheel(256 + count) if color not in used]
    return (*first, *(shades + rest)[:count])


def is_background(names: tuple[str, ...], index: int) -> bool:
    """Whether a class is the first one and has a name such as background or other."""
    return index == 0 and len(names) > 1 and names[0].strip().lower() in BACKGROUND


def _mixed(color: Color, share: float, with_: int) -> Color:
    red, green, blue = (round(part + share * (with_ - part)) for part in color)
    return red, green, blue


def plain_space(
    names: tuple[str, ...], ignore_index: int = 255, palette: tuple[Color, ...] = ()
) -> LabelSpace:
    """A label space whose raw ids are the train ids. A raw ``ignore_index`` is ignored."""
    raw = {index: index for index in range(len(names))}
    void = fitting_void(len(names), ignore_index)
    return LabelSpace(names, palette or class_palette(names), void, {**raw, void: void})


def fitting_void(count: int, ignore_index: int) -> int:
    """``ignore_index``, or 65535 in place of the usual 255 if 255 is one of ``count`` classes."""
    return (1 << 16) - 1 if ignore_index == 255 < count else ignore_index


def voc_colored(space: LabelSpace) -> LabelSpace:
    """The same classes with the colors of Pascal VOC, whose border color is ignored.

    A label space that has colors already, or ids of its own, is returned unchanged.
    """
    if space.colors or not space.counted:
        return space
    palette = ((0, 0, 0), *color_wheel(space.num_classes - 1))
    colors = {
        **{code(color): index for index, color in enumerate(palette)},
        code((224, 224, 192)): space.ignore_index,
    }
    return replace(space, palette=palette, colors=colors)

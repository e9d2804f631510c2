"""A data set whose masks are drawn from annotations."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from segtrain.data.annotations.draw import Paint, draw, stored_orientation
from segtrain.data.annotations.read import reading
from segtrain.data.annotations.shapes import Size
from segtrain.data.file_dataset import FileDataset
from segtrain.data.index.entries import Entries
from segtrain.data.pixels import decode
from segtrain.data.pixels.crop import StoredSample, size_error
from segtrain.data.stages import DECODE
from segtrain.data.storage import Range
from segtrain.errors import file_error

# The column of entries that holds what ``shapes.to_text`` returns.
SHAPES = ".shapes"
# At most about so many images are asked how a tool treats EXIF rotations.
_MOST = 500


@dataclass(frozen=True)
class AnnotatedDataset(FileDataset):
    """A split of images with annotations. The ``mask`` of an entry is the annotation file, or the
    first of several masks.

    train_ids_of: class name -> train id. background: the train id of pixels in no shape.
    """

    entries: Entries
    train_ids_of: dict[str, int] = field(default_factory=dict)
    background: int = 0
    paint: Paint = "file"

    @property
    def ids(self) -> Literal["raw", "train"]:
        return "train"

    @property
    def separate_files(self) -> bool:
        return False

    def record(self, index: int) -> StoredSample:
        entry = self.entries[index]
        content = self.stored_image(index)
        mask = self._drawn(index, decode.read_header(content, entry.image))
        image = self.ready(content, entry.image)
        return StoredSample(image, mask, entry.image, entry.mask or "", self.ids)

    def stored_mask(self, index: int) -> np.ndarray:
        path = self.entries[index].image
        with self.store.open(path) as stream:
            return self._drawn(index, decode.read_header(stream, path))

    def ranges(self, index: int) -> list[Range]:
        masks = _files_of(str(self.entries.meta[SHAPES][index]))
        return [Range(path) for path in (self.entries[index].image, *masks)]

    def stamps(self, indices: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """As in ``FileDataset``; several masks of an image count as the sum of their stamps."""
        stamped = super().stamps(indices)
        rows = range(len(self)) if indices is None else map(int, indices)
        for stamp, index in zip(stamped, rows):
            for path in _files_of(str(self.entries.meta[SHAPES][index])):
                if path != self.entries[index].mask:
                    stamp[1] += np.array(self.store.stat(path))
        return stamped

    @cached_property
    def _others_upright(self) -> bool | None:
        """As ``_is_upright``, for an image about which it is not known, by the other images: tools
        treat all alike. None if no other image tells it, or they differ.
        """
        known = set()
        for index in range(0, len(self), 1 + len(self) // _MOST):
            path = self.entries[index].image
            with self.store.open(path) as stream:
                header = decode.read_header(stream, path)
            known.add(_is_upright(json.loads(str(self.entries.meta[SHAPES][index])), header))
        known.discard(None)
        return known.pop() if len(known) == 1 else None

    def _drawn(self, index: int, header: decode.Header) -> np.ndarray:
        """The mask, (H, W) of train ids. Raises DataError if the annotation is for another
        size or has no pixel in the image.
        """
        entry, stored = self.entries[index], (header.height, header.width)
        content = json.loads(str(self.entries.meta[SHAPES][index]))
        given = tuple(content["size"]) if content["size"] else None
        upright = stored[::-1] if header.orientation >= 5 else stored
        if given not in (None, stored, upright):
            raise size_error(f"{entry.mask} ({entry.image})", given, entry.image, stored)
        is_upright = _is_upright(content, header)
        if is_upright is None and header.orientation > 1 and content["shapes"]:
            is_upright = self._others_upright
            if is_upright is None:
                raise file_error(
                    entry.image,
                    f"the image has the EXIF rotation {header.orientation}, and {entry.mask} does "
                    "not say whether its shapes are for the rotated image: store the pixels "
                    "upright",
                    code="rotation-ambiguous",
                )
        size = upright if is_upright else stored
        _load_pixels(content["shapes"], self._content, entry.image, size)
        with DECODE, reading(str(entry.mask), entry.image):
            mask = draw(
                content["shapes"],
                size,
                self.train_ids_of,
                self.background,
                self.labels.ignore_index,
                self.paint,
                self.labels.mask_dtype,
            )
            if mask is None:
                raise file_error(
                    str(entry.mask),
                    f"all {len(content['shapes'])} shapes of {entry.image} are outside of its "
                    f"{stored[0]} x {stored[1]} pixels: correct the annotation, or data.images if "
                    "another folder has images of these names",
                    code="shapes-outside",
                )
            return stored_orientation(mask, header.orientation) if is_upright else mask


def _is_upright(content: dict[str, Any], header: decode.Header) -> bool | None:
    """Whether shapes are for the image as its EXIF rotation shows it; None if neither the format,
    nor the size in the file, nor the points tell it.
    """
    height, width = header.height, header.width
    turned = header.orientation >= 5 and height != width
    if turned and content["size"]:
        return bool(content["size"] != [height, width])
    if not turned or content["upright"] is not None:
        return content["upright"]  # type: ignore[no-any-return]
    rings = (ring for shape in content["shapes"] for ring in shape.get("polygons", ()))
    x, y = np.reshape([0, 0, *itertools.chain(*rings)], (-1, 2)).max(0) - 1  # tools round
    fits_stored, fits_upright = (
        bool(x <= w and y <= h) for w, h in ((width, height), (height, width))
    )
    return fits_upright if fits_stored != fits_upright else None


def _files_of(text: str) -> list[str]:
    """The mask files in what ``shapes.to_text`` returned."""
    if '"file"' not in text:
        return []
    pixels = (shape.get("pixels", {}) for shape in json.loads(text)["shapes"])
    return [*dict.fromkeys(shape["file"] for shape in pixels if "file" in shape)]


def _load_pixels(
    shapes: list[dict[str, Any]], content: Callable[[str], Any], image: str, size: Size
) -> None:
    """Replace the path of a mask by its pixels, bool (H, W).

    content: returns the bytes of a file. image: for messages. Raises DataError for masks of another
    size, and for values that no shape explains.
    """
    segments: dict[str, np.ndarray] = {}
    for shape in shapes:
        source = shape.get("pixels", {})
        path = source.get("file")
        if path is None:
            continue
        if path in segments:
            values = segments[path]
        else:
            values = _values(content(path), path)
            if values.shape != size:
                raise size_error(path, values.shape, image, size)
        if "segments" in source:
            shape["pixels"] = np.isin(values, source["segments"])
            segments[path] = np.where(shape["pixels"], 0, values)
        else:
            shape["pixels"] = _of_two_values(values, path)
    for path, rest in segments.items():
        if rest.any():
            unknown = np.unique(rest)[1:].tolist()
            raise file_error(
                path,
                f"{np.count_nonzero(rest):,} pixels of segments that the annotations do not list, "
                f"such as {unknown[0]}: the id is red + 256 green + 65536 blue; export it again",
                code="segment-unknown",
                found=unknown[:5],
            )


def _values(content: Any, path: str) -> np.ndarray:
    """Integers (H, W): red + 256 green + 65536 blue of colors. A JPEG is cut at half of white."""
    if decode.read_header(content, path).format == "jpeg":
        return decode.decode_image(content, path)[..., 0] >> 7
    values = decode.decode_mask(content, path)
    return values if values.ndim == 2 else values @ np.array([1, 1 << 8, 1 << 16])


def _of_two_values(values: np.ndarray, path: str) -> np.ndarray:
    pixels = values > 0
    if (values[pixels] != values.max()).any():
        raise file_error(
            path,
            "holds more than two values, but masks of single objects or classes have 0 and "
            "another value: choose one mask of class ids per image with data.layout=folders "
            "and data.pair, or save such masks",
            code="mask-not-of-two-values",
        )
    return pixels

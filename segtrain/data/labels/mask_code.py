"""Formulas of ``data.mask_code``: class ids that data sets hide in the values of their masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from segtrain.errors import file_error


class MaskCode(NamedTuple):
    """formula: for messages. decode: raw values -> raw ids. colors: whether the values are RGB;
    None: they may be.
    """

    formula: str
    decode: Callable[[np.ndarray], np.ndarray]
    colors: bool | None = False


def _ade20k(rgb: np.ndarray) -> np.ndarray:
    return rgb[..., 0].astype(np.uint16) // 10 * 256 + rgb[..., 1]


def _mots(values: np.ndarray) -> np.ndarray:
    ids = values // 1000
    return np.where(ids == 10, 255, ids)


def _objects(values: np.ndarray) -> np.ndarray:
    if values.ndim == 3:
        return values.max(2) > 0
    # Ids count up, so 255 without 254 is void.
    void = (values == 255) & ~(values == 254).any()
    return np.where(void, np.uint8(255), values > 0)


CODES = {
    "ade20k": MaskCode("the id is R // 10 * 256 + G", _ade20k, colors=True),
    "cityscapes": MaskCode(
        "the id is v // 1000 from 1000 on, else v", lambda v: np.where(v >= 1000, v // 1000, v)
    ),
    "mapillary": MaskCode("the id is v // 256", lambda v: v // 256),
    "mots": MaskCode("the id is v // 1000, and 10 is void (255)", _mots),
    "cut": MaskCode(
        "each channel is cut at 128 to 0 or 255",
        lambda rgb: (rgb >> 7) * np.uint8(255),
        colors=True,
    ),
    "objects": MaskCode("each id above 0 is an object", _objects, colors=None),
}


def decoded(raw: np.ndarray, name: str, source: str) -> np.ndarray:
    """The ids, integers (H, W), or for "cut" the colors of a raw mask. Raises DataError."""
    code = CODES[name]
    if code.colors not in (None, raw.ndim == 3):
        kind = "an RGB mask" if raw.ndim == 3 else "a mask of one channel"
        reason = f"is {kind}, but with data.mask_code={name} {code.formula}: correct data.mask_code"
        raise file_error(source, reason, code="mask-code-differs", expected=name)
    return code.decode(raw)

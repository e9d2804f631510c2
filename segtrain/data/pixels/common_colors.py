"""The few colors of a mask that a lossy copy has blurred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

# In a flat area, neighbors differ by at most _NEAR in each channel. A common color has at least
# _SHARE of the flat areas, with the colors within _NOISE of it; all together have the _WHOLE. Up to
# _APART around it, there are few other colors.
_NEAR, _SHARE, _NOISE, _WHOLE = 8, 0.0005, 16, 0.98
_APART, _FEW = 32, 0.1
# Of a larger picture, some rows are counted.
_MANY = 1 << 20


def common_colors(pictures: Iterable[np.ndarray]) -> list[tuple[int, ...]]:
    """The colors of the flat areas of masks, uint8 (H, W, 3), ascending; [] for photos, whose
    colors lie close together.
    """
    counts = Counter[int]()
    for picture in pictures:
        rows = slice(0, -1, 1 + picture.size // _MANY)
        here, right, below = (
            pixels.astype(np.int32)
            for pixels in (picture[rows, :-1], picture[rows, 1:], picture[1:, :-1][:: rows.step])
        )
        flat = here[np.maximum(abs(here - right), abs(here - below)).max(2) <= _NEAR]
        codes = flat @ np.array([1 << 16, 1 << 8, 1])
        values, times = np.unique(codes, return_counts=True)
        counts.update(dict(zip(values.tolist(), times.tolist())))
    codes, left = (np.array([*column], np.int64) for column in (counts, counts.values()))
    rgb, total = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1), left.sum()
    common = dict[tuple[int, ...], int]()
    while left.sum() > _SHARE * total:
        color = rgb[left.argmax()]
        near = abs(rgb - color).max(1) < _NOISE
        count = int(left[near].sum())
        beside = [n for other, n in common.items() if abs(color - other).max() < _APART]
        if any(count > _FEW * n for n in beside):
            return []
        if count > _SHARE * total and not beside:
            common[tuple(color.tolist())] = count
        left[near] = 0
    return sorted(common) if len(common) > 1 and sum(common.values()) > _WHOLE * total else []

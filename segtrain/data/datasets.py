"""The data set of a split, as the config describes it."""

from __future__ import annotations

from segtrain import config
from segtrain.data.dataset import Dataset
from segtrain.data.index.layouts import LAYOUTS
from segtrain.data.index.split_by import divided


def open_dataset(data: config.Data, split: str) -> Dataset:
    """The data set of a split, in any layout of ``config.Data.layout``.

    Raises DataError for a missing folder, images without masks and masks without images, a split
    without images, and lists with missing columns, missing files, or repeated rows; ConfigError if
    the classes are not described.
    """
    if data.split_by.on:
        return divided(data, split, open_dataset)
    layout = LAYOUTS[data.layout]
    return layout.open(layout, data, split)

"""The data set of a split, as the config describes it."""

from __future__ import annotations

from segtrain import config
from segtrain.data.dataset import Dataset
from segtrain.data.index.layout import open_files
from segtrain.data.index.layouts import LAYOUTS
from segtrain.data.index.split_by import divided
from segtrain.errors import ConfigError


def refuse_stored(data: config.Data, command: str) -> None:
    """Raise ConfigError for a command that takes 8-bit RGB images only."""
    if data.stored:
        why = f"{command} takes 8-bit RGB images, but data.channels and data.values keep others"
        raise ConfigError(f"{why}: use the files as they are", code="command-without-bands")


def open_dataset(data: config.Data, split: str) -> Dataset:
    """The data set of a split, in any layout of ``config.Data.layout``.

    Raises DataError for a missing folder, images without masks and masks without images, a split
    without images, and lists with missing columns, missing files, or repeated rows; ConfigError if
    the classes are not described.
    """
    if data.split_by.on:
        return divided(data, split, open_dataset)
    layout = LAYOUTS[data.layout]
    if data.stored and layout.open is not open_files:
        names = [name for name, other in LAYOUTS.items() if other.open is open_files]
        raise ConfigError(
            f"data.layout={data.layout}: stored values of bands are read in the layouts "
            f"{', '.join(names)}: set data.layout",
            code="layout-without-bands",
            key="data.layout",
            found=data.layout,
        )
    return layout.open(layout, data, split)

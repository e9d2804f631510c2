"""The table of runs for Python: ``from segtrain.runs.table import data_frame``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas


def data_frame(folder: str | Path = "runs", seeds: bool = False) -> pandas.DataFrame:
    """The rows of a folder, a bucket, or ``vertex:EXPERIMENT`` as a pandas frame, ``started`` as
    UTC times. Each setting in which the runs differ is a column.

    ``seeds``: one row per config with the means over its seeds, their number (``runs``), and
    standard deviations (``miou_sd``, ...). Raises MissingExtra without pandas.
    """
    from segtrain.insight.runs import table
    from segtrain.installed import run_services

    return table.data_frame(folder, run_services(), seeds)

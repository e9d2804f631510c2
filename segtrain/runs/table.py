"""Import path of earlier versions, kept for scripts: ``from segtrain.runs.table import data_frame``."""

from segtrain.insight.runs.table import data_frame as data_frame

"""What is minimized? Losses that are fractions of sums, so that any split of the batch gives the same gradient."""

from __future__ import annotations

from segtrain.losses.criterion import Criterion, build_criterion
from segtrain.losses.lowres import low_res_loss, low_res_totals
from segtrain.losses.overlap import Lovasz, OverlapLoss
from segtrain.losses.pixelwise import CrossEntropy, Focal, OHEMCrossEntropy
from segtrain.losses.term import Term

__all__ = [
    "Criterion",
    "CrossEntropy",
    "Focal",
    "Lovasz",
    "OHEMCrossEntropy",
    "OverlapLoss",
    "Term",
    "build_criterion",
    "low_res_loss",
    "low_res_totals",
]

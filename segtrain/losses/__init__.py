"""Losses for semantic segmentation, exact under any split of the batch.

    loss = segtrain.losses.OHEMCrossEntropy(num_classes=19)(logits, target)

Each is a mean like every loss of PyTorch; ``sum_and_count`` gives its sum and count. All are fractions of sums, so that
any split of a batch over ranks and micro-batches gives the same value and gradient (see ``losses.term``).
"""

from __future__ import annotations

from segtrain.losses.criterion import Criterion, build_criterion
from segtrain.losses.lowres import low_res_loss, low_res_totals
from segtrain.losses.overlap import DiceLoss, JaccardLoss, LovaszSoftmax, TverskyLoss
from segtrain.losses.pixelwise import CrossEntropy, FocalLoss, OHEMCrossEntropy
from segtrain.losses.term import Term, WeightedTerm

__all__ = [
    "Criterion",
    "CrossEntropy",
    "DiceLoss",
    "FocalLoss",
    "JaccardLoss",
    "LovaszSoftmax",
    "OHEMCrossEntropy",
    "Term",
    "TverskyLoss",
    "WeightedTerm",
    "build_criterion",
    "low_res_loss",
    "low_res_totals",
]

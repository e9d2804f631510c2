"""Losses for semantic segmentation, exact under any split of the batch.

    loss = segtrain.losses.OHEMCrossEntropy(num_classes=19)(logits, target)

Each returns a mean, like the losses of PyTorch; ``sum_and_count`` returns its sum and count. Each
is a quotient of two sums over images, so any split of a batch over ranks and micro-batches gives
the same value and gradient (see ``losses.term``).
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

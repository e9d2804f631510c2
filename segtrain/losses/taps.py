"""Bilinear upsampling along an axis as tables: which two neighboring inputs each output mixes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TOLERANCE = 1e-6  # weight of other inputs that an output may have, by rounding


@dataclass(frozen=True)
class AxisTaps:
    """How the m outputs of an axis mix its n inputs.

    at: int32 (2, m), the two inputs of each output. mix: float32 (2, m), their weights.
    first: int32 (n + 2,); outputs first[k] to first[k + 1] mix the inputs k - 1 and k. Input -1 or
    n: weight 0. most: the largest number of outputs between two inputs.
    """

    at: Tensor
    mix: Tensor
    first: Tensor
    most: int


def axis(matrix: Tensor, device: torch.device) -> AxisTaps | None:
    """The tables of ``matrix`` (m, n), which maps inputs to outputs, on ``device``.

    None if an output mixes other inputs than two neighbors, or if the outputs are in another order
    than their inputs.
    """
    weights = np.array(matrix.tolist(), np.float32)
    outputs, inputs = weights.shape
    rows = np.arange(outputs)
    left = np.abs(weights).argmax(1)
    before = np.where(left > 0, np.abs(weights[rows, left - 1]), 0)
    after = np.where(left < inputs - 1, np.abs(weights[rows, np.minimum(left + 1, inputs - 1)]), 0)
    left = left - (before > after)
    near = weights[rows, left]
    far = np.where(left < inputs - 1, weights[rows, np.minimum(left + 1, inputs - 1)], 0)
    others = np.abs(weights).sum(1) - np.abs(near) - np.abs(far)
    # Outputs at the border have input 0 alone. They are the cell before it, so that no cell is
    # larger than the others.
    border = np.logical_and.accumulate((left == 0) & (far == 0))
    left = np.where(border, -1, left)
    near, far = np.where(border, 0, near), np.where(border, near, far)
    if not (others <= TOLERANCE).all() or (np.diff(left) < 0).any():
        return None
    first = np.searchsorted(left, np.arange(-1, inputs + 1))
    at, mix = np.clip([left, left + 1], 0, inputs - 1), np.stack([near, far])
    tables = (at.astype(np.int32), mix.astype(np.float32), first.astype(np.int32))
    on_device = [torch.from_numpy(table).to(device) for table in tables]
    return AxisTaps(on_device[0], on_device[1], on_device[2], most=int(np.diff(first).max()))

"""A random sample of a split for `segtrain data check --sample`, and what it says about the whole
split.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from segtrain.base.terminal import counted
from segtrain.data.dataset import Dataset
from segtrain.data.index.subset import select

_CONFIDENCE, _Z = 0.95, 1.959964  # the quantile of the normal distribution at 0.975


@dataclass(frozen=True)
class AuditSample:
    """``checked`` of the ``total`` images of a split, fewer than all, drawn with ``seed``;
    ``faulty`` of them have a fault.
    """

    checked: int
    total: int
    faulty: int
    seed: int

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Lower and upper bound of the share of faulty images in the whole split, with 95 %
        confidence.

        This is the Wilson score interval of the binomial distribution (1927). It is wider than
        necessary, since images are drawn without replacement.
        """
        count, share = self.checked, self.faulty / self.checked
        middle = self.faulty + _Z**2 / 2
        reach = _Z * math.sqrt(count * share * (1 - share) + _Z**2 / 4)
        low, high = ((middle + sign * reach) / (count + _Z**2) for sign in (-1, 1))
        return max(low, 0.0), min(high, 1.0)

    def text(self) -> str:
        """One sentence: the faulty images in the sample, and the confidence interval for the whole
        split.
        """
        low, high = (f"{100 * share:.3g} %" for share in self.interval)
        share = f"{low} to {high}" if self.faulty else f"fewer than {high}"
        checked = counted(self.checked, "checked image")
        return (
            f"{self.faulty or 'none'} of {checked} {'has' if self.faulty < 2 else 'have'} a fault: "
            f"with 95 % confidence, {share} of all {self.total:,} images have one"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        low, high = self.interval
        return {**asdict(self), "confidence": _CONFIDENCE, "faulty_share": [low, high]}


def sample_of(dataset: Dataset, count: int, seed: int) -> Dataset:
    """``count`` samples drawn uniformly without replacement, in the order of the split."""
    if count >= len(dataset):
        return dataset
    keep = np.sort(np.random.default_rng(seed).choice(len(dataset), count, replace=False))
    return select(dataset, keep, dataset.split, dataset.notes)

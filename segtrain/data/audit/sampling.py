"""A random sample of a split for `segtrain data check --sample`, and what it says about the whole
split.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from segtrain.base.terminal import counted
from segtrain.data.dataset import Dataset
from segtrain.data.index.subset import select

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class AuditSample:
    """``checked`` of the ``total`` images of a split, drawn with ``seed``; ``faulty`` of them have
    a fault.
    """

    checked: int
    total: int
    faulty: int
    seed: int

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Lower and upper bound of the share of faulty images in the whole split, with 95 %
        confidence.

        This is the Clopper-Pearson interval of the binomial distribution, with 2.5 % on each side
        even if no image or every image is faulty. It is wider than necessary, since images are
        drawn without replacement.
        """
        count, faulty, left = self.checked, self.faulty, 1 - _CONFIDENCE
        if count == self.total:
            return faulty / count, faulty / count
        if faulty in (0, count):
            bound = (left / 2) ** (1 / count)
            return (0.0, 1 - bound) if not faulty else (bound, 1.0)
        low = _solved(lambda share: 1 - _at_most(faulty - 1, count, share), left / 2)
        return low, _solved(lambda share: -_at_most(faulty, count, share), -left / 2)

    def text(self) -> str:
        """One sentence: the faulty images in the sample, and the confidence interval for the whole
        split.
        """
        low, high = self.interval
        some = "none" if not self.faulty else f"{self.faulty:,}"
        message = (
            f"{some} of {counted(self.checked, 'checked image')} "
            f"{'has' if self.faulty < 2 else 'have'} a fault"
        )
        if self.checked == self.total:
            return f"{message}: the whole split was checked"
        least, most = _percent(low, math.floor), _percent(high, math.ceil)
        share = f"fewer than {most}" if not self.faulty else f"{least} to {most}"
        if self.faulty == self.checked:
            share = f"more than {least}"
        return f"{message}: with 95 % confidence, {share} of all {self.total:,} images have one"

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


def _at_most(most: int, count: int, share: float) -> float:
    """The probability of at most ``most`` faulty images among ``count``, if ``share`` of all are
    faulty.
    """
    logs = (
        math.lgamma(count + 1)
        - math.lgamma(k + 1)
        - math.lgamma(count - k + 1)
        + k * math.log(share)
        + (count - k) * math.log1p(-share)
        for k in range(most + 1)
    )
    return math.fsum(map(math.exp, logs))


def _solved(function: Callable[[float], float], value: float) -> float:
    """The share from 0 to 1 at which an increasing function has this value, found by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < value else (low, middle)
    return (low + high) / 2


def _percent(share: float, rounded: Callable[[float], int]) -> str:
    """A share as text with two significant digits, by ``rounded`` (floor or ceil): 0.75 %, 0.0032
    %.
    """
    digits = max(0, 1 - math.floor(math.log10(share * 100))) if share else 0
    return f"{rounded(share * 100 * 10**digits) / 10**digits:.{digits}f} %"

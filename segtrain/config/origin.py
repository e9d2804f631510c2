"""Origin of the weights that a network begins with: the images that they expect, and their license."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from segtrain.config.data import Data

# Of ImageNet's training images, in values from 0 to 1.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_FREE = ("", "apache-2.0", "bsd-3-clause", "mit")


@dataclass(frozen=True)
class Origin:
    """The network takes ``(x / 255 - mean) / std`` of RGB images. ``license``: of its pretrained weights, or ""."""

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    license: str = ""

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> Origin:
        """The origin in a checkpoint. Raises KeyError, TypeError, or ValueError."""
        mean, std = (tuple(map(float, saved[key])) for key in ("mean", "std"))
        if not len(mean) == len(std) == 3 or not all(map(math.isfinite, mean + std)) or min(std) <= 0:
            raise ValueError(f"mean={mean}, std={std}: each has 3 numbers, those of std above 0")
        return cls(mean, std, str(saved.get("license", "")))

    @classmethod
    def exported(cls, facts: Mapping[str, Any]) -> Origin:
        """The origin in a model.json. Raises as ``read`` does."""
        return cls.read({"license": facts.get("license", ""), **facts["input"]})

    def changed(self, data: Data) -> Origin:
        """The origin with ``data.mean`` and ``data.std``, if they are set."""
        return replace(self, mean=data.mean or self.mean, std=data.std or self.std)

    def images(self) -> str:
        mean, std = (" ".join(f"{value:.4g}" for value in part) for part in (self.mean, self.std))
        return f"mean {mean}, std {std}"

    def warnings(self) -> list[str]:
        """At most one line, about a license that does not allow all uses."""
        if self.license in _FREE:
            return []
        fix = "check that it allows your use of what you train"
        return [f"warning: the license of the pretrained weights is {self.license}: {fix}"]

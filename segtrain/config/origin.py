"""Origin of the weights that a network begins with: the images that they expect, and their
license.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from segtrain.config.data import Data
from segtrain.errors import ConfigError

# Of ImageNet's training images, in values from 0 to 1.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_FREE = ("", "apache-2.0", "bsd-3-clause", "mit")


@dataclass(frozen=True)
class Origin:
    """The network takes ``(x / 255 - mean) / std`` of RGB images, or ``(x - mean) / std`` of stored
    values. ``license``: of its pretrained weights, or "".
    """

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    license: str = ""

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> Origin:
        """The origin in a checkpoint or a model.json; ImageNet's in those of earlier versions.

        Raises ValueError, TypeError, or AttributeError.
        """
        images = saved.get("input", saved)
        mean, std = (
            tuple(map(float, images.get(key) or default))
            for key, default in (("mean", cls.mean), ("std", cls.std))
        )
        if len(mean) != len(std) or min(std) <= 0:
            raise ValueError(f"mean {mean} and std {std} do not fit")
        return cls(mean, std, str(saved.get("license", "")))

    def changed(self, data: Data) -> Origin:
        """The origin with ``data.mean`` and ``data.std``, if they are set. Raises ConfigError if
        stored values need them.
        """
        if data.stored and not (data.mean and data.std):
            raise ConfigError(
                f"data.mean and data.std: stored values need a number for each of the "
                f"{data.channels} bands: `segtrain data check` measures and prints them",
                code="normalization-missing",
                key="data.mean",
            )
        return replace(self, mean=data.mean or self.mean, std=data.std or self.std)

    def images(self) -> str:
        mean, std = (" ".join(f"{value:.4g}" for value in part) for part in (self.mean, self.std))
        return f"mean {mean}, std {std}"

    def terms(self) -> str:
        """The license, with a warning if it does not allow all uses."""
        if self.license in _FREE:
            return self.license
        return f"warning: {self.license}: check that it allows your use of what you train"

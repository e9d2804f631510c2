"""Runs torchvision v2 transforms with the random generator of a sample, in any thread.

torchvision uses torch's global generator, as the model's dropout does. So each call runs in a
TorchFunctionMode that passes a separate generator to every random torch function. The global
generator is neither seeded nor advanced.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from segtrain.data.augment.transforms_build import parts_of, transforms_error

_DRAWS = {
    getattr(owner, name)
    for owner, names in (
        (
            torch,
            "rand randn randint randperm normal bernoulli multinomial poisson _sample_dirichlet",
        ),
        (
            torch.Tensor,
            "uniform_ normal_ random_ bernoulli_ exponential_ geometric_ log_normal_ cauchy_",
        ),
        (torch.Tensor, "bernoulli multinomial"),
    )
    for name in names.split()
}
# no generator= in torch 2.4
_LIKE = {torch.rand_like: torch.Tensor.uniform_, torch.randn_like: torch.Tensor.normal_}


class _Drawing(TorchFunctionMode):
    """Makes torch's random functions use ``generator`` in this thread."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _LIKE:
            return _LIKE[func](torch.empty_like(*args, **kwargs), generator=self.generator)
        if func in _DRAWS and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self.generator}
        return func(*args, **kwargs)


def runner(pipeline: Any) -> Any:
    """``pipeline`` as a function of an image uint8 (H, W, 3), a mask uint8 (H, W) and a NumPy
    generator.
    """
    tensors = _tensors()

    def run(image: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> tuple[Any, Any]:
        generator = torch.Generator().manual_seed(int(rng.random() * (1 << 53)))
        with torch.no_grad(), _Drawing(generator):
            pixels, ids = pipeline(
                tensors.Image(torch.from_numpy(image).permute(2, 0, 1)),
                tensors.Mask(torch.from_numpy(mask)),
            )
        if isinstance(pixels, torch.Tensor) and pixels.ndim == 3:
            pixels = pixels.as_subclass(torch.Tensor).permute(1, 2, 0).numpy()
        return pixels, ids.as_subclass(torch.Tensor).numpy() if isinstance(
            ids, torch.Tensor
        ) else ids

    return run


def refuse_class_0(pipeline: Any, ignore_index: int) -> None:
    """Raise ConfigError for a transform that would pad masks with 0, which is a class."""
    mask = _tensors().Mask
    for part in parts_of(pipeline, lambda part: isinstance(part, torch.nn.Module)):
        fill = getattr(part, "fill", None)
        if not hasattr(part, "fill") or getattr(part, "padding_mode", "constant") != "constant":
            continue
        if hasattr(part, "pad_if_needed") and not part.pad_if_needed and not part.padding:
            continue  # a RandomCrop that does not pad
        value = fill.get(mask, fill.get("others", 0)) if isinstance(fill, dict) else fill
        if ignore_index != 0 and not np.any(value or 0):
            fill = f'fill={{torchvision.tv_tensors.Mask: {ignore_index}, "others": 0}}'
            raise transforms_error(
                f"{type(part).__name__} would pad masks with 0, which is a class: give it {fill}",
                code="transforms-fill-mask",
                found=type(part).__name__,
            )


def _tensors() -> Any:
    try:
        from torchvision import tv_tensors
    except ImportError as error:
        reason = f"torchvision.transforms.v2 needs torchvision 0.16 or later ({error})"
        raise transforms_error(reason, code="torchvision-too-old", found=str(error)) from None
    return tv_tensors

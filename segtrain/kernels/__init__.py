"""Kernels in Triton for NVIDIA GPUs: where they can run, and how they are launched."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import Any

import torch

LEAST = (7, 0)  # compute capability


class UnusedKernels(UserWarning):
    """Kernels do not run here, and others take their place. Rank 0 alone prints it."""


def no_triton() -> str:
    """Why Triton cannot be used, or ""."""
    return (
        ""
        if importlib.util.find_spec("triton")
        else "it needs the package triton, which is not installed"
    )


def unavailable(device: torch.device) -> str:
    """Why no kernel can run on ``device``, or ""."""
    if device.type != "cuda" or torch.version.hip:
        return "it needs an NVIDIA GPU"
    if no_triton():
        return no_triton()
    found = torch.cuda.get_device_capability(device)
    return (
        ""
        if found >= LEAST
        else f"it needs compute capability {LEAST[0]}.{LEAST[1]}, and the GPU has {found}"
    )


def launch(
    name: str,
    device: torch.device,
    grid: tuple[int, ...],
    warps: int,
    *arguments: Any,
    **flags: Any,
) -> None:
    """Launch the kernel ``module.function`` of this package, such as "loss.gradient", on the
    current stream.

    Raises whatever Triton raises, which also needs a C compiler and a driver that fits.
    """
    module, _, function = name.partition(".")
    kernel = getattr(importlib.import_module(f"segtrain.kernels.{module}"), function)
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        # Triton 3.10 would not fuse products and sums by itself.
        kernel[grid](*arguments, **flags, num_warps=warps, enable_fp_fusion=True)

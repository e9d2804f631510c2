"""Internals of torch and SMP that the networks rely on. Checked with torch 2.15.0 and SMP 0.6.0."""

from __future__ import annotations

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode", "is_decoder_block", "is_unet_block"]


def is_unet_block(block: nn.Module) -> bool:
    """Whether this is a decoder block of SMP's U-Net, a class that SMP does not export."""
    return type(block).__name__ == "UnetDecoderBlock"


def is_decoder_block(block: nn.Module) -> bool:
    """Whether this is a decoder block of SMP's U-Net, U-Net++, or MA-Net."""
    return is_unet_block(block) or type(block).__name__ == "DecoderBlock"

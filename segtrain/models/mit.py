"""Attention of Mix Transformers (Xie et al. 2021, SegFormer) that does not store its scores."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


class MitAttention(nn.Module):
    """SMP's attention of Mix Transformers, by ``scaled_dot_product_attention``: the same state, and
    the same values up to rounding.
    """

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Tokens (N, height * width, C), to the same shape."""
        part: Any = self
        images, tokens, channels = x.shape
        heads = (part.num_heads, channels // part.num_heads)
        query = part.q(x).view(images, tokens, *heads).transpose(1, 2)
        fewer = x
        if part.sr_ratio > 1:
            fewer = part.sr(x.transpose(1, 2).reshape(images, channels, height, width))
            fewer = part.norm(fewer.flatten(2).transpose(1, 2))
        key, value = part.kv(fewer).view(images, -1, 2, *heads).permute(2, 0, 3, 1, 4)
        dropout = part.attn_drop.p if part.training else 0.0
        mixed = F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, scale=part.scale
        )
        return part.proj_drop(part.proj(mixed.transpose(1, 2).reshape(images, tokens, channels)))


def use_fast_attention(encoder: nn.Module) -> None:
    """Give the attention of an SMP encoder this class, in place; parameters and names stay."""
    for module in encoder.modules():
        # SMP does not export the class, so its name is compared. Checked with SMP 0.6.0.
        kind = type(module)
        if (kind.__name__, kind.__module__.rpartition(".")[2]) == ("Attention", "mix_transformer"):
            module.__class__ = MitAttention

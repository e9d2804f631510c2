"""SegFormer (Xie et al. 2021): attention that does not store its scores, and a decoder without
concatenated feature maps.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from segtrain.models.layers import norm_act, upsampled


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


class SegformerDecoder(nn.Module):
    """SMP's decoder of SegFormer: the same state, and the same values up to rounding.

    The layers of a feature map before and after its upsampling are linear, so they are one matrix,
    before it.
    """

    def forward(self, features: list[Tensor]) -> Tensor:
        """Features of strides 1, 2, ..., to a map of stride 4: (N, O, H/4, W/4)."""
        part: Any = self
        size = [side // 4 for side in features[0].shape[2:]]
        stages, (conv, norm, activation) = part.mlp_stage, part.fuse_stage
        mixes = conv.weight.flatten(1).chunk(len(stages), 1)
        maps = []
        for x, stage, mix in zip(features[::-1], stages, mixes):
            matrix, bias = mix @ stage.linear.weight, mix @ stage.linear.bias
            # As tokens, so that the map is in channels_last.
            tokens = F.linear(x.flatten(2).transpose(1, 2), matrix, bias)
            x = tokens.transpose(1, 2).unflatten(2, x.shape[2:])
            maps.append(x if [*x.shape[2:]] == size else upsampled(x, False, size=size))
        return norm_act(norm, activation, sum(maps[1:], maps[0]))


def use_fast_segformer(network: nn.Module) -> None:
    """Give the attention and the decoder of an SMP network these classes, in place; parameters and
    names stay.
    """
    fast = {
        ("Attention", "mix_transformer"): MitAttention,
        ("SegformerDecoder", "decoder"): SegformerDecoder,
    }
    for module in network.modules():
        # SMP does not export the classes, so their names are compared. Checked with SMP 0.6.0.
        kind = type(module)
        key = kind.__name__, kind.__module__.rpartition(".")[2]
        module.__class__ = fast.get(key, kind)

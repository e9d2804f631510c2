"""The networks of SMP that this package builds itself, under the parameter names of SMP, without importing SMP."""

from __future__ import annotations

from segtrain.config import Model
from segtrain.models.base import SegModel
from segtrain.models.resnet import RESNETS

_OPTIONS = {
    "unet": {"decoder_channels"},
    "deeplabv3plus": {
        "encoder_output_stride", "decoder_channels", "decoder_atrous_rates", "decoder_aspp_dropout"
    },
}  # fmt: skip


def has_builtin(model: Model) -> bool:
    """Whether ``build`` can make the network of the config. SMP itself makes all others."""
    arch, options = model.arch.lower(), model.options
    if not model.fast or arch not in _OPTIONS or model.encoder not in RESNETS or set(options) - _OPTIONS[arch]:
        return False
    if arch == "unet":
        channels = options.get("decoder_channels", (0,) * 5)
        return isinstance(channels, (list, tuple)) and len(channels) == 5
    return options.get("encoder_output_stride", 16) in (8, 16)


def build(model: Model, num_classes: int) -> SegModel:
    """Build the network with fresh weights. ``has_builtin(model)`` must hold."""
    from segtrain.models.deeplab import DeepLabV3Plus
    from segtrain.models.unet import Unet

    architecture = {"unet": Unet, "deeplabv3plus": DeepLabV3Plus}[model.arch.lower()]
    return architecture(model.encoder, num_classes, **model.options)

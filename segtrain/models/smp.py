"""Networks of segmentation-models-pytorch (SMP 0.5 and newer): any architecture, any encoder."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segtrain.config import Model, unknown_name
from segtrain.errors import ConfigError, MissingExtra
from segtrain.models.base import SegModel
from segtrain.models.deeplab import deeplabv3plus
from segtrain.models.factory import check_options
from segtrain.models.mit import use_fast_segformer
from segtrain.models.resnet import RESNETS
from segtrain.models.unet import unet, use_fast_decoder_blocks

_RESERVED = {
    "classes": "it follows from data.classes",
    "in_channels": "it follows from data.channels",
    "activation": "losses and metrics need plain logits",
    "aux_params": "it adds an image classifier, which nothing here trains",
    "encoder_name": "use model.encoder",
    "encoder_weights": "use model.encoder_weights",
}


class SmpModel(SegModel):
    """An SMP network that can return its logits before the head upsamples them. Parameters have the
    names of SMP.
    """

    def __init__(self, encoder: Any, decoder: Any, head: Any, num_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.segmentation_head = head
        self.num_classes = num_classes
        self.stride = int(encoder.output_stride)
        # Only DPT's head is not a Sequential. Its decoder resizes the patch features to strides 4,
        # 8, 16, and 32.
        if not isinstance(self.segmentation_head, nn.Sequential):
            self.stride = max(self.stride, 32)

    def encoder_parts(self) -> list[nn.Module]:
        return [self.encoder]

    def heads(self) -> list[nn.Module]:
        head = self.segmentation_head
        return [head[0] if isinstance(head, nn.Sequential) else head.head[-1]]

    def _low(self, images: Tensor) -> tuple[Tensor, ...]:
        features = self.encoder(images)
        if isinstance(self.segmentation_head, nn.Sequential):
            return (self.segmentation_head[0](self.decoder(features)),)
        return (self.segmentation_head.head(self.decoder(*features)),)

    def _upsample(self, low: Tensor, size: tuple[int, int]) -> Tensor:
        if isinstance(self.segmentation_head, nn.Sequential):
            return self.segmentation_head[1](low)
        return F.interpolate(
            low,
            scale_factor=self.segmentation_head.upsampling_factor,
            mode="bilinear",
            align_corners=True,
        )


def build(model: Model, num_classes: int) -> SegModel:
    """Build an SMP network. Raises as ``factory.build_model`` does."""
    if _is_own(model):
        architecture = unet if model.arch.lower() == "unet" else deeplabv3plus
        network = SmpModel(*architecture(model.encoder, num_classes, **model.options), num_classes)
        if model.encoder_weights is not None:
            network.load_state_dict(_network(model, num_classes).state_dict())
        return network
    stock = _network(model, num_classes)
    network = SmpModel(stock.encoder, stock.decoder, stock.segmentation_head, num_classes)
    if resamples_patches(model):
        network.remarks += ("patches of 14 pixels are resampled to 16 (model.options.patch_size)",)
    if model.fast:
        use_fast_decoder_blocks(network.decoder)
        use_fast_segformer(network)
    if model.arch.lower() == "pan":
        network.least = 8 * network.stride  # three poolings follow the encoder
    try:
        freeze_unused(network)
    except (AssertionError, RuntimeError) as error:
        if not model.encoder.startswith("tu-"):
            raise
        raise ConfigError(
            f"{model.arch} with model.encoder={model.encoder} does not take every size of "
            f"data.crop ({error}): for Swin set model.options={{strict_img_size: false}}, for a "
            "vision transformer with patches of 14 pixels {patch_size: 16, dynamic_img_size: "
            "true}, or take another encoder",
            code="image-size-unfit",
            found=model.encoder,
        ) from error
    return network


def resamples_patches(model: Model) -> bool:
    """Whether timm resamples patches of 14 pixels to 16, as DINOv2's paper and EoMT do: DPT's
    strides of 4 and 8 do not divide 14.
    """
    dpt = model.arch.lower() == "dpt" and "patch14" in model.encoder
    return dpt and "patch_size" not in model.options


def _is_own(model: Model) -> bool:
    """Whether this package builds the network itself, equal to SMP's. That saves the seconds of
    importing SMP.
    """
    options = set(model.options)
    if not model.fast or model.encoder not in RESNETS:
        return False
    if model.arch.lower() == "unet":
        channels = model.options.get("decoder_channels", (0,) * 5)
        return (
            options <= {"decoder_channels"}
            and isinstance(channels, (list, tuple))
            and len(channels) == 5
        )
    accepted = {
        "encoder_output_stride",
        "decoder_channels",
        "decoder_atrous_rates",
        "decoder_aspp_dropout",
    }
    stride = model.options.get("encoder_output_stride", 16)
    return model.arch.lower() == "deeplabv3plus" and options <= accepted and stride in (8, 16)


def freeze_unused(network: SegModel) -> None:
    """Freeze the parameters that no output depends on, because DDP would wait for their gradients.

    PSPNet leaves two encoder stages unused, and DPT one head. A backward pass on the meta device
    finds them.
    """
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    meta_params = {
        name: torch.zeros_like(p, device="meta", requires_grad=True)
        for name, p in parameters.items()
    }
    buffers = {name: torch.zeros_like(b, device="meta") for name, b in network.named_buffers()}
    side = max(network.least, 2 * network.stride)
    images = torch.zeros(2, 3, side, side, device="meta")
    (output,) = torch.func.functional_call(
        network, {**meta_params, **buffers}, (images,), {"low": True}
    )
    grads = torch.autograd.grad(output.sum(), list(meta_params.values()), allow_unused=True)
    for parameter, grad in zip(parameters.values(), grads):
        parameter.requires_grad_(grad is not None)


def _network(model: Model, num_classes: int) -> Any:
    """The module that SMP builds."""
    try:
        import segmentation_models_pytorch as smp
    except ImportError as error:
        if error.name != "segmentation_models_pytorch":
            raise
        raise MissingExtra("segmentation-models-pytorch", "", f"model.arch={model.arch}") from None
    arch = model.arch.lower()
    networks = {
        name.lower(): getattr(smp, name)
        for name in smp.__all__
        if isinstance(getattr(smp, name), type)
    }
    if arch not in networks:
        raise unknown_name(
            "arch", model.arch, networks, f"update segmentation-models-pytorch {smp.__version__}"
        )
    _check_encoder(model, arch, smp.encoders)
    # Encoders of timm take many more options, and refuse unknown ones themselves.
    from_timm = model.encoder.startswith("tu-")
    check_options(model, None if from_timm else networks[arch], _RESERVED)
    # Without dynamic_img_size, the ViT accepts only one image size.
    options = {**({"dynamic_img_size": True} if arch == "dpt" else {}), **model.options}
    if resamples_patches(model):
        options["patch_size"] = 16
    # The name of a timm encoder selects the weights. SMP expects True for these, and warns about a
    # string.
    weights = model.encoder_weights and (True if from_timm else model.encoder_weights)
    return networks[arch](
        encoder_name=model.encoder, encoder_weights=weights, classes=num_classes, **options
    )


def _check_encoder(model: Model, arch: str, encoders: Any) -> None:
    """Refuse an encoder that SMP and timm lack, and weights that the encoder lacks."""
    name, chosen = model.encoder, model.encoder_weights
    if name.startswith("tu-"):
        import timm

        if not timm.is_model(name[3:].partition(".")[0]):
            raise unknown_name(
                "encoder", name, timm.list_models(), "timm.list_models() lists all names", "tu-"
            )
        weights = ["imagenet"]
        fix = (
            "use imagenet or null; timm names other weights in the encoder, such as "
            "tu-convnext_tiny.fb_in1k"
        )
    elif arch == "dpt":
        raise ConfigError(
            f"model.encoder={name!r}: dpt needs a vision transformer of timm, such as "
            "tu-vit_tiny_patch16_224",
            code="encoder-unfit",
            found=name,
        )
    elif name.startswith("timm-"):
        return
    else:
        names = encoders.get_encoder_names()
        if name not in names:
            raise unknown_name(
                "encoder", name, names, f"choose from {', '.join(names)}, or tu-NAME for timm's"
            )
        weights = list(encoders.encoders[name]["pretrained_settings"])
        fix = f"{name} has {', '.join(weights)}; null trains from scratch"
    if chosen is not None and chosen not in weights:
        raise unknown_name("encoder_weights", chosen, weights, fix)

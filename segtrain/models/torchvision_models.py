"""Segmentation networks of torchvision, with logits before their last resize."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from segtrain.config import Model, unknown_name
from segtrain.errors import MissingExtra
from segtrain.models.base import SegModel
from segtrain.models.factory import check_options

_RESERVED = {
    "num_classes": "it follows from data.classes",
    "weights": "those heads fit other classes; use model.encoder_weights",
    "weights_backbone": "use model.encoder_weights",
    "progress": "it concerns downloads only",
}


class TorchvisionModel(SegModel):
    """FCN, DeepLabV3, and LR-ASPP of torchvision, with its parameter names. They accept any size
    without padding.
    """

    pads = False
    stride = 8

    def __init__(self, network: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.backbone: Any = network.backbone
        self.classifier: Any = network.classifier
        self.aux_classifier: Any = getattr(network, "aux_classifier", None)
        self.num_classes = num_classes
        if "mobilenet" in type(network.backbone).__name__.lower() or not hasattr(
            network, "aux_classifier"
        ):
            self.stride = 16

    def encoder_parts(self) -> list[nn.Module]:
        return [self.backbone]

    def auxiliary_parts(self) -> list[nn.Module]:
        return [] if self.aux_classifier is None else [self.aux_classifier]

    def heads(self) -> list[nn.Module]:
        if isinstance(self.classifier, nn.Sequential):
            return [part[-1] for part in (self.classifier, self.aux_classifier) if part is not None]
        return [self.classifier.low_classifier, self.classifier.high_classifier]  # LR-ASPP

    def _low(self, images: Tensor) -> tuple[Tensor, ...]:
        features: dict[str, Any] = self.backbone(images)
        main = self.classifier(features.get("out", features))
        if self.training and self.aux_classifier is not None:
            return main, self.aux_classifier(features["aux"])
        return (main,)


def build(model: Model, num_classes: int) -> SegModel:
    """Build a torchvision network. Raises as ``factory.build_model`` does."""
    try:
        from torchvision.models import segmentation
    except ImportError as error:
        if error.name is None or not error.name.startswith("torchvision"):
            raise
        raise MissingExtra("torchvision", "", f"model.arch={model.arch}") from None
    name = model.arch.lower().partition("/")[2]
    constructor = getattr(segmentation, name)
    check_options(model, constructor, _RESERVED)
    auxiliary: dict[str, Any] = {} if name.startswith("lraspp") else {"aux_loss": True}
    weights = _backbone_weights(model)
    network = constructor(
        weights=None,
        weights_backbone=weights,
        num_classes=num_classes,
        **{**auxiliary, **model.options},
    )
    return TorchvisionModel(network, num_classes)


def _backbone_weights(model: Model) -> str | None:
    """torchvision's name of the backbone weights. torchvision checks whether the backbone has
    them.
    """
    if model.encoder_weights is None:
        return None
    names = {
        "imagenet": "IMAGENET1K_V1",
        "imagenet1k_v1": "IMAGENET1K_V1",
        "imagenet1k_v2": "IMAGENET1K_V2",
    }
    if model.encoder_weights.lower() not in names:
        raise unknown_name(
            "encoder_weights",
            model.encoder_weights,
            names,
            f"{model.arch} has imagenet, IMAGENET1K_V1, and IMAGENET1K_V2; null trains from "
            "scratch",
        )
    return names[model.encoder_weights.lower()]

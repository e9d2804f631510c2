"""How does a name in the config become a network? Each family's library is imported only when it is asked for."""

from __future__ import annotations

import difflib

from ..config import Model
from ..errors import ConfigError
from .base import SegModel

SMP = (
    "unet", "unetplusplus", "manet", "linknet", "fpn", "pspnet", "deeplabv3", "deeplabv3plus", "pan", "upernet",
    "segformer", "dpt",
)  # fmt: skip
TORCHVISION = (
    "fcn_resnet50", "fcn_resnet101", "deeplabv3_resnet50", "deeplabv3_resnet101", "deeplabv3_mobilenet_v3_large",
    "lraspp_mobilenet_v3_large",
)  # fmt: skip


def architectures() -> list[str]:
    """Every value that ``model.arch`` may take."""
    return ["pico", *SMP, *(f"torchvision/{name}" for name in TORCHVISION)]


def build_model(model: Model, num_classes: int) -> SegModel:
    """The network of the config, with fresh (or pretrained) weights, in training mode, on the CPU.

    Raises:
        ConfigError: unknown architecture, encoder, option or weights; weights that cannot be fetched.
        MissingExtra: the architecture's library is absent.
    """
    if num_classes < 1:
        raise ConfigError(f"a network needs at least 1 class, not {num_classes}: name them in data.classes")
    arch = model.arch.lower()
    if arch not in architectures():
        near = difflib.get_close_matches(arch, architectures(), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "see the list below."
        raise ConfigError(f"unknown model.arch={model.arch!r}: {hint} Known: {', '.join(architectures())}")
    if arch == "pico":
        from .pico import build
    elif arch in SMP:
        from .smp import build
    else:
        from .torchvision_models import build
    return build(model, num_classes)


def reject_options(model: Model, reserved: dict[str, str]) -> None:
    """Refuse entries of ``model.options`` that another setting decides, or that would break the logits."""
    for key, cure in reserved.items():
        if key in model.options:
            raise ConfigError(f"model.options.{key}={model.options[key]!r} cannot be set here: {cure}")

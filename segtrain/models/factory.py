"""Factory of networks by their name in the config. The library of a family is imported only when it is needed."""

from __future__ import annotations

from segtrain.config import SMP, Model, refuse_arch
from segtrain.errors import ConfigError, SegtrainError
from segtrain.models.base import SegModel
from segtrain.models.weights import is_file_name, load_encoder


def build_model(model: Model, num_classes: int) -> SegModel:
    """Build the network of the config, with fresh or pretrained weights, in training mode, on the CPU.

    Raises ConfigError for an unknown architecture, encoder, option, or name of weights, and for weights that cannot be fetched;
    MissingExtra if the library of the architecture is not installed.
    """
    if num_classes < 1:
        raise ConfigError(
            f"a network needs at least 1 class, not {num_classes}: name them in data.classes",
            code="no-classes",
            found=num_classes,
        )
    arch = model.arch.lower()
    refuse_arch(model)
    if arch == "pico":
        from segtrain.models.pico import build
    elif arch in SMP:
        from segtrain.models.smp import build
    else:
        from segtrain.models.torchvision_models import build
    weights_file = model.encoder_weights if is_file_name(model.encoder_weights) else None
    if weights_file is not None:
        model = model.model_copy(update={"encoder_weights": None})
    try:
        network = build(model, num_classes)
    except SegtrainError:
        raise
    except Exception as error:
        if not model.options:
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ConfigError(
            f"model.options={model.options} do not fit model.arch={model.arch} ({reason})",
            code="model-options-unfit",
            options=model.options,
            arch=model.arch,
        ) from error
    if weights_file is not None:
        load_encoder(network, weights_file)
    return network


def reject_options(model: Model, reserved: dict[str, str]) -> None:
    """Refuse entries of ``model.options`` that another setting decides, or that would change the logits."""
    for key, cure in reserved.items():
        if key in model.options:
            raise ConfigError(
                f"model.options.{key}={model.options[key]!r} cannot be set here: {cure}",
                code="model-option-reserved",
                key=key,
            )

"""Factory of networks by their name in the config. SMP and torchvision are imported only if a
network needs them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from segtrain.config import SMP, Model, Origin, is_file_name, refuse_arch
from segtrain.errors import ConfigError, SegtrainError, closest
from segtrain.models.base import SegModel
from segtrain.models.channels import set_channels
from segtrain.models.published import published
from segtrain.models.weights import load_encoder

# Errors that constructors raise for arguments that do not fit.
_UNFIT = (TypeError, ValueError, KeyError, RuntimeError, AttributeError, AssertionError)


def build_model(model: Model, num_classes: int, channels: int = 3) -> SegModel:
    """Build the network of the config, with fresh or pretrained weights, in training mode, on the
    CPU. ``channels``: bands of the images.

    Raises ConfigError for an unknown architecture, encoder, option, or name of weights, and for
    weights that cannot be fetched; MissingExtra if the library of the architecture is not
    installed.
    """
    if num_classes < 1:
        raise ConfigError(
            "a network needs at least 1 class: name the classes in data.classes", code="no-classes"
        )
    refuse_arch(model)
    arch = model.arch.lower()
    if arch == "auto":  # on no particular machine
        arch, model = "pico", model.model_copy(update={"arch": "pico"})
    if arch == "pico":
        from segtrain.models.pico import build
    elif arch in SMP:
        from segtrain.models.smp import build
    else:
        from segtrain.models.torchvision_models import build
    weights_file = model.encoder_weights if is_file_name(model.encoder_weights) else None
    original = model
    if weights_file is not None:
        model = model.model_copy(update={"encoder_weights": None})
    try:
        network = build(model, num_classes)
    except SegtrainError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        unfit = isinstance(error, _UNFIT) and not isinstance(error, OSError)
        # A failed download raises an OSError, or an error of httpx, huggingface_hub, or requests.
        if model.encoder_weights is not None and not unfit:
            weights = model.encoder_weights
            raise ConfigError(
                f"model.encoder_weights={weights!r} of {model.encoder} cannot be fetched "
                f"({reason}): set model.encoder_weights=null, or copy the files into HF_HOME "
                "(TORCH_HOME for torchvision)",
                code="encoder-weights-unreachable",
                found=weights,
            ) from error
        if not unfit and not model.options:
            raise
        parts = [f"model.encoder={model.encoder}"] if arch in SMP else []
        parts += [f"model.options={model.options}"] if model.options else []
        raise ConfigError(
            f"model.arch={model.arch} cannot be built with {' and '.join(parts)} ({reason})",
            code="model-options-unfit",
        ) from error
    network.origin = published(original)
    timm_name = model.encoder[3:] if arch in SMP and model.encoder.startswith("tu-") else ""
    widened = weights_file is not None and load_encoder(network, weights_file, channels, timm_name)
    if channels != 3:
        if not widened:
            set_channels(network, channels, pretrained=original.encoder_weights is not None)
        network.origin = Origin((0.0,) * channels, (1.0,) * channels, network.origin.license)
    return network


def check_options(
    model: Model, constructor: Callable[..., Any] | None, reserved: dict[str, str]
) -> None:
    """Refuse ``model.options`` that ``constructor`` does not take, and options in ``reserved``
    (option -> reason).

    If ``constructor`` is None, every option that is not reserved is accepted.
    """
    parameters = inspect.signature(constructor).parameters if constructor else model.options
    accepted = [name for name in parameters if name not in ("kwargs", *reserved)]
    for key, value in model.options.items():
        if key in reserved:
            raise ConfigError(
                f"model.options.{key}={value!r} cannot be set here: {reserved[key]}",
                code="model-option-reserved",
                key=key,
            )
        if key not in accepted:
            near = closest(key, accepted, 0.4)
            hint = f"did you mean {near!r}? " if near else ""
            raise ConfigError(
                f"unknown model.options.{key}: {hint}{model.arch} has "
                f"{', '.join(accepted) or 'no options'}",
                code="unknown-model-option",
                key=key,
            )

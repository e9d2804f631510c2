"""Names of the known architectures and encoders, looked up without importing torch."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from segtrain.config.training import Model
from segtrain.errors import ConfigError, closest

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


def is_file_name(text: str | None) -> bool:
    """Whether ``model.encoder_weights`` names a file rather than a set of weights such as ``imagenet``."""
    return text is not None and ("/" in text or text.endswith((".safetensors", ".pth", ".pt", ".bin", ".ckpt")))


def refuse_arch(model: Model) -> None:
    """Raises ConfigError for an unknown architecture, with the closest known name."""
    if model.arch.lower() not in architectures():
        choice = f"choose from {', '.join(architectures())}"
        raise _unknown("arch", model.arch, model.arch.lower(), architectures(), choice)


def refuse_names(model: Model) -> None:
    """Raises ConfigError for an architecture, encoder, or weights that no installed library knows.

    Searches the source files of segmentation-models-pytorch and timm for the name, which is fast. A known name may
    still be wrong for this encoder. Building the network then raises the error.
    """
    refuse_arch(model)
    if model.arch.lower() not in SMP:
        return
    name, weights = model.encoder, model.encoder_weights
    if name.startswith("tu-"):
        # Each architecture of timm is a function.
        functions = re.findall(r"^def (\w+)\(", _source("timm", "models"), re.M)
        bare = name.removeprefix("tu-").partition(".")[0]
        if "resnet18" in functions and bare not in functions:
            raise _unknown("encoder", name, bare, functions, "timm.list_models() lists all names", prefix="tu-")
        return
    text = _source("segmentation_models_pytorch", "encoders")
    # Another release may write its names differently.
    if '"resnet18"' not in text or name.startswith("timm-"):
        return
    known = re.findall(r'^\s+"([\w.-]+)": ', text, re.M)
    if f'"{name}"' not in text:
        choice = "use an encoder of segmentation-models-pytorch, or tu-NAME for a model of timm"
        raise _unknown("encoder", name, name, known, choice)
    if weights is not None and not is_file_name(weights) and f'"{weights}"' not in text:
        choice = f"most encoders, as {name}, have imagenet; null trains from scratch"
        raise _unknown("encoder_weights", weights, weights, known, choice)


def _unknown(key: str, found: str, name: str, known: Iterable[str], choice: str, prefix: str = "") -> ConfigError:
    near = closest(name, known)
    hint = f"did you mean {prefix + near!r}? Or " if near else ""
    return ConfigError(
        f"unknown model.{key}={found!r}: {hint}{choice}",
        code=f"unknown-{key.replace('_', '-')}", key=f"model.{key}", found=found, suggestion=near and prefix + near,
    )  # fmt: skip


@lru_cache(maxsize=2)
def _source(package: str, folder: str) -> str:
    """The Python files in a folder of a package as one text, without importing it. Empty if it is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or not found.origin:
        return ""
    files = sorted((Path(found.origin).parent / folder).rglob("*.py"))
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)

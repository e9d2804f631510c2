"""Names of the known architectures and encoders, looked up without importing torch."""

from __future__ import annotations

import difflib
import importlib.util
import re
from functools import lru_cache
from pathlib import Path

from segtrain.config.training import Model
from segtrain.errors import ConfigError

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
    arch = model.arch.lower()
    if arch not in architectures():
        near = difflib.get_close_matches(arch, architectures(), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"unknown model.arch={model.arch!r}: {hint}Choose from {', '.join(architectures())}",
            code="unknown-arch", key="model.arch", found=model.arch, suggestion=near[0] if near else None,
        )  # fmt: skip


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
        known = _functions()
        bare = name.removeprefix("tu-").partition(".")[0]
        if "resnet18" in known and bare not in known:
            near = difflib.get_close_matches(bare, known, n=1, cutoff=0.6)
            hint = f"did you mean 'tu-{near[0]}'?" if near else "timm.list_models() lists all names"
            raise ConfigError(
                f"unknown model.encoder={name!r}: {hint}",
                code="unknown-encoder", key="model.encoder", found=name, suggestion=f"tu-{near[0]}" if near else None,
            )  # fmt: skip
        return
    text = _source("segmentation_models_pytorch", "encoders")
    # Another release may write its names differently.
    if '"resnet18"' not in text or name.startswith("timm-"):
        return
    if f'"{name}"' not in text:
        near = difflib.get_close_matches(name, re.findall(r'^\s+"([\w.-]+)": ', text, re.M), n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"unknown model.encoder={name!r}: {hint}Use an encoder of segmentation-models-pytorch, or tu-NAME for a "
            "model of timm",
            code="unknown-encoder", key="model.encoder", found=name, suggestion=near[0] if near else None,
        )  # fmt: skip
    if weights is not None and not is_file_name(weights) and f'"{weights}"' not in text:
        near = difflib.get_close_matches(weights, re.findall(r'^\s+"([\w.-]+)": ', text, re.M), n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else "most encoders have imagenet; null trains from scratch"
        raise ConfigError(
            f"unknown model.encoder_weights={weights!r} for {name}: {hint}",
            code="unknown-encoder-weights",
            key="model.encoder_weights",
            found=weights,
            suggestion=near[0] if near else None,
        )


@lru_cache(maxsize=2)
def _source(package: str, folder: str) -> str:
    """The Python files in a folder of a package as one text, without importing it. Empty if it is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or not found.origin:
        return ""
    files = sorted((Path(found.origin).parent / folder).rglob("*.py"))
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


@lru_cache(maxsize=1)
def _functions() -> frozenset[str]:
    """The functions of timm's models: each architecture is one."""
    return frozenset(re.findall(r"^def (\w+)\(", _source("timm", "models"), re.M))

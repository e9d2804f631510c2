"""Which networks and encoders there are, as far as can be told in milliseconds: no torch is imported for it."""

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
    """Raises ConfigError for an architecture that is not there, with the nearest one."""
    arch = model.arch.lower()
    if arch not in architectures():
        near = difflib.get_close_matches(arch, architectures(), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "see the list below."
        raise ConfigError(f"unknown model.arch={model.arch!r}: {hint} Known: {', '.join(architectures())}")


def refuse_names(model: Model) -> None:
    """Raises ConfigError for an architecture, encoder or weights whose name no library here can know.

    The source files of segmentation-models-pytorch and timm are searched for the name, which is quick. A name that is found may
    still be wrong for this encoder: that is told when the network is built.
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
            hint = f"did you mean 'tu-{near[0]}'?" if near else "timm.list_models() names all"
            raise ConfigError(f"unknown model.encoder={name!r}: {hint}")
        return
    text = _source("segmentation_models_pytorch", "encoders")
    if '"resnet18"' not in text or name.startswith("timm-"):  # another release, which writes its names in another way
        return
    if f'"{name}"' not in text:
        near = difflib.get_close_matches(name, re.findall(r'^\s+"([\w.-]+)": ', text, re.M), n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"unknown model.encoder={name!r}: {hint}It is an encoder of segmentation-models-pytorch, or tu-NAME for every NAME in timm"
        )
    if weights is not None and not is_file_name(weights) and f'"{weights}"' not in text:
        near = difflib.get_close_matches(weights, re.findall(r'^\s+"([\w.-]+)": ', text, re.M), n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else "most encoders have imagenet; null trains from scratch"
        raise ConfigError(f"unknown model.encoder_weights={weights!r} for {name}: {hint}")


@lru_cache(maxsize=2)
def _source(package: str, folder: str) -> str:
    """The Python files of a package's folder as one text; empty where it is not installed. Nothing is imported."""
    found = importlib.util.find_spec(package)
    if found is None or not found.origin:
        return ""
    files = sorted((Path(found.origin).parent / folder).rglob("*.py"))
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


@lru_cache(maxsize=1)
def _functions() -> frozenset[str]:
    """Of timm's models: each architecture is one."""
    return frozenset(re.findall(r"^def (\w+)\(", _source("timm", "models"), re.M))

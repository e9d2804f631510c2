"""Names of the known architectures and encoders, looked up without importing torch."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Union

from segtrain.config.section import LocalPath, ReadablePlace, Section, WritablePlace
from segtrain.config.training import Model
from segtrain.errors import ConfigError, closest

SMP = (
    "unet",
    "unetplusplus",
    "manet",
    "linknet",
    "fpn",
    "pspnet",
    "deeplabv3",
    "deeplabv3plus",
    "pan",
    "upernet",
    "segformer",
    "dpt",
)
TORCHVISION = (
    "fcn_resnet50",
    "fcn_resnet101",
    "deeplabv3_resnet50",
    "deeplabv3_resnet101",
    "deeplabv3_mobilenet_v3_large",
    "lraspp_mobilenet_v3_large",
)


def architectures() -> list[str]:
    """Every network that ``model.arch`` may name."""
    return ["pico", *SMP, *(f"torchvision/{name}" for name in TORCHVISION)]


def is_file_name(text: str | None) -> bool:
    """Whether ``model.encoder_weights`` names a file rather than a set of weights such as
    ``imagenet``.
    """
    return text is not None and (
        "/" in text or text.endswith((".safetensors", ".pth", ".pt", ".bin", ".ckpt"))
    )


def local_paths(section: Section, prefix: str = "") -> dict[str, str]:
    """Key and value of each setting that names a file or folder of this machine, such as
    ``model.init``.
    """
    paths = dict[str, str]()
    kinds = (LocalPath, Union[LocalPath, None], ReadablePlace, WritablePlace)
    for name, field in type(section).model_fields.items():
        value, kind = getattr(section, name), field.rebuild_annotation()
        if isinstance(value, Section):
            paths |= local_paths(value, f"{prefix}{name}.")
        elif not value or kind not in kinds or "://" in value:
            continue
        elif name != "encoder_weights" or is_file_name(value):
            paths[f"{prefix}{name}"] = value
    return paths


def refuse_arch(model: Model) -> None:
    """Raises ConfigError for an unknown architecture, with the closest known name."""
    if model.arch.lower() not in ("auto", *architectures()):
        raise unknown_name(
            "arch", model.arch, architectures(), f"choose from {', '.join(architectures())}"
        )


def refuse_names(model: Model) -> None:
    """Raises ConfigError for an architecture, encoder, or weights that no installed library knows.

    Searches the source files of segmentation-models-pytorch and timm, which is fast. Weights that
    only another encoder has are not refused here, but when the network is built.
    """
    refuse_arch(model)
    if model.arch.lower() not in SMP:
        return
    name, weights = model.encoder, model.encoder_weights
    if name.startswith("tu-"):
        # Each architecture of timm is a function.
        functions = _matches(r"^def (\w+)\(", "timm", "models")
        if "resnet18" in functions and name.removeprefix("tu-").partition(".")[0] not in functions:
            raise unknown_name(
                "encoder", name, functions, "timm.list_models() lists all names", "tu-"
            )
        return
    text = _source("segmentation_models_pytorch", "encoders")
    # Another release may write the names differently: then nothing is checked.
    if '"resnet18"' not in text or name.startswith("timm-"):
        return
    encoders = _matches(r'^\s+"([\w.-]+)": ', "segmentation_models_pytorch", "encoders")
    if f'"{name}"' not in text:
        fix = "use an encoder of segmentation-models-pytorch, or tu-NAME for a model of timm"
        raise unknown_name("encoder", name, encoders, fix)
    if weights is not None and not is_file_name(weights) and f'"{weights}"' not in text:
        raise unknown_name(
            "encoder_weights",
            weights,
            encoders,
            "most encoders have imagenet; null trains from scratch",
        )


def unknown_name(
    key: str, name: str, names: Iterable[str], fix: str, prefix: str = ""
) -> ConfigError:
    """The error for ``model.key=name``, with the closest of ``names``.

    ``prefix``: the start of ``name`` that ``names`` lack, such as ``tu-``.
    """
    near = closest(name.lower().removeprefix(prefix).partition(".")[0], names)
    near = near and prefix + near
    hint = f" (did you mean {near!r}?)" if near else ""
    text = f"unknown model.{key}={name!r}{hint}: {fix}"
    return ConfigError(text, code=f"unknown-{key.replace('_', '-')}", found=name, suggestion=near)


@lru_cache(maxsize=2)
def _matches(pattern: str, package: str, folder: str) -> dict[str, None]:
    """The names that ``pattern`` finds in the files of ``_source``, in their order."""
    return dict.fromkeys(re.findall(pattern, _source(package, folder), re.M))


@lru_cache(maxsize=2)
def _source(package: str, folder: str) -> str:
    """The Python files in a folder of a package as one text, without importing it. Empty if it is
    not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        return ""
    files = sorted((Path(spec.origin).parent / folder).rglob("*.py"))
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)

"""Weights from files of other trainings: read without running code in them, names brought to ours, encoders filled."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segtrain.config import is_file_name as is_file_name
from segtrain.errors import ConfigError
from segtrain.models.base import SegModel

# Under which a training script keeps its weights beside other things; the moving average first.
_INSIDE = ("ema", "model_ema", "state_dict_ema", "state_dict", "model_state_dict", "model", "net", "network", "weights")
# What wrappers put before the names: DataParallel, Lightning, torch.compile, timm's universal encoders in SMP, and parts.
_PREFIXES = ("module.", "model.", "_orig_mod.", "net.", "network.", "backbone.", "encoder.", "encoder.model.")
_WRAPPERS = ("module.", "_orig_mod.", "model.", "net.", "network.")
SHOWN = 3  # names in one error


def read_tensors(path: str | Path, key: str) -> dict[str, Tensor]:
    """The state dict in a file, on the CPU. Pickled code is refused, not run (``weights_only``).

    Args:
        path: a safetensors file, or one that ``torch.save`` wrote: a state dict, or a dict that holds one.
        key: the setting, for errors.

    Raises:
        ConfigError: no such file, damaged, of another kind, or without tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{key}={path}: there is no such file: check the path")
    if path.stat().st_size == 0:
        raise ConfigError(f"{key}={path}: the file is empty: copy it again")
    kind = _kind(path, key)
    try:
        if kind == "safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        if kind == "zip":  # torch itself does not look at the checksums in the archive
            with zipfile.ZipFile(path) as archive:
                if (damaged := archive.testzip()) is not None:
                    raise zipfile.BadZipFile(f"{damaged} has another checksum")
        with warnings.catch_warnings(), open(path, "rb") as file:  # of a path torch looks at the name as well
            warnings.simplefilter("ignore")
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # safetensors, zip and pickle each raise their own
        if kind != "safetensors" and ("weights_only" in str(error).lower() or "Unsupported global" in str(error)):
            raise ConfigError(
                f"{key}={path}: holds Python objects beside tensors, which are not loaded since that could run code: save its "
                "state_dict() alone"
            ) from None
        reason = " ".join(str(error).split())[:160]
        raise ConfigError(
            f"{key}={path}: cannot be read ({type(error).__name__}: {reason}): it is damaged: copy it again, or save a state_dict()"
        ) from None
    found = _tensors(content)
    if not found:
        raise ConfigError(f"{key}={path}: holds no tensors by name: save the state_dict() of a model")
    return found


def _kind(path: Path, key: str) -> str:
    """``safetensors``, ``zip`` (torch since 1.6) or ``pickle``, by the first bytes of a file, whatever its name says.

    Raises ConfigError for anything else.
    """
    with open(path, "rb") as file:
        head = file.read(9)
    if head[8:] == b"{":  # eight bytes of length, then JSON
        return "safetensors"
    if head.startswith(b"PK"):
        return "zip"
    if head.startswith(b"\x80"):
        return "pickle"
    raise ConfigError(
        f"{key}={path}: is neither safetensors nor a file that torch.save wrote (it begins with {head!r}): it is damaged, or something "
        "else came in its place (a web page, a Git LFS pointer): copy it again"
    )


def _tensors(content: Any) -> dict[str, Tensor]:
    """The state dict in what was loaded: itself, or under the usual keys; empty where there is none."""
    if not isinstance(content, Mapping):
        return {}
    own = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    inner = [_tensors(content[name]) for name in _INSIDE if isinstance(content.get(name), Mapping)]
    return next((found for found in inner if len(found) > len(own)), own)


def renamed(source: Mapping[str, Tensor], own: Iterable[str]) -> dict[str, Tensor]:
    """``source`` with one prefix taken off, or put before, all names: whichever makes most of them names of ``own``."""
    known = set(own)
    ways: list[Mapping[str, Tensor]] = [source]
    for prefix in _PREFIXES:
        ways.append({name.removeprefix(prefix): value for name, value in source.items() if name.startswith(prefix)})
        ways.append({prefix + name: value for name, value in source.items()})
    ways.append({_bare(name): value for name, value in source.items()})
    best = max(ways, key=lambda way: sum(name in known for name in way))  # the first of equals: as it is
    return dict(best)


def _bare(name: str) -> str:
    """A name without what wrappers around wrappers put before it: ``module._orig_mod.stem.weight`` is ``stem.weight``."""
    while (shorter := next((name[len(p) :] for p in _WRAPPERS if name.startswith(p)), name)) != name:
        name = shorter
    return name


def refuse_not_finite(tensors: Mapping[str, Tensor], key: str) -> None:
    """Raises ConfigError naming the first tensors that hold NaN or infinity: no training comes back from them."""
    odd = [
        name for name, value in tensors.items() if value.is_floating_point() and not bool(torch.isfinite(value).all())
    ]
    if odd:
        more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
        raise ConfigError(
            f"{key}: {', '.join(odd[:SHOWN])}{more} hold numbers that are not finite: take weights from before that training diverged"
        )


def misfit(own: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> list[str]:
    """Tensors that both have, of different shapes or kinds of numbers: one remark for each."""

    def shape(value: Tensor) -> str:
        return "x".join(map(str, value.shape)) or "a number"

    odd = []
    for name, value in own.items():
        if name in source:
            theirs = source[name]
            if theirs.shape != value.shape:
                odd.append(f"{name} is {shape(theirs)} instead of {shape(value)}")
            elif value.is_floating_point() and not theirs.is_floating_point():
                odd.append(
                    f"{name} holds {theirs.dtype} instead of {value.dtype} (integers, quantized or complex numbers)"
                )
            elif theirs.is_meta or theirs.layout != torch.strided:
                odd.append(f"{name} is {'without numbers (meta)' if theirs.is_meta else 'sparse'}")
    return odd


def load_encoder(network: SegModel, path: str) -> None:
    """Fill the encoder from a file: one of its own (timm's, torchvision's, SMP's), or of a whole network that has it.

    Everything that the encoder has must be in the file; what else is there (a classifier) is left.
    Raises ConfigError naming the first tensors that do not fit.
    """
    key = "model.encoder_weights"
    own = network.encoder_state()
    if not own:
        raise ConfigError(f"{key}={path}: {type(network).__name__} has no part that is an encoder: set it to null")
    source = renamed(read_tensors(path, key), own)
    odd = misfit(own, source) or [f"{name} is not in the file" for name in own if name not in source and _counts(name)]
    if odd:
        more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
        raise ConfigError(
            f"{key}={path} does not fit this encoder: {'; '.join(odd[:SHOWN])}{more}: take the file of this very encoder "
            "(model.encoder), or set model.init for a whole network"
        )
    taken = {name: source[name] for name in own if name in source}
    refuse_not_finite(taken, f"{key}={path}")
    fill(own, taken)


def _counts(name: str) -> bool:
    """Batch norm's count of batches is absent from old files, and decides nothing here."""
    return not name.endswith("num_batches_tracked")


@torch.no_grad()
def fill(own: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    """Copy tensors of equal names into ``own``, in place, whatever their dtype."""
    for name, value in source.items():
        own[name].copy_(value)

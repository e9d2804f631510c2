"""Loader of weights from other trainings: reads files without running their code, maps names, and fills encoders."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segtrain.errors import ConfigError
from segtrain.models.base import SegModel

# Keys under which training scripts keep the weights besides other things; the moving average first.
_INSIDE = ("ema", "model_ema", "state_dict_ema", "state_dict", "model_state_dict", "model", "net", "network", "weights")
# Prefixes that wrappers add to names: DataParallel, Lightning, torch.compile, timm's encoders in SMP, and parts.
_PREFIXES = ("module.", "model.", "_orig_mod.", "net.", "network.", "backbone.", "encoder.", "encoder.model.")
_WRAPPERS = ("module.", "_orig_mod.", "model.", "net.", "network.")
# Names in one error.
SHOWN = 3


def read_tensors(path: str | Path, key: str) -> dict[str, Tensor]:
    """The state dict in a file, on the CPU. Pickled code is refused, not run (``weights_only``).

    path: a safetensors file, or one that ``torch.save`` wrote: a state dict, or a dict that holds one. key: the
    setting, for errors. Raises ConfigError if the file is missing, damaged, of another kind, or without tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise _refused(key, path, "weights-missing", "there is no such file: check the path")
    if path.stat().st_size == 0:
        raise _refused(key, path, "weights-empty", "the file is empty: copy it again")
    kind = _kind(path, key)
    try:
        if kind == "safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        # torch itself does not verify the checksums in the archive.
        if kind == "zip":
            with zipfile.ZipFile(path) as archive:
                if (damaged := archive.testzip()) is not None:
                    raise zipfile.BadZipFile(f"{damaged} has another checksum")
        # Opened here, because torch would look at the name of a path as well.
        with warnings.catch_warnings(), open(path, "rb") as file:
            warnings.simplefilter("ignore")
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        # safetensors, zip, and pickle each raise their own errors.
        if kind != "safetensors" and ("weights_only" in str(error).lower() or "Unsupported global" in str(error)):
            problem = (
                "it holds Python objects besides tensors. They are not loaded, because that could run code: "
                "save only its state_dict()"
            )
            raise _refused(key, path, "weights-with-code", problem) from None
        reason = " ".join(str(error).split())[:160]
        problem = (
            f"cannot be read ({type(error).__name__}: {reason}): copy the damaged file again, or save a state_dict()"
        )
        raise _refused(key, path, "weights-damaged", problem) from None
    found = _tensors(content)
    if not found:
        raise _refused(
            key, path, "weights-without-tensors", "it holds no tensors by name: save the state_dict() of a model"
        )
    return found


def _refused(key: str, path: str | Path, code: str, problem: str, **values: Any) -> ConfigError:
    return ConfigError(f"{key}={path}: {problem}", code=code, file=str(path), **values)


def _kind(path: Path, key: str) -> str:
    """``safetensors``, ``zip`` (torch since 1.6), or ``pickle``, by the first bytes of a file, not by its name.

    Raises ConfigError for anything else.
    """
    with open(path, "rb") as file:
        head = file.read(9)
    # Eight bytes of length, then JSON.
    if head[8:] == b"{":
        return "safetensors"
    if head.startswith(b"PK"):
        return "zip"
    if head.startswith(b"\x80"):
        return "pickle"
    problem = (
        f"it is neither safetensors nor a file that torch.save wrote (it begins with {head!r}): it is damaged, or "
        "something else came in its place (a web page, a Git LFS pointer): copy it again"
    )
    raise _refused(key, path, "weights-format", problem, found=head.hex())


def _tensors(content: Any) -> dict[str, Tensor]:
    """The state dict in what was loaded: itself, or under a usual key; empty if there is none."""
    if not isinstance(content, Mapping):
        return {}
    own = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    inner = [_tensors(content[name]) for name in _INSIDE if isinstance(content.get(name), Mapping)]
    return next((found for found in inner if len(found) > len(own)), own)


def renamed(source: Mapping[str, Tensor], own: Iterable[str]) -> dict[str, Tensor]:
    """``source`` with a prefix removed from, or added to, all names, so that most of them are names of ``own``."""
    known = set(own)
    ways: list[Mapping[str, Tensor]] = [source]
    for prefix in _PREFIXES:
        ways.append({name.removeprefix(prefix): value for name, value in source.items() if name.startswith(prefix)})
        ways.append({prefix + name: value for name, value in source.items()})
    ways.append({_bare(name): value for name, value in source.items()})
    # Of equal ones the first, which changes nothing.
    best = max(ways, key=lambda way: sum(name in known for name in way))
    return dict(best)


def _bare(name: str) -> str:
    """A name without the prefixes of nested wrappers: ``module._orig_mod.stem.weight`` is ``stem.weight``."""
    while (shorter := next((name[len(p) :] for p in _WRAPPERS if name.startswith(p)), name)) != name:
        name = shorter
    return name


def _few(texts: list[str], separator: str = ", ") -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return separator.join(texts[:SHOWN]) + more


def refuse_not_finite(tensors: Mapping[str, Tensor], key: str) -> None:
    """Raises ConfigError naming the first tensors that hold NaN or infinity: no training comes back from them."""
    odd = [
        name for name, value in tensors.items() if value.is_floating_point() and not bool(torch.isfinite(value).all())
    ]
    if odd:
        raise ConfigError(
            f"{key}: {_few(odd)} hold values that are not finite: take weights from before that training diverged",
            code="weights-not-finite",
            found=odd,
        )


def misfit(own: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> list[str]:
    """One remark for each tensor that both have with different shapes or kinds of numbers."""

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

    The file must hold everything that the encoder has; other tensors (a classifier) are ignored.
    Raises ConfigError that names the first tensors that do not fit.
    """
    key = "model.encoder_weights"
    own = network.encoder_state()
    if not own:
        problem = f"{type(network).__name__} has no part that is an encoder: set it to null"
        raise _refused(key, path, "no-encoder", problem)
    source = renamed(read_tensors(path, key), own)
    # Old files lack the batch count of batch norm, which has no effect here.
    absent = [name for name in own if name not in source and not name.endswith("num_batches_tracked")]
    odd = misfit(own, source) or [f"{name} is not in the file" for name in absent]
    if odd:
        problem = (
            f"it does not fit this encoder: {_few(odd, '; ')}: take a file of this encoder (model.encoder), or set "
            "model.init for a whole network"
        )
        raise _refused(key, path, "weights-unfit", problem, found=odd)
    taken = {name: source[name] for name in own if name in source}
    refuse_not_finite(taken, f"{key}={path}")
    fill(own, taken)


@torch.no_grad()
def fill(own: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    """Copy tensors of equal names into ``own``, in place, whatever their dtype."""
    for name, value in source.items():
        own[name].copy_(value)

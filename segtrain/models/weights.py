"""Loader of weights from other trainings: reads files without running their code, maps names, and
fills encoders.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import warnings
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from segtrain.config import Origin
from segtrain.errors import ConfigError, one_line, some_of
from segtrain.models.base import SegModel
from segtrain.models.channels import set_channels

StateDict = Mapping[str, Tensor]
# Keys under which training scripts keep the weights; the moving average first.
_INSIDE = (
    "ema",
    "model_ema",
    "state_dict_ema",
    "state_dict",
    "teacher",
    "model_state_dict",
    "model",
    "net",
    "network",
    "weights",
)


def read_weights(path: str | Path, key: str) -> tuple[dict[str, Tensor], Origin | None]:
    """The state dict in a file, on the CPU. Pickled code is refused, not run (``weights_only``).

    Also returns the origin, if it is a file of a run or of an export.

    path: a safetensors file, or a file of ``torch.save`` with a state dict or with a dict that
    holds one.
    key: the setting that names the file, for error messages.
    Raises ConfigError if the file is missing, damaged, of another format, or without tensors.
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

            return dict(load_file(path)), _exported(path.with_name("model.json"))
        # torch itself does not verify the checksums in the archive.
        if kind == "zip":
            with zipfile.ZipFile(path) as archive:
                if (damaged := archive.testzip()) is not None:
                    raise zipfile.BadZipFile(f"{damaged} has another checksum")
        # torch.load gets an open file, because it would also interpret the name of a path.
        with warnings.catch_warnings(), open(path, "rb") as file:
            warnings.simplefilter("ignore")
            content = torch.load(file, map_location="cpu", weights_only=True)
        from_run = isinstance(content, dict) and "config_hash" in content
        origin = Origin.read(content.get("origin", {})) if from_run else None
    except Exception as error:
        # safetensors, zip, and pickle each raise their own errors.
        if kind != "safetensors" and (
            "weights_only" in str(error).lower() or "Unsupported global" in str(error)
        ):
            raise _refused(
                key,
                path,
                "weights-with-code",
                "the file holds Python objects, whose code could run when they load: save "
                "only the state_dict()",
            ) from None
        raise _refused(
            key,
            path,
            "weights-damaged",
            f"cannot be read ({type(error).__name__}: {one_line(error)[:160]}): copy "
            "the damaged file again, or save a state_dict()",
        ) from None
    if tensors := _tensors(content):
        return tensors, origin
    raise _refused(
        key,
        path,
        "weights-without-tensors",
        "the file has no tensors with names: save the state_dict() of a model",
    )


def _exported(description: Path) -> Origin | None:
    """The origin in a model.json; None if there is no such file."""
    try:
        return Origin.read(json.loads(description.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _refused(key: str, path: str | Path, code: str, problem: str) -> ConfigError:
    return ConfigError(f"{key}={path}: {problem}", code=code, file=str(path))


def _kind(path: Path, key: str) -> str:
    """``safetensors``, ``zip`` (torch since 1.6), or ``pickle``, by the first bytes of a file, not
    by its name.

    Raises ConfigError for anything else.
    """
    with open(path, "rb") as file:
        head = file.read(9)
    # A safetensors file begins with eight bytes for the length of its header, which is JSON.
    if head[8:] == b"{":
        return "safetensors"
    if head.startswith(b"PK"):
        return "zip"
    if head.startswith(b"\x80"):
        return "pickle"
    raise _refused(
        key,
        path,
        "weights-format",
        f"neither safetensors nor a file of torch.save begins with {head!r}: "
        "download it again, because it is damaged, a web page, or a Git LFS pointer",
    )


def _tensors(content: Any, levels: int = 4) -> dict[str, Tensor]:
    """The state dict in ``content``: at its top, or under a usual key; empty if there is none.

    ``levels``: of keys to look below, because a dictionary may hold itself.
    """
    if not levels or not isinstance(content, Mapping):
        return {}
    own = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    inner = [
        _tensors(content[name], levels - 1)
        for name in _INSIDE
        if isinstance(content.get(name), Mapping)
    ]
    return next((state for state in inner if len(state) > len(own)), own)


def renamed(source: StateDict, own: Iterable[str]) -> dict[str, Tensor]:
    """``source`` under the names of ``own``, if one change at the beginning of its names makes
    enough of them equal.

    Wrappers and complete networks add a prefix (module., encoder.). "." and "_" are the same,
    because the names of timm's features have ``stages_0`` for ``stages.0``. If a prefix is removed,
    tensors without it are left out.
    """
    flat = {name.replace(".", "_"): name for name in own}
    starts = defaultdict(list)
    for name in flat:
        for start, end in _divided(name):
            starts[end].append(start)
    # How many names become equal if the first prefix is replaced by the second one. On a tie, no
    # name is changed.
    counts = Counter(
        (cut, start) for name in source for cut, end in _divided(name) for start in starts[end]
    )
    cut, start = max(counts, key=lambda pair: (counts[pair], not any(pair)), default=("", ""))
    if 2 * counts[cut, start] < min(len(flat), len(source)):
        cut = start = ""
    return {
        flat.get(start + name.replace(".", "_")[len(cut) :], name): value
        for name, value in source.items()
        if name.replace(".", "_").startswith(cut)
    }


def _divided(name: str) -> list[tuple[str, str]]:
    """Beginnings and ends of a name, with "_" for "."; ends of a single word would be those of too
    many names.
    """
    name = name.replace(".", "_")
    return [
        (name[:at], name[at:])
        for at in range(len(name))
        if not at or (name[at - 1] == "_" and "_" in name[at:])
    ]


def refuse_not_finite(tensors: StateDict, key: str) -> None:
    """Raises ConfigError with the first tensors that hold NaN or infinity."""
    invalid = [
        name
        for name, value in tensors.items()
        if value.is_floating_point() and not value.isfinite().all()
    ]
    if invalid:
        raise ConfigError(
            f"{key}: {some_of(invalid, 3)} contain NaN or infinity: use weights from before the "
            "training diverged",
            code="weights-not-finite",
        )


def misfit(own: StateDict, source: StateDict) -> list[str]:
    """One remark for each tensor in both whose shape, number type, or layout does not fit."""

    def shape(value: Tensor) -> str:
        return "x".join(map(str, value.shape)) or "a number"

    remarks = []
    for name, value, theirs in (
        (name, value, source[name]) for name, value in own.items() if name in source
    ):
        if not isinstance(value, Tensor):  # from get_extra_state
            continue
        if not isinstance(theirs, Tensor):
            remarks.append(f"{name} is not a tensor")
        elif theirs.shape != value.shape:
            remarks.append(f"{name} is {shape(theirs)} instead of {shape(value)}")
        elif value.is_floating_point() and not theirs.is_floating_point():
            remarks.append(f"{name} is {theirs.dtype} instead of {value.dtype}")
        elif theirs.is_meta or theirs.layout != torch.strided:
            remarks.append(f"{name} is {'without numbers (meta)' if theirs.is_meta else 'sparse'}")
    return remarks


def load_encoder(network: SegModel, path: str, channels: int = 3, timm_name: str = "") -> bool:
    """Fill the encoder from a file of timm, torchvision, or SMP, or of a complete network with this
    encoder. If its first convolution takes ``channels`` bands, so does the network from then on;
    returns whether that is so.

    ``timm_name``: of an encoder of timm, for which timm converts files of its authors, and of
    another size of images or patches. The file must have every tensor that the network uses;
    others, such as a classifier's, are ignored, and a remark counts them. Raises ConfigError.
    """
    key = "model.encoder_weights"
    own = network.encoder_state()
    if not own:
        raise _refused(
            key, path, "no-encoder", f"{type(network).__name__} has no encoder: set it to null"
        )
    original, origin = read_weights(path, key)
    network.origin = origin or network.origin
    source = renamed(original, own)
    widened = channels != 3 and any(
        value.dim() == 4 and value.shape[1] == 3 and source[name].shape[1:2] == (channels,)
        for name, value in own.items()
        if name in source
    )
    if widened:
        set_channels(network, channels, how=f"those of {path}")
        own = network.encoder_state()
    source, remarks = _fitting(own, original)
    if remarks and timm_name:
        converted = _converted(network, timm_name, original)
        fitting, unfit = _fitting(own, converted)
        if not unfit:
            original, source, remarks = converted, fitting, []
    if remarks:
        raise _refused(
            key,
            path,
            "weights-unfit",
            f"does not fit this encoder: {some_of(remarks, 3, '; ')}: use a file of this encoder "
            "(model.encoder), or model.init for a complete network",
        )
    loaded = {name: source[name] for name in own if name in source}
    refuse_not_finite(loaded, f"{key}={path}")
    fill(own, loaded)
    values = set(map(id, loaded.values()))
    left = [name for name, value in original.items() if id(value) not in values]
    new = [name for name in own if name not in loaded]
    counts = (
        f"{len(names)} {what}" + (f" ({some_of(names, 3)})" if names else "")
        for names, what in ((left, "left out"), (new, "new"))
    )
    network.remarks += (f"{key}={path}: {len(loaded)} tensors taken, {', '.join(counts)}",)
    return widened


def _fitting(own: StateDict, source: StateDict) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of ``source`` under the names of ``own``, and one remark for each tensor that the
    network uses and that does not fit.
    """
    named = renamed(source, own)
    # What no output depends on is frozen (smp.freeze_unused), such as the classifier of a ViT. Old
    # files lack the batch count of batch norm, which has no effect here.
    used = {
        name: value
        for name, value in own.items()
        if value.requires_grad or not isinstance(value, nn.Parameter)
    }
    unused = {name: value for name, value in own.items() if name not in used}
    absent = [
        name for name in used if name not in named and not name.endswith("num_batches_tracked")
    ]
    for remark in misfit(unused, named):
        named.pop(remark.partition(" ")[0])
    return named, misfit(used, named) or [f"{name} is not in the file" for name in absent]


# names of modules that hold the encoder
_WRAPPERS = re.compile(r"^((module|_orig_mod|model|backbone|encoder|teacher|student)\.)+")


def _converted(network: SegModel, name: str, source: StateDict) -> dict[str, Tensor]:
    """``source`` as timm converts the files that it knows of a model; empty where it cannot."""
    import timm

    with torch.device("meta"):
        whole = timm.create_model(name)
    # its own sizes of images and patches, if the encoder is the whole model
    whole = next((part for part in network.modules() if type(part) is type(whole)), whole)
    convert: Any = getattr(sys.modules[type(whole).__module__], "checkpoint_filter_fn", dict)
    plain = {_WRAPPERS.sub("", key): value for key, value in source.items()}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return dict(convert(plain, whole))
    except (KeyError, RuntimeError, ValueError, TypeError, AttributeError, AssertionError):
        return {}


@torch.no_grad()
def fill(own: StateDict, source: StateDict) -> None:
    """Copy tensors of equal names into ``own``, in place, whatever their dtype."""
    for name, value in source.items():
        own[name].copy_(value)

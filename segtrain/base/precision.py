"""The arithmetic of train.precision: which one fits a device, its autocast dtype, and its switches
in torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from segtrain.errors import ConfigError

# Autocast dtype of the forward pass. With tf32, tensors stay float32; the GPU rounds factors of
# products to 10 bits.
AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: str, name: str) -> torch.autocast:
    """The context of a forward pass in ``name`` on a type of device, also inside another
    autocast.
    """
    dtype = AUTOCAST[name]
    return torch.autocast(device, dtype, enabled=dtype is not None)


AUTO = ("bf16", "fp16", "fp32")  # what train.precision=auto may choose, in this order


def fitting(device: torch.device, cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """The arithmetic that ``device`` has units for, the fastest first.

    bf16: GPUs of compute capability 8 and up, AMD GPUs that torch reports, and CPUs with bf16 units
    (AMX, AVX512_BF16, or Arm's BF16). fp16: GPUs of compute capability 7 and up. fp16 is not for
    CPUs.
    """
    if device.type != "cuda":
        return ("bf16", "fp32") if _has_bf16_units(cpuinfo) else ("fp32",)
    if torch.version.hip:
        return ("bf16", "fp16", "fp32") if torch.cuda.is_bf16_supported() else ("fp16", "fp32")
    major, _ = torch.cuda.get_device_capability(device)
    return (
        ("bf16", "fp16", "tf32", "fp32")
        if major >= 8
        else ("fp16", "fp32")
        if major == 7
        else ("fp32",)
    )


def meant(setting: str, device: torch.device) -> str:
    """The arithmetic that ``train.precision`` means for a prediction on a GPU: fp32 where its units
    are missing.
    """
    if setting in ("fp32", "bf16"):
        return setting
    fits = fitting(device)
    return next(name for name in (AUTO if setting == "auto" else (setting, "fp32")) if name in fits)


def _has_bf16_units(cpuinfo: Path) -> bool:
    with contextlib.suppress(OSError):
        for line in cpuinfo.read_text(errors="replace").splitlines():
            name, _, flags = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return not {"amx_bf16", "avx512_bf16", "bf16"}.isdisjoint(flags.split())
    return False


def refuse_unfit(name: str, device: torch.device) -> None:
    """Raise ConfigError if ``device`` cannot compute in ``name``. bf16 works everywhere, in places
    only slowly.
    """
    if name == "fp16" and device.type != "cuda":
        text = "train.precision=fp16 needs a GPU: use fp32 (or bf16 where the CPU has bf16 units)"
        raise ConfigError(text, code="precision-needs-gpu", key="train.precision")
    if name == "tf32" and name not in fitting(device):
        text = (
            "train.precision=tf32 needs an NVIDIA GPU of compute capability 8 or higher "
            "(Ampere): use auto or fp32"
        )
        raise ConfigError(text, code="precision-needs-gpu", key="train.precision")


def allow_tf32(allowed: bool) -> None:
    """Whether float32 products and convolutions may run on TF32 units.

    torch itself allows it for convolutions only, so its float32 is neither the one nor the other.
    """
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


@contextlib.contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """``allow_tf32`` while the context lasts."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    allow_tf32(allowed)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before

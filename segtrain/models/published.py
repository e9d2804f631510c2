"""Published weights of encoders: the normalization that they expect, and their license."""

from __future__ import annotations

import re
from typing import Any

from segtrain.config import IMAGENET_MEAN, IMAGENET_STD, SMP, Model, Origin, is_file_name

_HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_DPN = ((124 / 255, 117 / 255, 104 / 255), (1 / (0.0167 * 255),) * 3)
# What SMP's own encoders expect, by the beginning of their weights or name. From SMP 0.5 on, only
# the hub knows it.
_IMAGES = {"advprop|inception|xception": _HALF, "dpn": _DPN, "": (IMAGENET_MEAN, IMAGENET_STD)}
# Who trained them: Meta, NVIDIA, torchvision, and Google.
_LICENSES = {
    "ssl|swsl|instagram": "cc-by-nc-4.0",
    "mit_": "NVIDIA Source Code License (research only)",
    "resne[tx]|densenet|vgg|mobilenet_v2": "bsd-3-clause",
    "(timm-)?efficientnet": "apache-2.0",
    "": "unknown",
}


def fetch(encoder: str) -> str:
    """Download the weights of an encoder ``tu-NAME`` into the cache of the Hugging Face Hub, unless
    they are there. Returns why that fails, or "".
    """
    import timm
    from huggingface_hub import hf_hub_download

    weights: Any = timm.get_pretrained_cfg(encoder.removeprefix("tu-"))
    try:
        hf_hub_download(weights.hf_hub_id, "model.safetensors")
    except Exception as error:  # of huggingface_hub, httpx or requests, or the disk
        return " ".join(f"{type(error).__name__}: {error}".split())[:160]
    return ""


def published(model: Model) -> Origin:
    """The origin of ``model.encoder_weights``. A file is taken for the published weights of the
    encoder.

    Without weights, ImageNet's normalization.
    """
    arch = model.arch.lower()
    name = model.encoder
    weights = model.encoder_weights
    if weights is None or arch not in SMP:
        return Origin(license="bsd-3-clause" if weights and arch != "pico" else "")
    kind, _, timm_name = name.partition("-")
    if kind in ("tu", "timm"):
        import timm

        # SMP's names timm-NAME are older; some of them lack the tf_ of timm.
        for timm_id in [timm_name] if kind == "tu" else [f"tf_{timm_name}", timm_name]:
            if pretrained := timm.get_pretrained_cfg(timm_id):
                return Origin(pretrained.mean, pretrained.std, pretrained.license or "unknown")
    words = (name,) if is_file_name(weights) else (weights, name)

    def lookup(table: dict[str, Any]) -> Any:
        return next(
            value for start, value in table.items() if any(re.match(start, word) for word in words)
        )

    mean, std = lookup(_IMAGES)
    return Origin(mean, std, lookup(_LICENSES))

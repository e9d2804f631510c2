"""Published weights of encoders: the normalization that they expect, and their license."""

from __future__ import annotations

from typing import Any

from segtrain.config import IMAGENET_MEAN, IMAGENET_STD, SMP, Model, Origin, is_file_name

_HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
# What SMP's own encoders expect other than ImageNet's mean, by the beginning of their weights or name. From SMP 0.5 on,
# only the hub knows it.
_IMAGES = {
    "advprop": _HALF,
    "inception": _HALF,
    "xception": _HALF,
    "dpn": ((124 / 255, 117 / 255, 104 / 255), (1 / (0.0167 * 255),) * 3),
}
_BSD, _NONCOMMERCIAL = "bsd-3-clause", "cc-by-nc-4.0"
_LICENSES = {
    **dict.fromkeys(("ssl", "swsl", "instagram"), _NONCOMMERCIAL),
    "mit_": "NVIDIA Source Code License (research only)",
    # of torchvision
    **dict.fromkeys(("resnet", "resnext", "densenet", "vgg", "mobilenet_v2"), _BSD),
    **dict.fromkeys(("efficientnet", "timm-efficientnet"), "apache-2.0"),
}


def published(model: Model) -> Origin:
    """The origin of ``model.encoder_weights``. A file is taken for the published weights of the encoder.

    Without weights, ImageNet's normalization.
    """
    arch, name, weights = model.arch.lower(), model.encoder, model.encoder_weights
    if weights is None or arch not in SMP:
        return Origin(license=_BSD if weights and arch != "pico" else "")
    kind, _, timm_name = name.partition("-")
    if kind in ("tu", "timm"):
        import timm

        # SMP's names timm-NAME are older; some of them lack the tf_ of timm.
        for known in [timm_name] if kind == "tu" else [f"tf_{timm_name}", timm_name]:
            if found := timm.get_pretrained_cfg(known):
                return Origin(found.mean, found.std, found.license or "unknown")
    words = (name,) if is_file_name(weights) else (weights, name)

    def of(table: dict[str, Any], default: Any) -> Any:
        return next((value for start, value in table.items() for word in words if word.startswith(start)), default)

    mean, std = of(_IMAGES, (IMAGENET_MEAN, IMAGENET_STD))
    return Origin(mean, std, of(_LICENSES, "unknown"))

"""The network that ``model.arch=auto`` means, with the recipe published for it, as settings."""

from __future__ import annotations

from typing import Any

from segtrain.config.optim import AdamWOptim
from segtrain.config.run import Config
from segtrain.config.section import Section

# ConvNeXts (Liu et al. 2022) with weights from ImageNet-22k, by the least memory of a GPU in GB.
# Meta licenses these weights as MIT, and timm its copies as Apache-2.0.
ENCODERS = {
    70: "tu-convnext_large.fb_in22k",
    20: "tu-convnext_base.fb_in22k",
    0: "tu-convnext_tiny.fb_in22k",
}


def pretrained(config: Config, gpu_gb: float) -> Config:
    """The config with UPerNet on the ConvNeXt for GPUs of ``gpu_gb`` GB. What the user has set
    stays.

    The recipe is the one in facebookresearch/ConvNeXt for UPerNet, with a warm-up of 5 % in place
    of 1,500 steps. For another batch than its 16 images, the learning rate changes as in Malladi
    et al. 2022.
    """
    model: dict[str, Any] = {
        "encoder": next(name for least, name in ENCODERS.items() if gpu_gb >= least),
        "encoder_weights": "imagenet",
        "freeze": "auto",
    }
    if "encoder" not in config.model.model_fields_set:  # other encoders have other options
        model["options"] = {"decoder_channels": 512, "drop_path_rate": 0.4}
    lr = float(f"{1e-4 * (config.train.batch_size / 16) ** 0.5:.2g}")
    optim = {"lr": lr, "layer_decay": 0.9, "weight_decay": 0.05, "warmup": "5%"}
    return _changed(
        named(config, "upernet"),
        model=model,
        optim=optim if type(config.optim) is AdamWOptim else {},
        train={"precision": "auto"},
        parallel={"sync_bn": True},
    )


def named(config: Config, arch: str) -> Config:
    """The config with this ``model.arch``."""
    return config.model_copy(update={"model": config.model.model_copy(update={"arch": arch})})


def _changed(config: Config, **sections: dict[str, Any]) -> Config:
    """The config with settings replaced that the user has not set."""

    def section(name: str, values: dict[str, Any]) -> Section:
        own: Section = getattr(config, name)
        unset = {key: value for key, value in values.items() if key not in own.model_fields_set}
        return own.model_copy(update=unset)

    return config.model_copy(
        update={name: section(name, values) for name, values in sections.items()}
    )

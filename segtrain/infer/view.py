"""Settings of a prediction, and windows for images that do not fit into the free memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from segtrain.base.memory import memory_free
from segtrain.config import Config, keys_with, make_config
from segtrain.config.load import parse_overrides
from segtrain.errors import ConfigError
from segtrain.evaluation.tiles import Forward, Size, View, scaled
from segtrain.models.base import channels_of
from segtrain.observe.journal import Say

SHARE = 0.7  # share of the free memory that an image in one piece may take
TILE_SHARE = 0.3  # share that a window may take
PROBE = 256  # side of the image on which memory is estimated
PROGRESS_S = 10.0  # between two progress lines about the windows of one image


def with_settings(config: Config, overrides: Iterable[str]) -> Config:
    """``config`` with overrides ``section.key=value``. Raises ConfigError for keys that predict
    does not take.
    """
    changes = parse_overrides(list(overrides))
    settings = config.model_dump(mode="json")
    for section, values in changes.items():
        for key, value in values.items() if isinstance(values, dict) else [("", values)]:
            if f"{section}.{key}" not in keys_with("predict"):
                name = f"{section}.{key}".rstrip(".")
                accepted = ", ".join(sorted(keys_with("predict")))
                raise ConfigError(
                    f"predict takes {accepted}, not {name}: give it to segtrain train or segtrain "
                    "eval",
                    code="setting-not-for-predict",
                    key=name,
                )
            settings[section][key] = value
    return make_config(settings, "the command line", saved=True) if changes else config


@torch.inference_mode()
def bytes_per_pixel(model: nn.Module, device: torch.device) -> float:
    """Approximate memory of a forward pass for each pixel of its input.

    The estimate is four times the inputs and outputs of the largest layer, plus the logits at full
    size. That is 1.1 to 1.5 times the measured need of U-Net, FPN, DeepLabV3+, SegFormer, and pico.
    Attention over all pixels needs more than this estimate.
    """
    most = 0

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal most
        most = max(most, _bytes(inputs) + _bytes(output))

    layers = [module for module in model.modules() if not any(True for _ in module.children())]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        logits = model(torch.zeros(1, channels_of(model), PROBE, PROBE, device=device))
    finally:
        for hook in hooks:
            hook.remove()
    return (4 * most + _bytes(logits)) / PROBE**2


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return 0
    return sum(map(_bytes, value))


def free_memory(device: torch.device) -> float:
    """Bytes that are free for a prediction on ``device``, including unused memory in torch's
    caching allocator.
    """
    if device.type != "cuda":
        return memory_free()
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + unused)


def fitted(
    view: View, size: Size, per_pixel: float, free: float, least: Size, stride: int
) -> tuple[View, str]:
    """``view``, with windows if an image of ``size`` does not fit into ``free`` bytes; and a
    remark, or "".

    least: the smallest window, which is the training crop. stride: window sides are rounded down to
    a multiple of it.
    """
    height, width = scaled(size, max(view.scales))
    need = height * width * per_pixel
    if view.tile is not None or need <= SHARE * free:
        return view, ""
    side = int(math.sqrt(TILE_SHARE * free / per_pixel)) // stride * stride
    tile = (min(max(side, least[0]), height), min(max(side, least[1]), width))
    why = (
        f"{height} x {width} pixels need about {need / 1e9:.1f} GB, and {free / 1e9:.1f} GB "
        "are free"
    )
    done = (
        f"predicted in windows of {tile[0]} x {tile[1]}, whose seams may show; set eval.tile "
        "to choose"
    )
    return replace(view, tile=tile), f"{why}: {done}"


def counted(
    forward: Forward,
    windows: int,
    say: Say,
    now: Callable[[], float] = time.monotonic,
) -> Forward:
    """Wrap ``forward`` so that it reports every PROGRESS_S seconds how many of the ``windows`` of
    an image are done.
    """
    done, last = 0, now()

    def call(images: Tensor) -> Tensor:
        nonlocal done, last
        output = forward(images)
        done += 1
        moment = now()
        if moment - last >= PROGRESS_S and done < windows:
            last = moment
            say(f"  {done} of {windows} windows")
        return output

    return call

"""Shrinks the user's config to runs that are short enough for `segtrain prove`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from segtrain.base.terminal import counted
from segtrain.config import Config, make_config
from segtrain.data.audit.audit import audit
from segtrain.data.datasets import open_dataset
from segtrain.errors import ConfigError
from segtrain.models import build_model
from segtrain.observe.trackers import SETTINGS
from segtrain.parallel.cluster import Cluster

IMAGES = 5  # per split; not a multiple of 2, 3, or 4 ranks, nor of the batch size
STEPS = 12
BATCH = 4
PIXELS = 96 * 128  # in a crop and in an evaluated image; more would not prove more


@dataclass(frozen=True)
class Survey:
    """Results of the audit of the whole data set, as plain values."""

    name: str
    images: dict[str, int]  # split -> images
    faults: tuple[str, ...]
    warnings: tuple[str, ...]
    pixels: tuple[int, ...]  # per class, training split
    size: tuple[int, int]  # of the first validation image


def survey(cluster: Cluster, config: Config, device: str) -> Survey:
    """Open and audit both splits as training does, and build the model once. Raises SegtrainError
    if this fails.
    """
    if device == "cuda" and not torch.cuda.is_available():
        fix = (
            "check the driver (nvidia-smi) and the build of torch, or prove on the CPU, "
            "without --device"
        )
        raise ConfigError(
            f"--device=cuda, but torch {torch.__version__} sees no GPU: {fix}", code="no-gpu"
        )
    splits = list(dict.fromkeys((config.data.train_split, config.data.split)))
    datasets = [open_dataset(config.data, split) for split in splits]
    build_model(
        config.model.model_copy(update={"encoder_weights": None}),
        datasets[0].labels.num_classes,
        config.data.channels,
    ).origin.changed(config.data)  # refuses bands without mean and std
    reports = [*map(audit, datasets)]
    faults = tuple(message for report in reports for _, message in report.faults)
    return Survey(
        datasets[0].name,
        {dataset.split: len(dataset) for dataset in datasets},
        faults,
        tuple(text for report in reports for text in report.warnings),
        tuple(int(n) for n in reports[0].pixels),
        (0, 0) if faults else datasets[-1].size(0),
    )


def changed(config: Config, **settings: Any) -> Config:
    """``config`` with the ``settings`` (``section__key=value``) replaced, validated again."""
    content = config.model_dump(mode="json")
    for name, value in settings.items():
        section, _, key = name.partition("__")
        if key:
            content[section][key] = value
        else:
            content[section] = value
    return make_config(content, "segtrain prove")


def shortened(
    config: Config, weights: list[float] | None, gpus: int = 0, most: int = 1
) -> tuple[Config, list[str]]:
    """The config of the proofs, and one line for each difference from the user's config.

    ``weights``: class weights of the whole data set, used if the config asks for automatic ones.
    ``gpus``: number of GPUs to prove on; 0: on the CPU. ``most``: the largest number of ranks.
    """
    data, train, parallel = config.data, config.train, config.parallel
    crop = _fewer_pixels(data.crop)
    settings: dict[str, Any] = {
        "data__limit": min(IMAGES, data.limit or IMAGES),
        "data__crop": crop,
        "data__workers": 1,
        "data__helpers": "none",
        "model__encoder_weights": None,
        "optim__warmup": f"{STEPS // 4 * (config.optim.warmup[0] != '0')}st",
        "optim__encoder_start": f"{STEPS // 4 * config.optim.starts_encoder_late}st",
        "train__duration": f"{STEPS}st",
        "train__batch_size": BATCH,
        "train__accumulate": 1,
        "train__precision": train.precision if gpus else "fp32",
        "train__device": "cuda" if gpus else "cpu",
        "train__deterministic": train.deterministic or gpus > 0,
        "train__compile": False,
        "parallel__strategy": "auto",
        "parallel__backend": "gloo" if 0 < gpus < most else "auto",
        "parallel__procs": 1,
        "parallel__threads": 1,
        "parallel__compress": "none",
        "parallel__exact": 0,
        "parallel__timeout_s": 120.0,
        "eval__every": f"{STEPS}st",
        "eval__batch_size": min(2, config.eval.batch_size),
        "checkpoint__every": "3st",
        "checkpoint__resume": True,
        "log__every": 1,
        "log__digest": True,
        # No proof may write to the user's server: each tracker has the value that turns it off,
        # false or "".
        **{f"log__{name}": type(getattr(config.log, name))() for name in SETTINGS},
        "log__pictures": 0,
        # If the ranks differed, the sentinel would end the run before the proof can compare it.
        "log__sentinel": 0,
    }
    if config.loss.class_weights == "auto":
        settings["loss__class_weights"] = weights
    limit, weights_file, strategy = (
        settings["data__limit"],
        config.model.encoder_weights,
        parallel.strategy,
    )
    remarks = {
        f"{limit} images per split, batches of {BATCH}, runs of {STEPS} steps": True,
        "fp32 on the CPU": not gpus,
        f"train.precision={train.precision} on the GPU": gpus,
        "train.deterministic=true, which exact resume needs on a GPU": gpus
        and not train.deterministic,
        "guarantees 4 and 5 on the CPU, because the GPU has no part in them": gpus,
        (
            f"up to {most} ranks on {counted(gpus, 'GPU')} over gloo, because NCCL takes one "
            "rank per GPU"
        ): 0 < gpus < most,
        f"crops of {crop[0]}x{crop[1]} (the config: {data.crop[0]}x{data.crop[1]})": crop
        != data.crop,
        f"random weights (the config: {weights_file})": weights_file,
        f"strategy ddp (the config: {strategy})": strategy in ("dp", "fsdp", "smddp"),
        (
            f"gradients uncompressed (the config: {parallel.compress}, which rounds them)"
        ): parallel.compress != "none",
        f"fp32 (the config: {train.precision})": train.precision != "fp32" and not gpus,
    }
    return changed(config, **settings), [text for text, applies in remarks.items() if applies]


def _fewer_pixels(size: tuple[int, int]) -> tuple[int, int]:
    """``size`` shrunk to about PIXELS pixels, with the same aspect ratio and sides that are
    multiples of 16.
    """
    factor = math.sqrt(PIXELS / (size[0] * size[1]))
    if factor >= 1:
        return size
    return max(32, round(size[0] * factor / 16) * 16), max(32, round(size[1] * factor / 16) * 16)


def smaller_images(config: Config, size: tuple[int, int]) -> Config:
    """``config`` with evaluation scales and windows so small that an image of ``size`` has about
    PIXELS pixels.
    """
    factor = math.sqrt(PIXELS / max(1, size[0] * size[1]))
    if factor >= 1:
        return config
    tile = config.eval.tile
    return changed(
        config,
        eval__scales=[max(0.01, factor * scale) for scale in config.eval.scales],
        eval__tile=None if tile is None else [max(32, int(side * factor)) for side in tile],
    )

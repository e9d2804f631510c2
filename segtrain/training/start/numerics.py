"""How a run computes: its arithmetic, deterministic or fast kernels, and the memory layout of
images.
"""

from __future__ import annotations

import os

import torch

from segtrain.base.precision import AUTO, allow_tf32, fitting, refuse_unfit
from segtrain.config import Config
from segtrain.parallel.strategy import Strategy


def set_numerics(config: Config, strategy: Strategy) -> str:
    """Choose kernels; returns the arithmetic of ``train.precision``. A collective with auto.

    Raises ConfigError for a precision that the device lacks.
    """
    precision = chosen_precision(config.train.precision, strategy)
    allow_tf32(precision == "tf32")
    if config.train.deterministic or config.parallel.exact:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    # Not by trials of all of cuDNN's kernels. They took a minute and most of the GPU's memory,
    # which benchmark_limit does not bound: torch builds every kernel, and reserves the largest
    # workspace, before it counts the trials.
    torch.backends.cudnn.benchmark = False
    return precision


def chosen_precision(setting: str, strategy: Strategy) -> str:
    """The arithmetic that ``train.precision`` means on these devices, the same on every rank. A
    collective with auto.

    Raises ConfigError for one that this rank's device lacks.
    """
    if setting != "auto":
        refuse_unfit(setting, strategy.device)
        return setting
    fits = fitting(strategy.device)
    row = torch.tensor([name in fits for name in AUTO], dtype=torch.int64, device=strategy.device)
    counts = strategy.reduce(row).tolist()
    return next(name for name, count in zip(AUTO, counts) if count == strategy.world_size)


def wants_channels_last(setting: bool | str, device: torch.device) -> bool:
    """Whether to use channels_last. auto: on GPUs and on CPUs with AVX512, where it is faster (not
    so with AVX2).
    """
    if setting != "auto":
        return bool(setting)
    if device.type == "cpu":
        return "AVX512" in torch.backends.cpu.get_cpu_capability()
    return device.type == "cuda"

"""The inputs of an exam's entry: numbers, sizes, and words, checked and completed."""

from __future__ import annotations

import re
from dataclasses import replace
from math import isfinite, prod
from typing import Any

from bench.exam.job import Job
from bench.exam.names import KINDS, Network, links_named, network_named
from segtrain.errors import closest
from segtrain.insight.plan.device import ModelCost, precision_named
from segtrain.machines import Gpu, gpus
from segtrain.machines.gpu_names import gpu_named

# Samples of a step on one GPU where none is said; in 16 bits twice as many.
BATCHES = {
    "conv": 64,
    "depthwise": 64,
    "dense": 8,
    "transformer": 64,
    "sequence": 32,
    "volume": 2,
    "table": 65536,
}
MOST = 1e6  # GPUs, hosts, and millions of parameters


class Unusable(Exception):
    """Why an entry cannot be predicted: the field, and what to write."""


def number(
    inputs: dict[str, Any], key: str, least: float = 0.0, most: float = 1e15
) -> float | None:
    """A positive number, also as text; None if it is missing. Raises Unusable for anything else."""
    value = inputs.get(key)
    if value is None or value in ("", "-"):
        return None
    try:
        found = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError, OverflowError):
        found = float("nan")
    if not isfinite(found) or found < least or found > most or (found == 0 and least == 0):
        raise Unusable(f"{key}={str(value)[:40]}: not a positive number up to {most:g}")
    return found


def text(inputs: dict[str, Any], key: str) -> str:
    value = inputs.get(key)
    if value is not None and not isinstance(value, (str, int, float)):
        raise Unusable(f"{key}: not a text")
    return "" if value is None else str(value)


def whole(inputs: dict[str, Any], key: str, usual: int, least: int = 1) -> int:
    """A whole number of at most a million."""
    if inputs.get(key) == 0 and not isinstance(inputs.get(key), bool) and least == 0:
        return 0
    found = number(inputs, key, most=MOST)
    if found is not None and found != int(found):
        raise Unusable(f"{key}={found:g}: not a whole number")
    return usual if found is None else int(found)


def size_of(value: Any) -> float | None:
    """The side of a square of as many pixels: of 224, [800, 1333], or "512x1024". The length, for
    one number.
    """
    if isinstance(value, str):
        value = [float(part) for part in re.findall(r"\d+(?:\.\d+)?", value)]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = [value]
    if value is None or value == []:
        return None
    if not isinstance(value, list) or len(value) > 3:
        raise Unusable(f"image_size={str(value)[:40]}: neither a number nor [height, width]")
    sides = [number({"image_size": side}, "image_size", most=1e6) or 0 for side in value]
    if not all(sides):
        raise Unusable(f"image_size={str(value)[:40]}: a side is missing")
    return float(prod(sides) ** (1 / len(sides)))


def schedule_of(inputs: dict[str, Any], size: float) -> list[tuple[float, float]]:
    """Pairs of (epochs, size); empty if the entry says neither a schedule nor a number of
    epochs.
    """
    plan = inputs.get("schedule")
    if plan is None:
        epochs = number(inputs, "epochs")
        return [] if epochs is None else [(epochs, size)]
    if not isinstance(plan, list):
        raise Unusable("schedule: not a list of [epochs, size]")
    found = []
    for pair in plan:
        if not isinstance(pair, list) or not pair or len(pair) > 2:
            raise Unusable(f"schedule: {str(pair)[:40]} is not [epochs, size]")
        epochs = number({"schedule": pair[0]}, "schedule")
        if epochs is None:
            raise Unusable("schedule: a number of epochs is missing")
        found.append((epochs, (size_of(pair[1]) if len(pair) > 1 else None) or size))
    return found


def job_of(inputs: dict[str, Any]) -> Job:
    """The job of an entry. What is missing is taken from known networks, or from what is usual for
    the kind.

    Raises Unusable if a field is malformed, or if no rate follows from what is there.
    """
    model = text(inputs, "model")
    known = network_named(model)
    count = whole(inputs, "gpus_per_host", 1, least=0)
    gpu = gpu_named(text(inputs, "gpu"))
    near_by = inputs.get("given")
    measured = isinstance(near_by, dict) and any(
        re.match(r"(rate|minutes|hours|seconds)_\d", key) for key in near_by
    )
    if gpu is None and count and measured and inputs.get("gpu"):
        gpu = gpus()["V100"]  # the neighbor's rate tells its speed
    if gpu is None and count:
        name = text(inputs, "gpu")
        near = closest(name, gpus(), 0.3) or "V100"
        raise Unusable(
            f"gpu={name[:40] or 'missing'}: not in the table of GPUs: write a name such as {near}"
        )
    hosts, workers = whole(inputs, "hosts", 1), number(inputs, "workers_per_host", most=MOST)
    if gpu and gpu.arch == "tpu":
        gpu = _slice_of(text(inputs, "gpu"), gpu, count * hosts)
    if not count and workers is None and inputs.get("given"):
        workers = 1.0  # a host as one worker: its measured rate tells the rest
    year = whole(inputs, "year", 2021)
    size = size_of(inputs.get("image_size")) or known.size or 0.0
    precision = precision_named(text(inputs, "precision"), gpu, year) if gpu else ("fp32", 1e12, 4)
    inside, between = links_named(text(inputs, "interconnect"), gpu or gpus()["V100"], year)
    framework = text(inputs, "framework")
    return Job(
        work=_work(inputs, known, size, measured or not count),
        size=size,
        batch=number(inputs, "batch_per_gpu", most=1e9) or BATCHES[known.kind] * 4 / precision[2],
        gpu=gpu if count else None,
        precision=precision,
        gpus=count,
        hosts=hosts,
        inside=inside,
        between=between,
        framework=framework,
        year=year,
        workers=workers,
        gradient=2.0 if precision[2] == 2 and not re.search("torch", framework.lower()) else 4.0,
        images=known.kind in ("conv", "depthwise")
        and size <= 320
        and "synthetic" not in framework.lower(),
    )


def _slice_of(name: str, chip: Gpu, count: int) -> Gpu:
    """What one of ``count`` accelerators is, where a name such as "TPU v3-8" says a number of
    cores, two on a chip.
    """
    cores = re.search(r"v\d-(\d+)", name.lower())
    part = int(cores[1]) / 2 / count if cores and count else 1.0
    return replace(chip, bf16=(chip.bf16 or 0) * part, memory_gbs=chip.memory_gbs * part)


def _work(inputs: dict[str, Any], known: Network, size: float, corrected: bool) -> ModelCost:
    """Costs of a sample from the entry, else of the known network at this size, else from each
    other.

    ``corrected``: a neighbor or no GPU, so that only ratios of costs count.
    """
    kind, scale = known.kind, 1.0
    if size and known.size:
        scale = (
            size / known.size
            if kind == "transformer" and size <= 2048 and known.size == 128
            else (size / known.size) ** 2
        )
    params = number(inputs, "params_M", most=MOST)
    flops = number(inputs, "flops_G_per_image_forward", most=1e9)
    activations = number(inputs, "activations_M_per_image", most=1e9)
    params = known.params if params is None else 1e6 * params
    flops = (known.flops or 0) * scale or None if flops is None else 1e9 * flops
    activations = (
        (known.activations or 0) * scale or None if activations is None else 1e6 * activations
    )
    if flops is None and kind == "sequence" and params and size:
        flops = 2 * params * size
    if flops is None and activations is not None:
        flops = activations * KINDS[kind][0]
    if params is None:
        params = 25e6  # as ResNet-50
    if flops is None and not corrected:
        raise Unusable(
            "flops_G_per_image_forward: missing, and the model is not in the table of networks"
        )
    if flops is None:
        flops = params * (20 if kind == "table" else 320)  # 320: of ResNet-50
    return ModelCost(kind, params, flops, activations or flops / KINDS[kind][0], known.layers)

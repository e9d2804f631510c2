"""Ways to send less over a slow link: their step on a device that sleeps, its prediction, and their hooks for training.

Times are of one forward and backward pass of a batch, so that ways that exchange gradients less often compare.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import mean
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Size, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.nn.parallel import DistributedDataParallel

from segtrain.plan.model import BACKWARD, buckets_of, exposed_gloo, gloo_ring

# Name -> (MB of a bucket, batches between two exchanges, what is sent).
WAYS: dict[str, tuple[float, int, str]] = {
    "buckets of 25 MB": (25, 1, "gradients"),
    "buckets of 1 MB": (1, 1, "gradients"),
    "buckets of 5 MB": (5, 1, "gradients"),
    "one bucket": (1000, 1, "gradients"),
    "fp16": (25, 1, "fp16"),
    "bf16": (25, 1, "bf16"),
    "powersgd": (1000, 1, "powersgd"),
    "accumulation of 4": (25, 4, "gradients"),
    "local SGD, averaged every 4 steps": (25, 4, "weights"),
}
RANK = 2  # of PowerSGD's matrices, as in segtrain/parallel/model.py
# DDP rebuilds its buckets after the first step, and PowerSGD begins with the third.
WARM, REPEATS = 3, 2


def compress(model: DistributedDataParallel, kind: str, group: Any = None, begin: int = 2) -> None:
    """Register torch's hook of a kind. ``begin``: the first step that PowerSGD compresses."""
    if kind == "fp16":
        model.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif kind == "bf16":
        model.register_comm_hook(group, default_hooks.bf16_compress_hook)
    elif kind == "powersgd":
        state = powerSGD_hook.PowerSGDState(group, RANK, begin)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)  # type: ignore[arg-type]


def seconds(network: nn.Module, way: str, group: Any = None) -> float:
    """Mean seconds of a forward and backward pass, with all that the way does between ``group``'s ranks."""
    bucket_mb, every, kind = WAYS[way]
    x, model = torch.zeros(1, requires_grad=True), cast(Any, network)
    if kind != "weights":
        model = DistributedDataParallel(
            network, bucket_cap_mb=None if bucket_mb == 25 else bucket_mb, gradient_as_bucket_view=True,  # type: ignore[arg-type]
            process_group=group,
        )  # fmt: skip
        compress(model, kind, group)
    times = []
    for _ in range(WARM + REPEATS):
        begin = time.perf_counter()
        for k in range(every):
            if kind != "weights" and k < every - 1:
                with model.no_sync():
                    model(x).sum().backward()
            else:
                model(x).sum().backward()
        if kind == "weights":
            average_parameters(network.parameters(), group or dist.group.WORLD)
        times.append((time.perf_counter() - begin) / every)
        dist.barrier(group)
    return mean(times[WARM:])


def gradients(shapes: list[Size]) -> list[tuple[float, float]]:
    """(bytes, share of the backward pass after which it is ready) of each, for the layers of rank.py."""
    made, layers, found = 0, sum(len(shape) > 1 for shape in shapes), []
    for shape in reversed(shapes):
        made += len(shape) > 1
        found.append((4.0 * shape.numel(), made / layers))
    return found


def predicted(run: dict[str, Any], shapes: list[Size]) -> float:
    """Seconds of a forward and backward pass. ``run``: a setting, and what its ranks measured without the network."""
    bucket_mb, every, kind = WAYS[run["way"]]
    rate, latency, hosts = run["gbit"] * 1e9 / 8, run["latency_ms"] / 1e3 + run["message"], run["hosts"]
    numbers = [float(shape.numel()) for shape in shapes]
    if kind == "weights":
        return run["work"] + gloo_ring(4 * sum(numbers), hosts, rate, latency) / every
    if kind == "powersgd":
        low = [(shape[0], shape.numel() // shape[0]) if len(shape) > 1 else (0, 0) for shape in shapes]
        small = [2 * RANK * (n + m) < n * m for n, m in low]
        sent = (
            sum(size for size, is_small in zip(numbers, small) if not is_small),
            sum(n * min(RANK, n, m) for (n, m), is_small in zip(low, small) if is_small),
            sum(m * min(RANK, n, m) for (n, m), is_small in zip(low, small) if is_small),
        )
        return run["work"] + sum(gloo_ring(4.0 * size, hosts, rate, latency) for size in sent)
    sizes, ready = zip(*buckets_of(gradients(shapes), bucket_mb * 2**20))
    share = 1.0 if kind == "gradients" else 0.5
    backward = BACKWARD * run["device"]
    return run["work"] + exposed_gloo(backward, [share * size for size in sizes], ready, hosts, rate, latency) / every


def local_steps(model: nn.Module, own: Any, every: int) -> Callable[..., None]:
    """Local SGD for training: a hook that leaves gradients on their rank, and what averages the weights after a step.

    ``own``: a process group of this rank alone.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    assert isinstance(model, DistributedDataParallel)
    model.register_comm_hook(own, allreduce_hook)
    average = PeriodicModelAverager(every, every - 1)  # after each last step of ``every``
    own_weights = {id(parameter) for parameter in model.parameters()}

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if id(optimizer.param_groups[0]["params"][0]) in own_weights:  # and not segtrain's probe of an optimizer
            average.average_parameters(model.module.parameters())

    return after

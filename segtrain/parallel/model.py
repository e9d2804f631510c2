"""Wrapping of a network for a strategy, and its full state, which is gathered from the ranks and
sharded again.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from segtrain.base.compat import BatchNorm
from segtrain.config import Parallel
from segtrain.errors import ConfigError
from segtrain.parallel import syncbn

# torch 2.11 renamed DistributedDataParallel's broadcast_buffers, and warns about the old name.
_DDP_ARGS = inspect.signature(nn.parallel.DistributedDataParallel).parameters
_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _DDP_ARGS else "broadcast_buffers"


def wrap(
    model: nn.Module,
    name: str,
    settings: Parallel,
    device: torch.device,
    world_size: int,
    compiled: Callable[[nn.Module], nn.Module],
) -> nn.Module:
    """See ``Strategy.wrap``."""
    if settings.sync_bn and world_size > 1:
        _refuse_subclasses(model)
        torchs = device.type == "cuda" and name != "smddp"
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model) if torchs else syncbn.convert(model)
    model = model.to(device)
    if name == "dp":
        return compiled(nn.DataParallel(model))
    if name == "fsdp":
        return compiled(_fully_shard(model, device, world_size))
    model = compiled(model)
    if name not in ("ddp", "smddp"):
        return model
    wrapped = nn.parallel.DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=_bucket_cap(settings.bucket_mb),  # type: ignore[arg-type]
        gradient_as_bucket_view=settings.bucket_view,
        static_graph=settings.static_graph,
        **{_BUFFERS: settings.broadcast_buffers},  # type: ignore[arg-type]
    )
    _compress(wrapped, settings.compress)
    return wrapped


def _bucket_cap(bucket_mb: float) -> float | None:
    """torch's own limit where it is the same: only with that one, newer torch makes the first
    bucket small, so that the first gradients are sent early.
    """
    default = _DDP_ARGS["bucket_cap_mb"].default
    return default if bucket_mb == 25 else bucket_mb


def _refuse_subclasses(model: nn.Module) -> None:
    """Refuse a subclass of BatchNorm, which may do more than normalize (timm's also applies an
    activation).
    """
    plain = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    subclasses = sorted(
        {
            type(m).__name__
            for m in model.modules()
            if isinstance(m, BatchNorm) and type(m) not in plain
        }
    )
    if subclasses:
        raise ConfigError(
            f"parallel.sync_bn=true, but this network's {', '.join(subclasses)} cannot be "
            "synchronized: set it to false, or choose a model.encoder with plain batch norm",
            code="batch-norm-not-synchronized",
            found=subclasses,
        )


def _compress(model: nn.parallel.DistributedDataParallel, kind: str) -> None:
    if kind == "none":
        return
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if kind == "powersgd":
        model.register_comm_hook(
            powerSGD_hook.PowerSGDState(None, 2, 100), powerSGD_hook.powerSGD_hook
        )  # type: ignore[arg-type]
    else:
        model.register_comm_hook(None, getattr(default_hooks, f"{kind}_compress_hook"))


def _fully_shard(model: nn.Module, device: torch.device, world_size: int) -> nn.Module:
    """Shard the encoder and the rest of the model as two units of FSDP2.

    FSDP2 gathers the parameters of a unit when its module is called, and these two modules are
    called in each step.
    """
    # By version: a failed import would leave some of torch's operators registered, and a second one
    # would fail on them.
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        from torch.distributed._composable.fsdp import fully_shard
    else:
        from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, (world_size,))
    encoder = next(
        (child for name, child in model.named_modules() if name.rpartition(".")[2] == "encoder"),
        None,
    )
    if encoder is not None:
        fully_shard(encoder, mesh=mesh)
    fully_shard(model, mesh=mesh)  # in place
    return model


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DataParallel, DistributedDataParallel or torch.compile."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def full_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, take: Callable[[Any], Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Unsharded model and optimizer state on the CPU, under the names of the unwrapped model, for
    every strategy.

    A collective under fsdp: every rank must call it. The optimizer's state is keyed by parameter
    name, so that it fits any world size. ``take``: makes the copy of a tensor, as ``whole_cpu``
    does. What may change between updates (all but parameters and optimizer state) is cloned before,
    so ``take`` may copy it later.
    """
    plain = unwrapped(model)
    names = {parameter: name for name, parameter in plain.named_parameters()}
    weights = taken(plain.state_dict(), set(names.values()), take)
    moments = {
        names[p]: {k: take(v) for k, v in optimizer.state[p].items()}
        for group in optimizer.param_groups
        for p in group["params"]
        if p in optimizer.state
    }
    return weights, moments


def load_full_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    weights: dict[str, Any],
    moments: dict[str, Any],
) -> None:
    """Load what ``full_state`` returned; each rank takes its own shard."""
    plain = unwrapped(model)
    load_state(plain, weights)
    group_of = {p: group for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in plain.named_parameters():
        if name in moments and parameter in group_of:
            group = group_of[parameter]
            on_device = bool(group.get("fused") or group.get("capturable"))
            optimizer.state[parameter] = {
                key: placed_as(parameter, key, value, on_device)
                for key, value in moments[name].items()
            }


def unsaved(module: nn.Module) -> dict[str, Tensor]:
    """Buffers that the module's state dict does not have (persistent=False)."""
    state = module.state_dict()
    return {name: value for name, value in module.named_buffers() if name not in state}


def load_state(module: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load a whole state dict, and what else ``saved`` has of ``unsaved``."""
    state = module.state_dict()
    for name, value in state.items():  # in place, to keep the versions of the modules
        state[name] = share(saved[name], value) if isinstance(value, Tensor) else saved[name]
    module.load_state_dict(state)
    for name, value in unsaved(module).items():
        if name in saved:
            # of any shape, as a cache may have
            value.data = saved[name].to(value.device, copy=True)


def placed_as(parameter: Tensor, key: str, value: Any, on_device: bool) -> Any:
    """One entry of a parameter's optimizer state, placed as the optimizer itself would have created
    it.

    A moment gets the device, dtype, and memory layout of its parameter, because fused kernels treat
    both as flat memory. ``step`` goes to the parameter's device only for a fused or capturable
    optimizer (``on_device``), as in torch.
    """
    if not isinstance(value, Tensor):
        return value
    if key == "step":
        return value.to(parameter.device, torch.float32, copy=True) if on_device else value.clone()
    if value.shape != parameter.shape:
        return value.to(parameter.device, copy=True)
    return torch.empty_like(parameter.detach()).copy_(share(value, parameter))


def taken(
    values: Mapping[str, Any], parameters: set[str], take: Callable[[Any], Any]
) -> dict[str, Any]:
    """``take`` of each value; of a copy, unless the name is one of ``parameters``."""

    def copied(value: Any) -> Any:
        return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)

    return {
        name: take(value if name in parameters else copied(value)) for name, value in values.items()
    }


def gathered(value: Any) -> Any:
    """A sharded tensor is gathered, by a collective; other values are unchanged."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def whole_cpu(value: Any) -> Any:
    """A copy of a tensor on the CPU (a sharded tensor is gathered, by a collective); other values
    unchanged.
    """
    whole = gathered(value)
    return whole.detach().to("cpu", copy=True) if isinstance(whole, Tensor) else whole


def share(value: Tensor, like: Tensor) -> Tensor:
    """``value`` on the device of ``like``, and sharded in the same way if ``like`` is a DTensor."""
    value = value.to(like.device)
    if hasattr(like, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value, like.device_mesh, like.placements)  # type: ignore[attr-defined]
    return value

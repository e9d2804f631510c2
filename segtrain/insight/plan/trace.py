"""What happens in a pass: FLOPs and bytes of its operators, live and kept bytes, and autocast for
the meta device.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# What autocast runs in half precision on CUDA, and what in float32 (torch's page "Automatic Mixed
# Precision").
_HALF = {
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose2d",
    "linear",
    "matmul",
    "__matmul__",
    "bmm",
    "mm",
    "addmm",
    "baddbmm",
    "scaled_dot_product_attention",
}
_FULL = {"softmax", "log_softmax", "layer_norm", "group_norm", "norm"}


@dataclass(frozen=True)
class Layer:
    """One operator of a pass. ``moved``: bytes that it reads and writes; ``made``: numbers that it
    writes.
    """

    flops: float
    moved: float
    made: float
    backward: bool

    def times(self, factor: float) -> Layer:
        return Layer(factor * self.flops, factor * self.moved, factor * self.made, self.backward)


@dataclass
class Tally(TorchDispatchMode):
    """Counts each operator's FLOPs and bytes, and the bytes of tensors that are alive."""

    existing: set[int] = field(default_factory=set)  # storages that exist before the pass
    rows: list[Layer] = field(default_factory=list)
    gradients: list[tuple[float, float]] = field(default_factory=list)
    alive: dict[int, int] = field(default_factory=dict)
    live: int = 0
    peak: int = 0
    saved: float = 0.0
    backward: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        outputs = list(_tensors(out))
        for tensor in outputs:
            self._born(tensor)
        flops = _flops(func.overloadpacket, args, kwargs or {}, out)
        if not func.is_view and outputs:
            moved = sum(t.numel() * t.element_size() for t in (*_tensors(args), *outputs))
            made = float(sum(t.numel() for t in outputs))
            self.rows.append(Layer(flops, float(moved), made, self.backward))
        return out

    def _born(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.alive or key in self.existing:
            return
        self.alive[key] = storage.nbytes()
        self.live += self.alive[key]
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.live -= self.alive.pop(key, 0)


class Autocast(TorchFunctionMode):
    """torch.autocast as on CUDA, for tensors of the meta device, which it does not serve."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.weights: dict[int, Tensor] = {}  # each is cast once in a step

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _HALF:
            args = self._cast(args, self.dtype)
            kwargs = self._cast(kwargs or {}, self.dtype)
        elif name in _FULL:
            args = self._cast(args, torch.float32)
            kwargs = self._cast(kwargs or {}, torch.float32)
        return func(*args, **(kwargs or {}))

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, dict):
            return {key: self._cast(each, dtype) for key, each in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(self._cast(each, dtype) for each in value)
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if not value.is_leaf or not value.requires_grad:
            return value.to(dtype)
        return self.weights.setdefault(id(value), value.to(dtype))


@contextmanager
def saved_bytes(existing: set[int]) -> Iterator[dict[int, int]]:
    """Address -> bytes of each storage that autograd keeps for the backward pass, except the
    ``existing`` ones.
    """
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in existing:
            sizes[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes


def _flops(operator: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> float:
    """FLOPs of an operator by torch's counter; 0 for one that it does not count."""
    from torch.utils.flop_counter import flop_registry

    aten = torch.ops.aten
    if operator == aten.convolution_backward:
        # Torch counts the gradient of the weights as that of a convolution without groups. Each
        # gradient costs as much as the forward pass, whatever the number of groups.
        gradient, images, weights, _, stride, padding, dilation, transposed, *_, wanted = args
        forward = (images, weights, None, stride, padding, dilation, transposed)
        return float(sum(wanted[:2]) * flop_registry[aten.convolution](*forward, out_val=gradient))
    count = flop_registry.get(operator)
    return float(count(*args, **kwargs, out_val=out)) if count else 0.0


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values if isinstance(values, (tuple, list)) else (values,):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)

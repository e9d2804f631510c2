"""The same bits on any number of ranks (parallel.exact).

A batch is cut into a fixed number of slices, of which each rank holds equally many. What mixes
images (convolutions, products, sums) runs on one slice after the other, so its kernels see the same
shapes on any number of ranks. Layer by layer, because batch norm needs all slices of a layer. Each
sum over slices is a balanced binary tree, inside a rank and between ranks: a + b = b + a in IEEE
arithmetic, so its bits do not depend on where a slice is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

# Names of functions of images alone whose kernels may mix them. Those that also take parameters
# need no list.
PRODUCTS = {"matmul", "bmm", "baddbmm", "mm", "einsum", "linear", "scaled_dot_product_attention"}
PRODUCTS |= {f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)}
# Functions of each number that torch computes in vectors, and in another way for the numbers that
# are left at the end.
IN_VECTORS = {"sigmoid", "silu", "glu", "mish", "tanh", "gelu", "softplus", "elu", "celu", "selu"}
IN_VECTORS |= {"exp", "exp2", "log1p", "pow", "rpow", "rsqrt", "logaddexp", "atan2"}
LANES = 64  # multiple of the numbers in a vector
ATTENTION = "multi_head_attention_forward"  # whose second dimension holds the images
NOISE = {"rand", "randn", "empty"}
RANDOM = NOISE | {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "bernoulli"}
RANDOM |= {"feature_alpha_dropout", "rrelu", "rand_like", "randn_like", "normal", "uniform"}
RANDOM |= {"gumbel_softmax", "scaled_dot_product_attention", ATTENTION}
SMALL = 1 << 14  # numbers that each rank sends to all others, in one message


def tree(parts: Sequence[Any] | Tensor) -> Any:
    """The sum of ``parts`` (a power of two of them, tensors or rows), by pairs of neighbors."""
    if isinstance(parts, Tensor):
        while len(parts) > 1:
            parts = parts[0::2] + parts[1::2]
        return parts[0]
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[0::2], parts[1::2])]
    return parts[0]


def aligned(images: Tensor, count: int) -> Sequence[Tensor]:
    """``images``, (n, ...), in slices that begin where new tensors may: products of a CPU and of a
    GPU have other bits at other addresses. Copies, if their sizes do not fit.
    """
    images = _with_first_stride(images)
    split = images.split(len(images) // count)
    start = 256 if images.is_cuda else 64
    step = images.stride(0) * len(split[0]) * images.element_size()
    return [part.clone() for part in split] if images.data_ptr() % start or step % start else split


def _with_first_stride(images: Tensor) -> Tensor:
    """Of a single image, a view may have any first stride, from which kernels guess its layout:
    ``images`` with the stride that several would have.
    """
    numbers, strides = images.numel(), images.stride()
    if not strides or len(images) != 1 or min(strides) == 0 or strides[0] >= numbers:
        return images
    return images.new_empty_strided(images.shape, (numbers, *strides[1:])).copy_(images)


def seed_generators(seed: int) -> None:
    """As ``torch.manual_seed``, which before the first use of a GPU takes a stack trace in each
    call, also on a CPU.
    """
    torch.default_generator.manual_seed(seed)
    # While a CUDA graph is captured, its generators cannot be seeded; ``graphs.py`` seeds them
    # before each replay.
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        for generator in torch.cuda.default_generators:
            generator.manual_seed(seed)


def sum_over_ranks(value: Tensor, group: Any = None) -> Tensor:
    """Sum of ``value`` over a power of two of ranks, as a balanced binary tree; a new tensor.

    Sends as many bytes as a ring: each rank sums its share of the numbers.
    """
    world = dist.get_world_size(group)
    if world == 1:
        return value
    flat = value.contiguous().view(-1)
    if len(flat) <= SMALL:
        rows = flat.new_empty(world * len(flat))
        dist.all_gather_into_tensor(rows, flat, group=group)
        return tree(rows.view(world, -1)).view_as(value)
    padded = F.pad(flat, (0, -len(flat) % world))
    rows = torch.empty_like(padded)
    dist.all_to_all_single(rows, padded, group=group)
    dist.all_gather_into_tensor(padded, tree(rows.view(world, -1)), group=group)
    return padded[: len(flat)].view_as(value)


class Slices(TorchFunctionMode):
    """Within this context, ``count`` slices of images pass through a network layer by layer.

    first: number of the first slice among those of all ranks. ranks: how many there are. total: the
    sum over ranks, in a new tensor.
    """

    def __init__(
        self,
        count: int,
        first: int = 0,
        ranks: int = 1,
        total: Callable[[Tensor], Tensor] = lambda value: value,
    ) -> None:
        super().__init__()
        self.count = count
        self.first = first
        self.ranks = ranks
        self.total = total
        self._images = 0
        self._seed = 0
        self._draws = 0
        # tensor and its copies, by id
        self._copies: dict[int, tuple[Tensor, tuple[Tensor, ...]]] = {}

    def of(self, images: Tensor) -> Slices:
        """The context for a forward pass of ``images``, (n, ...)."""
        self._copies.clear()
        self._images = len(images)
        self._seed, self._draws = torch.initial_seed(), 0
        images.of_images = True  # type: ignore[attr-defined]
        return self

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").strip("_")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        batched = [tensor for tensor in tensors if hasattr(tensor, "of_images")]
        if not batched:
            return self._for_each_image(func, name, args, func(*args, **kwargs))
        if func is F.batch_norm and _trains(*args, **kwargs):
            result = self._batch_norm(*args, **kwargs)
        elif self._alone(name, tensors, batched):
            result = self._by_slice(func, name, args, kwargs)
        else:
            result = func(*args, **kwargs)
        return tree_map(
            lambda leaf: _tagged(_with_first_stride(leaf)) if isinstance(leaf, Tensor) else leaf,
            result,
        )

    def _alone(self, name: str, tensors: list[Tensor], batched: list[Tensor]) -> bool:
        """Whether each slice is computed alone."""
        if name in IN_VECTORS and batched[0].numel() // self.count % LANES:
            return True
        parameters = any(
            (tensor.requires_grad or isinstance(tensor, torch.nn.Parameter))
            and not hasattr(tensor, "of_images")
            for tensor in tensors
        )
        return parameters or name in PRODUCTS or name in RANDOM

    def _by_slice(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        dim = int(name == ATTENTION)
        # A split costs less, but nothing can be written into its parts.
        asked = kwargs.get("inplace") or (args and args[-1] is True)
        may_write = asked or getattr(func, "__name__", "").endswith("_")

        def parts(leaf: Any) -> Sequence[Any]:
            if not isinstance(leaf, Tensor):
                return [leaf] * self.count
            if not hasattr(leaf, "of_images"):
                return self._copied(leaf)
            size, rest = divmod(leaf.shape[dim] if leaf.dim() > dim else 0, self.count)
            if rest or not size:
                raise RuntimeError(
                    f"{name} takes {tuple(leaf.shape)}, whose dimension {dim} does not hold the "
                    "images"
                )
            if may_write:
                return [leaf.narrow(dim, i * size, size) for i in range(self.count)]
            # in memory, too, images are the first dimension, so strides do not tell their number
            return [each.transpose(0, dim) for each in aligned(leaf.transpose(0, dim), self.count)]

        leaves, form = tree_flatten((args, kwargs))
        results = []
        for i, slice_leaves in enumerate(zip(*map(parts, leaves))):
            if name in RANDOM:
                number = (self.first + i) * 1009 + self._draws
                seed_generators((self._seed * 1_000_003 + number) % 2**63)
            own_args, own_kwargs = form.unflatten(slice_leaves)
            results.append(func(*own_args, **own_kwargs))
            in_place = bool(own_args) and results[-1] is own_args[0]
        self._draws += name in RANDOM
        if in_place:
            return args[0]
        if dim:
            outputs, weights = zip(*results)
            joined = _joined([output.transpose(0, 1) for output in outputs])
            return joined.transpose(0, 1), _joined(weights)
        return tree_map(lambda *each: _joined(each), *results)

    def _for_each_image(self, func: Any, name: str, args: Any, whole: Any) -> Any:
        """``whole``, the result of a function that takes no images: slice by slice, if it repeats
        a parameter, as a class token, for each image, or draws noise for each.
        """
        if not isinstance(whole, Tensor) or whole.dim() < 2 or len(whole) != self._images:
            return whole
        size = self._images // self.count
        if name in NOISE:
            own = {"dtype": whole.dtype, "device": whole.device}
            like = _tagged(whole)
            drawn = self._by_slice(lambda part: func(part.shape, **own), name, (like,), {})
            return _tagged(drawn)
        if name not in ("expand", "repeat") or not args[0].requires_grad:
            return whole
        if args[0].dim() == whole.dim() and len(args[0]) > 1:
            return whole
        _, *others = args[1] if isinstance(args[1], Sequence) else args[1:]
        return _tagged(_joined([func(copy, size, *others) for copy in self._copied(args[0])]))

    def _copied(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """A view for each slice, whose gradients are summed as a tree. The same views for each use
        of a tensor, because the gradients of several uses are summed by slice first.
        """
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return (tensor,) * self.count
        if id(tensor) not in self._copies:
            base = tensor if tensor._base is None else tensor._base
            # What is computed from parameters has its gradient summed over ranks here: its own
            # backward pass would round. Each rank takes an equal share, because DDP will sum them.
            across = None if base.is_leaf else self
            self._copies[id(tensor)] = tensor, _Copies.apply(tensor, self.count, across)
        return self._copies[id(tensor)][1]

    def _batch_norm(
        self,
        images: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        affine = [] if weight is None or bias is None else [weight, bias]
        copies = [copy for tensor in affine for copy in self._copied(tensor)]
        normal, mean, variance, number = _BatchNorm.apply(self, images, eps, *copies)
        if running_mean is not None and running_var is not None:
            unbiased = variance * (number / max(1, number - 1))
            with torch.no_grad():
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        return normal

    def sums(self, parts: list[Tensor]) -> Tensor:
        """The sum of a number of each slice, over all slices of all ranks, in float64."""
        return self.total(tree([part.double() for part in parts]))


def _trains(
    images: Tensor,
    mean: Tensor | None = None,
    variance: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    *_: Any,
    **__: Any,
) -> bool:
    return training and hasattr(images, "of_images")


def _tagged(value: Tensor) -> Tensor:
    value.of_images = True  # type: ignore[attr-defined]
    return value


def _joined(results: Sequence[Any]) -> Any:
    return _Joined.apply(*results) if isinstance(results[0], Tensor) else results[0]


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> Tensor:  # type: ignore[override]
        ctx.count = len(parts)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(aligned(slope, ctx.count))


class _Copies(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, tensor: Tensor, count: int, across: Slices | None
    ) -> tuple[Tensor, ...]:
        ctx.across, ctx.stride = across, tensor.stride()
        return tuple(tensor.view_as(tensor) for _ in range(count))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gradient = tree(gradients)
        if ctx.across is not None:
            gradient = ctx.across.total(gradient) / ctx.across.ranks
        if gradient.stride() != ctx.stride:  # DDP's buckets have the layout of the parameters
            laid_out = gradient.new_empty_strided(gradient.shape, ctx.stride)
            gradient = laid_out.copy_(gradient)
        return gradient, None, None


class _BatchNorm(torch.autograd.Function):
    """Batch norm over the slices of all ranks, with sums in float32 (float64 of float64) in a
    slice.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, slices: Slices, images: Tensor, eps: float, *affine: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        wide = images if images.dtype == torch.float64 else images.float()
        ctx.over = over = (0, *range(2, images.dim()))
        ctx.shape = shape = (1, -1, *[1] * (images.dim() - 2))
        ctx.number = number = images.numel() // images.shape[1] * slices.ranks
        mean = slices.sums([part.sum(over) for part in wide.chunk(slices.count)]) / number
        # In the layout of the images: of a single one of 1 x 1, torch would take another.
        like = torch.empty_like(wide)
        centered = torch.sub(wide, mean.to(wide.dtype).view(shape), out=like)
        # Two passes: E[x^2] - E[x]^2 would lose digits where the mean is large.
        squares = [part.square().sum(over) for part in centered.chunk(slices.count)]
        variance = slices.sums(squares) / number
        scale = inverse = torch.rsqrt(variance + eps).to(wide.dtype)
        if affine:
            scale = inverse * affine[0]
        normal = torch.mul(centered, scale.view(shape), out=torch.empty_like(wide))
        if affine:
            normal.add_(affine[-1].view(shape))
        ctx.slices, ctx.affine = slices, bool(affine)
        ctx.save_for_backward(centered, inverse, scale)
        ctx.mark_non_differentiable(mean, variance)
        return normal.to(images.dtype), mean, variance, number

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: Any) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        centered, inverse, scale = ctx.saved_tensors
        count, shape = ctx.slices.count, ctx.shape
        wide = slope.to(centered.dtype)
        parts = list(zip(wide.chunk(count), centered.chunk(count)))
        sums = [part.sum(ctx.over) for part, _ in parts]
        products = [(part * other).sum(ctx.over) for part, other in parts]
        means = ctx.slices.sums([torch.stack(each) for each in zip(sums, products)]) / ctx.number
        mean, product = means.to(wide.dtype)
        gradient = torch.sub(wide, mean.view(shape), out=torch.empty_like(wide))
        gradient.sub_(centered * (product * inverse.square()).view(shape))
        gradient.mul_(scale.view(shape))
        affine = [*(each * inverse for each in products), *sums] if ctx.affine else []
        return None, gradient.to(slope.dtype), None, *affine


class BucketSums:
    """Sums the gradients of DDP's buckets as a tree, while the backward pass goes on.

    On a CPU in a thread with a process group of its own, so that batch norm's sums can overtake it.
    On a GPU on a stream of its own.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
        else:
            self._group = dist.new_group()
            self._thread = ThreadPoolExecutor(1, "gradients")

    def __call__(self, buffer: Tensor) -> torch.futures.Future[Tensor]:
        on_gpu = self._device.type == "cuda"
        future: torch.futures.Future[Tensor] = torch.futures.Future(
            devices=[self._device] if on_gpu else []
        )
        if not on_gpu:
            # of a copy, because DDP may free the buffer while the thread still refers to it
            self._thread.submit(self._sum, buffer.clone(), future)
            return future
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            future.set_result(buffer.copy_(sum_over_ranks(buffer)))
        return future

    def _sum(self, gradients: Tensor, future: torch.futures.Future[Tensor]) -> None:
        try:
            future.set_result(sum_over_ranks(gradients, self._group))
        except RuntimeError as error:  # of a lost rank: DDP raises it in the backward pass
            future.set_exception(error)  # type: ignore[arg-type]

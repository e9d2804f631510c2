"""Refusal of networks that cannot have the same bits on any number of ranks (parallel.exact)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from segtrain.errors import ConfigError, reason_of
from segtrain.models.base import SegModel
from segtrain.parallel.collective import digest
from segtrain.parallel.exact import Slices, seed_generators
from segtrain.training.step import restored_buffers


def refuse_mixing(model: SegModel, images: Tensor) -> None:
    """Raise ConfigError that names the first layer, in training mode, that gives two slices
    together other bits than each alone.

    images: (2 n, bands, H, W): two slices. Changes no state but that of the random number
    generators.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):  # whose kernels sum in an order of their own
            raise _refusal(f"{name} (SyncBatchNorm) gives other numbers", name)
    exact = model.exact
    try:
        together = _Pass(model, images, None)
        halves = [_Pass(model, images, half, together.totals) for half in (0, 1)]
    finally:
        model.exact = exact
    for (name, digests), *others in zip(together.outputs, *(half.outputs for half in halves)):
        if digests != [value for _, (value,) in others]:
            raise _refusal(f"{name} gives other numbers", name)
    for half in halves:
        for name, value in half.buffers.items():
            if value != together.buffers[name]:
                raise _refusal(f"the buffer {name} gets other numbers", name)
    for total, *parts in zip(together.totals, *(half.totals for half in halves)):
        if not torch.equal(total, parts[0] + parts[1]):
            name = "batch norm, or a tensor that the network computes from its parameters,"
            raise _refusal(f"{name} has other sums", name)
    for name, gradient in together.gradients.items():
        parts = [half.gradients[name] for half in halves]
        if gradient is not None and not torch.equal(gradient, parts[0] + parts[1]):  # type: ignore[operator]
            raise _refusal(f"{name} has another gradient", name)


class _Pass:
    """Forward and backward pass of two slices together, or of one ``half`` of ``images``.

    outputs: of each layer in the order of its end, its name and a digest for each slice. gradients:
    of each parameter. buffers: digests of their values afterwards. totals: sums of batch norm, and
    gradients of what is computed from parameters; for a half, those of both slices are ``known``,
    as if two ranks had summed them.
    """

    def __init__(
        self, model: SegModel, images: Tensor, half: int | None, known: Sequence[Tensor] = ()
    ) -> None:
        self.outputs: list[tuple[str, list[int]]] = []
        self.totals: list[Tensor] = []
        whole = half is None
        count = 2 if whole else 1
        sums = iter(known)

        def total(value: Tensor) -> Tensor:
            self.totals.append(value)
            return value if whole else next(sums, value)

        model.exact = Slices(count, half or 0, 3 - count, total)
        own = slice(0, 2) if half is None else slice(half, half + 1)
        seed_generators(0)
        began: list[str] = []
        handles = []
        for name, module in model.named_modules():
            text = f"{name or 'the network'} ({type(module).__name__})"
            handles.append(module.register_forward_pre_hook(lambda *_, n=text: began.append(n)))
            handles.append(
                module.register_forward_hook(lambda *a, n=text: self._record(n, count, a[-1]))
            )
        named = {name: value for name, value in model.named_parameters() if value.requires_grad}
        generator = torch.Generator(images.device).manual_seed(0)
        slopes = []
        try:
            with restored_buffers(model):
                heads = model(torch.cat(images.chunk(2)[own]), low=True)
                self.buffers = {
                    name: int(digest([value], value.device))
                    for name, value in model.named_buffers()
                }
                for head in heads:
                    size = (2, len(images) // 2, *head.shape[1:])
                    like = {"device": head.device, "dtype": head.dtype}
                    drawn = torch.randn(size, generator=generator, **like)
                    slopes.append(drawn[own].flatten(0, 1))
                values = torch.autograd.grad(heads, list(named.values()), slopes, allow_unused=True)
        except (RuntimeError, ValueError) as error:
            done = [name for name, _ in self.outputs]
            name = next((name for name in reversed(began) if name not in done), began[0])
            raise _refusal(f"{name} fails ({reason_of(error)})", name) from error
        finally:
            for handle in handles:
                handle.remove()
        self.gradients = dict(zip(named, values))

    def _record(self, name: str, slices: int, output: object) -> None:
        parts: Sequence[Tensor] = ()
        if isinstance(output, Tensor):
            of_images = hasattr(output, "of_images") and len(output) % slices == 0
            parts = output.detach().chunk(slices) if of_images else [output.detach()] * slices
        digests = [int(digest([part], part.device)) for part in parts]
        self.outputs.append((name, digests or [0] * slices))


def _refusal(text: str, name: str) -> ConfigError:
    return ConfigError(
        f"parallel.exact: {text} when other images are beside an image, so its bits would depend "
        "on the number of ranks: replace it, or set parallel.exact=0",
        code="layer-mixes-images",
        found=name,
    )

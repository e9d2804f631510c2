"""Kernels in Triton's interpreter, compared with the plain loss in float64 and with plain
normalization: a JSON line per case.

Started by test_kernels.py with TRITON_INTERPRET=1, which must be set before triton is imported.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segtrain.config import Loss
from segtrain.data.pixels import normalize
from segtrain.losses import build_criterion, low_res_loss, low_res_totals, lowlogits, ways
from segtrain.losses.lowlogits import LowLogits
from segtrain.losses.upsampling import Thinned, axes
from segtrain.models import fused
from segtrain.models.layers import norm_act
from segtrain.models.resnet import Bottleneck

VOID = 255
WEIGHTS = (0.5, 0.0, 2.0, 3.5, 0.25)
SPECS: dict[str, dict[str, Any]] = {
    "ce": {"terms": ["ce"]},
    "ce, weighted and smoothed": {
        "terms": [{"name": "ce", "label_smoothing": 0.2}],
        "class_weights": WEIGHTS,
    },
    "focal, weighted": {"terms": [{"name": "focal", "gamma": 0.5}], "class_weights": WEIGHTS},
    "ohem, weighted": {
        "terms": [{"name": "ohem", "min_kept": 0.5, "threshold": 0.1}],
        "class_weights": WEIGHTS,
    },
    "several": {
        "terms": [
            "ce",
            {"name": "dice", "weight": 0.5},
            {"name": "tversky", "alpha": 0.3, "beta": 0.7},
        ]
    },
}


def bilinear(
    align_corners: bool, more: tuple[int, int] = (0, 0)
) -> Callable[[Tensor, tuple[int, int]], Tensor]:
    """Upsampling to ``more`` pixels than the size, which are cut off."""

    def upsample(low: Tensor, size: tuple[int, int]) -> Tensor:
        to = (size[0] + more[0], size[1] + more[1])
        full = F.interpolate(low, to, mode="bilinear", align_corners=align_corners)
        return full[..., : size[0], : size[1]]

    return upsample


def batch(
    shape: tuple[int, ...], size: tuple[int, int], void: str = "some"
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    low = 3 * torch.randn(shape, generator=generator)
    target = torch.randint(0, shape[1], (shape[0], *size), generator=generator).to(torch.uint8)
    if void != "none":
        target[:, : size[0] if void == "all" else 1] = VOID
    return low, target


def apart(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float(
        (found.double() - expected.double()).abs().max()
        / expected.double().abs().max().clamp_min(0.1)
    )


def maps(low: Tensor, target: Tensor, upsample: Any) -> dict[str, float]:
    """What ``LowLogits`` offers, and the gradient of all of it together with random slopes."""
    classes, valid = low.shape[1], target != VOID
    tables = axes(upsample, low, (target.shape[1], target.shape[2]))
    assert tables is not None
    logits = LowLogits(low, target, VOID, tables)
    generator = torch.Generator().manual_seed(2)
    factors, weights = (
        torch.randn(classes, generator=generator),
        torch.rand(classes, generator=generator),
    )
    slopes = torch.randn(3, *target.shape, generator=generator)
    exact = low.double().requires_grad_()
    log_p = upsample(exact, (target.shape[1], target.shape[2])).log_softmax(1)
    truth = F.one_hot(target.long() * valid, classes).movedim(-1, 1) * valid[:, None]
    p, nll = log_p.exp(), -(log_p * truth).sum(1)
    expected = [nll, (p * factors[:, None, None]).sum(1), -(log_p * weights[:, None, None]).sum(1)]
    found = [torch.where(valid, logits.nll(), 0.0), logits.sum_p(factors), logits.sum_nll(weights)]
    sums = torch.stack(
        [
            (p * truth).sum((0, 2, 3)),
            (p * valid[:, None]).sum((0, 2, 3)),
            truth.sum((0, 2, 3)).double(),
        ]
    )
    (gradient,) = torch.autograd.grad((torch.stack(expected) * slopes).sum(), exact)
    small = logits.gradient((torch.stack(found) * slopes).sum())
    assert small.dtype == torch.float32
    names = ("nll", "sum of p", "sum of nll")
    result = {name: apart(a.detach(), b.detach()) for name, a, b in zip(names, found, expected)}
    return {
        **result,
        "class sums": apart(logits.class_sums(), sums),
        "gradient": apart(small, gradient),
    }


def loss(spec: str, low: Tensor, target: Tensor, upsample: Any) -> dict[str, float]:
    criterion = build_criterion(Loss(**SPECS[spec]), low.shape[1], VOID)
    results = []
    for way, leaf in (("fused", low), ("direct", low.double())):
        leaf = leaf.clone().requires_grad_()
        totals = low_res_totals(criterion, leaf.detach(), target, upsample, way)
        value = low_res_loss(criterion, leaf, target, totals, upsample, way)
        (gradient,) = torch.autograd.grad(value * 3, leaf)
        assert gradient.dtype == leaf.dtype
        results.append((totals, value.detach(), gradient))
    return dict(zip(("totals", "value", "gradient"), map(apart, *results)))


def images(dtype: torch.dtype) -> dict[str, float]:
    """The largest difference to images that torch's operators normalize, with and without colors
    and padding.
    """
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 256, (3, 37, 29, 3), generator=generator).to(torch.uint8)
    colors = torch.randn(3, 10, generator=generator)
    covered = torch.tensor([[0, 0, 37, 29], [3, 4, 20, 29], [10, 0, 37, 11]], dtype=torch.int32)
    found = {}
    for last in (False, True):
        for what, looks in {
            "plain": (None, None),
            "colored": (colors, None),
            "padded": (colors, covered),
        }.items():
            how = (normalize.IMAGENET_MEAN, normalize.IMAGENET_STD, last, *looks, dtype)
            made, expected = (
                normalize._by_kernels(levels, *how),
                normalize._by_operators(levels, *how),
            )
            assert made.stride() == expected.stride()
            assert made.dtype == expected.dtype == dtype
            found[f"{what} {last}"] = float((made.double() - expected.double()).abs().max())
    return found


def layer(plain: nn.Module, *shape: int, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """Output, gradients, and buffers of a layer by kernels, beside torch's in float64."""
    torch.manual_seed(4)
    for name, value in [*plain.named_parameters(), *plain.named_buffers()]:
        if value.is_floating_point():
            value.data = torch.rand_like(value) + ("mean" in name)
    exact, kernel = copy.deepcopy(plain).double(), copy.deepcopy(plain)
    names = ("batch_norm", "layer_norm", "depthwise", "linear")
    fused._convert(kernel, names, lambda value: None)
    kinds = {type(module).__module__ for module in kernel.modules()}
    assert "segtrain.models.fused" in kinds
    images = (1.5 + torch.randn(shape)).to(dtype)
    results = []
    for network in (kernel, exact):
        x = (images if network is kernel else images.double()).clone().requires_grad_()
        out = network(x)
        slope = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
        results.append([out, *torch.autograd.grad(out, [x, *network.parameters()], slope)])
        results[-1] += [value for value in network.buffers() if value.is_floating_point()]
    names = ["out", "x", *dict(plain.named_parameters()), *dict(plain.named_buffers())]
    return {name: apart(a.detach(), b.detach()) for name, a, b in zip(names, *results)}


class NormOnly(nn.Module):
    """Batch norm, then ReLU of the sum with the images themselves."""

    def __init__(self, channels: int, relu: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU() if relu else None

    def forward(self, x: Tensor) -> Tensor:
        return norm_act(self.norm, self.relu, x * 1, x)


def synchronized() -> dict[str, float]:
    """Half of a batch, with the sums of the whole one."""
    x, slope = torch.randn(2, 6, 5, 3, 3)
    results, sums = [], []
    for images, slopes, total in (
        (x, slope, lambda value: sums.append(value.clone())),
        (x[:3], slope[:3], lambda value: value.copy_(sums.pop(0))),
    ):
        norm = fused.FusedBatchNorm2d(5)
        norm.total = total
        leaf = images.clone().requires_grad_()
        out = norm(leaf, None, True)
        results.append((out.detach()[:3], *torch.autograd.grad(out, leaf, slopes)))
    assert not sums
    return {
        "out": apart(results[1][0], results[0][0]),
        "x": apart(results[1][1], results[0][1][:3]),
    }


def say(case: str, found: dict[str, float]) -> None:
    print(json.dumps({"case": case, **found}), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    ways.chosen = lambda wanted, *_: wanted  # a CPU would be refused
    shapes = (
        # classes at a time, low, size, upsampling, void
        (4, (1, 2, 3, 3), (6, 6), bilinear(False), "none"),
        (32, (3, 19, 2, 2), (4, 7), bilinear(True), "some"),
        (64, (1, 150, 2, 2), (8, 3), bilinear(False), "some"),
        (4, (1, 1, 2, 2), (5, 5), bilinear(False), "some"),
        (4, (1, 3, 2, 2), (16, 4), bilinear(False), "some"),
        (4, (1, 5, 6, 3), (6, 3), bilinear(True), "some"),  # of the same size
        (4, (1, 3, 2, 67), (3, 134), bilinear(True), "some"),
        (4, (1, 3, 5, 4), (12, 9), bilinear(False, (3, 2)), "some"),
        (4, (1, 3, 3, 3), (6, 6), bilinear(True), "all"),
    )
    for classes, shape, size, upsample, void in shapes:
        lowlogits.CLASSES = classes
        low, target = batch(shape, size, void)
        # exp of the difference to 0, of which classes beyond the last are, is infinite
        low -= 100 * (shape[1] == 5)
        say(f"maps {shape} to {size}, {void} void", maps(low, target, upsample))
    lowlogits.CLASSES = 8
    low, target = batch((2, 5, 2, 3), (5, 7))
    for spec in SPECS:
        say(f"loss {spec}", loss(spec, low, target, bilinear(False)))
    thinned = Thinned(bilinear(False), (14, 21), 3, (2, 1))
    say("maps of every third pixel", maps(low, batch((2, 5, 2, 3), (4, 7))[1], thinned))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        say(f"images {dtype}", images(dtype))
    for relu in (False, True):
        say(f"layer norm, relu {relu}", layer(NormOnly(70, relu), 2, 70, 9, 7))
    say("block", layer(Bottleneck(8, 4, 2, 1, 1, 64), 2, 8, 6, 6))
    for dilation, bias in ((1, True), (3, False)):
        conv = nn.Conv2d(70, 70, 3, padding=dilation, dilation=dilation, groups=70, bias=bias)
        say(f"layer depthwise, dilation {dilation}", layer(conv, 2, 70, 9, 5))
    say("layer rows", layer(nn.LayerNorm(37), 3, 5, 37))
    say("layer linear", layer(nn.Linear(37, 5), 3, 5, 37))
    say("layer synchronized", synchronized())
    say("bfloat16 norm", layer(NormOnly(6, True), 2, 6, 9, 7, dtype=torch.bfloat16))
    for dtype in (torch.bfloat16, torch.float16):
        half = low.to(dtype).contiguous(memory_format=torch.channels_last)
        say(f"half {dtype}", loss("ce", half, target.long(), bilinear(True)))


if __name__ == "__main__":
    main()

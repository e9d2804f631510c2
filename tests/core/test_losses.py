"""Tests of the losses: what the papers define, and the same however the batch is split."""

from __future__ import annotations

import doctest
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from segtrain import losses
from segtrain.base import bins
from segtrain.config import Loss
from segtrain.losses import (
    Criterion,
    CrossEntropy,
    DiceLoss,
    FocalLoss,
    JaccardLoss,
    LovaszSoftmax,
    OHEMCrossEntropy,
    TverskyLoss,
    build_criterion,
    low_res_loss,
    low_res_totals,
    lowres,
    ways,
)
from segtrain.losses import term as terms

C, VOID = 5, 255
WEIGHTS = (0.5, 1.0, 2.0, 3.5, 0.25)

SPECS = {
    "ce": {"terms": ["ce"]},
    "ce-weighted": {"terms": ["ce"], "class_weights": WEIGHTS},
    "ce-smoothed": {"terms": [{"name": "ce", "label_smoothing": 0.1}]},
    "ce-weighted-smoothed": {
        "terms": [{"name": "ce", "label_smoothing": 0.2}],
        "class_weights": WEIGHTS,
    },
    "ohem": {"terms": [{"name": "ohem", "min_kept": 0.3, "threshold": 0.05}]},
    "ohem-threshold": {"terms": [{"name": "ohem", "min_kept": 0.01, "threshold": 0.3}]},
    "ohem-weighted": {
        "terms": [{"name": "ohem", "min_kept": 0.5, "threshold": 0.1}],
        "class_weights": WEIGHTS,
    },
    "focal": {"terms": ["focal"]},
    "focal-weighted": {"terms": [{"name": "focal", "gamma": 0.5}], "class_weights": WEIGHTS},
    "dice": {"terms": ["dice"]},
    "jaccard": {"terms": ["jaccard"]},
    "tversky": {"terms": [{"name": "tversky", "alpha": 0.3, "beta": 0.7}]},
    "lovasz": {"terms": ["lovasz"]},
    "ce+dice": {"terms": ["ce", {"name": "dice", "weight": 0.5}]},
    "all": {
        "terms": ["ce", "ohem", "focal", "dice", "jaccard", "tversky", "lovasz"],
        "class_weights": WEIGHTS,
    },
}
every_loss = pytest.mark.parametrize("spec", SPECS)


def criterion(spec: str, ignore_index: int = VOID) -> Criterion:
    return build_criterion(Loss(**SPECS[spec]), C, ignore_index)


def batch(
    n: int = 8, h: int = 7, w: int = 9, spread: float = 2.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Logits float64 and labels uint8; image 0 is all void, image 1 has one valid pixel, 2 has a
    third, ...

    Class 4 is in one image only.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, C, h, w, generator=generator, dtype=torch.float64) * spread
    target = torch.randint(0, C - 1, (n, h, w), generator=generator).to(torch.uint8)
    if n > 3:
        target[0] = VOID
        target[1] = VOID
        target[1, 2, 2] = 1
        target[2, : 2 * h // 3] = VOID
        target[3, 1:3] = 4
    return logits, target


def with_gradient(function, leaf: Tensor) -> tuple[float, Tensor]:
    leaf = leaf.detach().clone().requires_grad_()
    value = function(leaf)
    (gradient,) = torch.autograd.grad(value, leaf)
    return float(value.detach()), gradient


def assert_close(got, wanted, rtol=1e-12) -> None:
    got, wanted = (
        torch.as_tensor(got, dtype=torch.float64),
        torch.as_tensor(wanted, dtype=torch.float64),
    )
    assert torch.isfinite(got).all()
    scale = max(float(wanted.abs().max()), 1e-300)
    assert float((got - wanted).abs().max()) <= rtol * scale, (got, wanted)


# References: valid pixels picked out one by one, classes in a loop, the whole batch at hand.


def naive(loss: Loss, logits: Tensor, target: Tensor, ignore: int = VOID) -> Tensor:
    names = {"ce": naive_ce, "focal": naive_focal, "ohem": naive_ohem, "lovasz": naive_lovasz}
    weights = loss.class_weights if isinstance(loss.class_weights, tuple) else (1.0,) * C
    total = torch.zeros((), dtype=torch.float64)
    for term in loss.terms:
        total = total + term.weight * names.get(term.name, naive_tversky)(
            term, logits, target, weights, ignore
        )
    return total


def pixels(logits: Tensor, target: Tensor, ignore: int) -> list[tuple[Tensor, int]]:
    """(probabilities (C,), class) of each valid pixel."""
    places = [tuple(place) for place in np.argwhere(target.numpy() != ignore)]
    exp = [torch.exp(logits[n, :, y, x] - logits[n, :, y, x].max().detach()) for n, y, x in places]
    return [(e / e.sum(), int(target[place])) for e, place in zip(exp, places)]


def naive_ce(term, logits, target, weights, ignore):
    smoothing, top, bottom = term.label_smoothing, 0.0, 0.0
    for p, y in pixels(logits, target, ignore):
        wanted = [(1 - smoothing) * (c == y) + smoothing / C for c in range(C)]
        top = top - sum(weights[c] * wanted[c] * torch.log(p[c]) for c in range(C))
        bottom += weights[y]
    return top / bottom


def naive_focal(term, logits, target, weights, ignore):
    each = pixels(logits, target, ignore)
    top = sum(weights[y] * (1 - p[y]) ** term.gamma * -torch.log(p[y]) for p, y in each)
    return top / sum(weights[y] for _, y in each)


def naive_ohem(term, logits, target, weights, ignore):
    each = [(-torch.log(p[y]), p[y], y) for p, y in pixels(logits, target, ignore)]
    upper = [int(np.float32(nll.item()).view(np.uint32)) >> 16 for nll, _, _ in each]
    border = sorted(upper, reverse=True)[math.ceil(term.min_kept * len(each)) - 1]
    kept = [
        (nll, y)
        for (nll, p, y), bits in zip(each, upper)
        if p.item() < term.threshold or bits >= border
    ]
    return sum(weights[y] * nll for nll, y in kept) / sum(weights[y] for _, y in kept)


def naive_tversky(term, logits, target, weights, ignore):
    alpha, beta = {"dice": (0.5, 0.5), "jaccard": (1, 1)}.get(term.name) or (term.alpha, term.beta)
    each, losses = pixels(logits, target, ignore), []
    for c in sorted({y for _, y in each}):
        true = sum(p[c] for p, y in each if y == c)
        false = sum(p[c] for p, y in each if y != c)
        missed = sum(1 - p[c] for p, y in each if y == c)
        losses.append(1 - true / (true + alpha * false + beta * missed))
    return sum(losses) / len(losses)


def naive_lovasz(term, logits, target, weights, ignore):
    """The Lovász extension by its definition: Jaccard losses of the sets of the k most wrong
    pixels.
    """
    images = []
    for n in range(len(logits)):
        each, losses = pixels(logits[n : n + 1], target[n : n + 1], ignore), []
        for c in sorted({y for _, y in each}):
            truth = {i for i, (_, y) in enumerate(each) if y == c}
            errors = [1 - p[c] if y == c else p[c] for p, y in each]
            order = sorted(range(len(each)), key=lambda i: -errors[i].item())
            value, before = 0.0, 0.0
            for k, i in enumerate(order):
                wrong = set(order[: k + 1])
                # 1 - |truth minus wrong| / |truth or wrong|
                after = len(wrong) / len(truth | wrong)
                value, before = value + errors[i] * (after - before), after
            losses.append(value)
        images += [sum(losses) / len(losses)] if losses else []
    return sum(images) / len(images)


@every_loss
@pytest.mark.parametrize("ignore", [VOID, 1])
def test_value_and_gradient_are_those_of_the_definition(spec, ignore):
    logits, target = batch(n=5, h=4, w=5)
    if ignore != VOID:
        target = torch.where(target == VOID, ignore, target)
    subject, loss = criterion(spec, ignore), Loss(**SPECS[spec])
    value, gradient = with_gradient(
        lambda x: subject.loss(x, target, subject.totals(x, target)), logits
    )
    wanted, slope = with_gradient(lambda x: naive(loss, x, target, ignore), logits)
    assert_close(value, wanted)
    assert_close(gradient, slope)


@every_loss
@pytest.mark.parametrize("sizes", [[4, 4], [2, 2, 2, 2], [1] * 8, [1, 2, 5], [8, 0]], ids=str)
def test_any_split_gives_the_same_totals_value_and_gradient(spec, sizes):
    logits, target = batch()
    subject = criterion(spec)
    totals = subject.totals(logits, target)
    value, gradient = with_gradient(lambda x: subject.loss(x, target, totals), logits)
    assert value > 0
    assert float(gradient.abs().max()) > 0

    parts = list(zip(logits.split(sizes), target.split(sizes)))
    summed = torch.stack([subject.totals(x, y) for x, y in parts]).sum(0)
    assert_close(summed, totals)
    shares = [with_gradient(lambda x, y=y: subject.loss(x, y, summed), x) for x, y in parts]
    assert_close(math.fsum(share for share, _ in shares), value)
    assert_close(torch.cat([slope for _, slope in shares]), gradient)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_void_is_zero_with_zero_gradient(spec, dtype):
    logits, target = batch()
    target = torch.full_like(target, VOID)
    subject = criterion(spec)
    value, gradient = with_gradient(
        lambda x: subject.loss(x, target, subject.totals(x, target)), logits.to(dtype)
    )
    assert value == 0
    assert not gradient.any()
    for term in subject.terms:
        assert [float(part) for part in term.sum_and_count(logits, target)] == [0, 0]
        assert term(logits, target) == 0


@every_loss
def test_void_pixels_have_exactly_no_gradient_and_no_say(spec):
    logits, target = batch()
    subject = criterion(spec)

    def loss(x):
        return subject.loss(x, target, subject.totals(x, target))

    value, gradient = with_gradient(loss, logits)
    void = (target == VOID)[:, None].expand_as(logits)
    assert not gradient[void].any()
    assert (gradient[~void] != 0).double().mean() > 0.1
    other = torch.where(void, logits.flip(1) * 3 + 1, logits)
    changed, slope = with_gradient(loss, other)
    assert changed == value
    assert torch.equal(slope, gradient)


@every_loss
def test_extreme_logits_stay_finite(spec):
    """Sure and right, sure and wrong: probabilities of exactly 0 and 1 in float32."""
    logits, target = batch(spread=200.0)
    subject, labels = criterion(spec), target
    right = F.one_hot(target.long() * (target != VOID), C).permute(0, 3, 1, 2) * 300.0
    for extreme in (logits.float(), right, -right):
        value, gradient = with_gradient(
            lambda x: subject.loss(x, labels, subject.totals(x, labels)), extreme
        )
        assert math.isfinite(value)
        assert torch.isfinite(gradient).all()


@every_loss
def test_nan_is_not_hidden(spec):
    logits, target = batch()
    logits[3, :, 0, 0] = math.nan
    subject = criterion(spec)
    assert target[3, 0, 0] != VOID
    assert math.isnan(subject.loss(logits, target, subject.totals(logits, target)))


@every_loss
def test_half_precision_is_computed_in_float32(spec):
    logits, target = batch()
    subject, half = criterion(spec), logits.bfloat16()
    wanted, slope = with_gradient(
        lambda x: subject.loss(x, target, subject.totals(x, target)), half.float()
    )
    with torch.autocast("cpu", torch.bfloat16):
        value, gradient = with_gradient(
            lambda x: subject.loss(x, target, subject.totals(x, target)), half
        )
    assert value == wanted
    assert gradient.dtype == torch.bfloat16
    assert torch.equal(gradient, slope.bfloat16())


@pytest.mark.parametrize("spec", ["ce", "ce-weighted", "ce-smoothed", "ce-weighted-smoothed"])
def test_deterministic_kernels_compute_the_same(spec, monkeypatch):
    logits, target = batch()
    subject = criterion(spec)
    totals = subject.totals(logits, target)
    wanted, slope = with_gradient(lambda x: subject.loss(x, target, totals), logits)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    monkeypatch.setattr(F, "cross_entropy", None)  # must not be called
    value, gradient = with_gradient(lambda x: subject.loss(x, target, totals), logits)
    assert_close(value, wanted)
    assert_close(gradient, slope)
    assert not gradient[target[:, None].expand_as(gradient) == VOID].any()


@pytest.mark.parametrize("keep", [0.001, 0.1, 0.25, 0.9, 1.0])
def test_ohem_keeps_the_share_and_little_more(keep):
    logits, target = batch(n=8, h=40, w=50, spread=4.0)
    subject = build_criterion(
        Loss(terms=[{"name": "ohem", "min_kept": keep, "threshold": 1e-9}]), C
    )
    _, gradient = with_gradient(
        lambda x: subject.loss(x, target, subject.totals(x, target)), logits
    )
    kept = (gradient != 0).any(1)
    _, count = subject.terms[0].sum_and_count(logits, target)
    valid = target != VOID
    needed = math.ceil(keep * int(valid.sum()))
    assert int(kept.sum()) == int(count) >= needed
    nll = -logits.log_softmax(1).gather(1, (target.long() * valid)[:, None])[:, 0]
    border = float(nll[valid].sort(descending=True).values[needed - 1])
    assert (nll[kept] > border * (1 - 1 / 128)).all()
    assert kept[valid & (nll > border)].all()
    assert not kept[~valid].any()


# Low-resolution logits


def upsample(low: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(low, (size[0] + 1, size[1] + 3), mode="bilinear", align_corners=True)[
        ..., : size[0], : size[1]
    ]


@every_loss
def test_low_res_loss_is_the_plain_one(spec):
    """Main and auxiliary head, of different size."""
    _, target = batch()
    subject = criterion(spec)
    generator = torch.Generator().manual_seed(3)
    main = torch.randn(8, C, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    aux = torch.randn(8, C, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    values, gradients = [], []
    for low_res in (False, True):
        loss = torch.zeros((), dtype=torch.float64)
        for head, weight in ((main, 1.0), (aux, 0.4)):
            if low_res:
                totals = low_res_totals(subject, head, target, upsample)
                loss = loss + weight * low_res_loss(subject, head, target, totals, upsample)
            else:
                full = upsample(head, (7, 9))
                loss = loss + weight * subject.loss(full, target, subject.totals(full, target))
        values.append(loss.detach())
        gradients.append(torch.autograd.grad(loss * 3.0, (main, aux)))
    assert_close(values[1], values[0])
    for got, wanted in zip(gradients[1], gradients[0]):
        assert_close(got, wanted)


def test_low_res_loss_upsamples_one_image_at_a_time():
    _, target = batch()
    seen = []

    def watched(low, size):
        seen.append(len(low))
        return upsample(low, size)

    subject, low = criterion("ce+dice"), torch.randn(8, C, 3, 4, requires_grad=True)
    totals = low_res_totals(subject, low, target, watched)
    low_res_loss(subject, low, target, totals, watched).backward()
    assert seen == [1] * 16
    assert low.grad is not None


@every_loss
def test_the_forms_for_a_gpu_give_the_same(spec, monkeypatch):
    """Several images at a time, upsampling as products, sums in copies of the bins, and all classes
    in one sort.
    """
    low, target = batch(5, 4, 5)[0], batch(5, 7, 9)[1]

    def upsample(part, size):
        return F.interpolate(part, size=size, mode="bilinear", align_corners=True)

    def found(way):
        loss = criterion(spec)
        totals = low_res_totals(loss, low, target, upsample, way)
        return totals, *with_gradient(
            lambda x: low_res_loss(loss, x, target, totals, upsample, way), low
        )

    plain = found("direct")
    monkeypatch.setattr(lowres, "parts", lambda images, *_: [slice(0, 3), slice(3, images)])
    monkeypatch.setattr(terms, "parts", lambda images, *_: [slice(0, 2), slice(2, images)])
    monkeypatch.setattr(bins, "add_up", partial(bins.add_up, copies=7))
    monkeypatch.setattr(LovaszSoftmax, "_rows_at_once", lambda self, *_: 3)
    for expected, result in zip(plain, found("products")):
        torch.testing.assert_close(result, expected, rtol=1e-11, atol=1e-13)


def test_a_gpu_takes_as_many_images_at_a_time_as_fit():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert terms.parts(3, 1, cpu) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert terms.parts(5, terms.AT_ONCE // 2, gpu) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert terms.parts(2, 3 * terms.AT_ONCE, gpu) == [slice(0, 1), slice(1, 2)]
    assert terms.parts(0, 0, gpu) == []


def test_upsampling_that_is_not_separable_is_left_to_the_network():
    low, target = torch.randn(2, 3, 4, 5), torch.zeros(2, 8, 9)

    def bent(part, size):
        return F.interpolate(part, size=size, mode="bilinear") ** 2

    assert not ways.products_agree(bent, low, target)

    def bilinear(part, size):
        return F.interpolate(part, size=size, mode="bilinear")

    assert ways.products_agree(bilinear, low, target)


def test_low_res_loss_in_half_precision_survives_small_gradients():
    """A loss scale comes after the gradient is computed: float16 in between would round it to 0."""
    _, target = batch(n=8, h=64, w=64)
    low = torch.randn(8, C, 16, 16).half().requires_grad_()
    subject = criterion("ce")
    totals = subject.totals(None, target) * 1000
    (gradient,) = torch.autograd.grad(
        low_res_loss(subject, low, target, totals, upsample) * 2.0**16, low
    )
    wide = low.detach().float().requires_grad_()
    (wanted,) = torch.autograd.grad(
        low_res_loss(subject, wide, target, totals, upsample) * 2.0**16, wide
    )
    assert gradient.dtype == torch.float16
    assert float((gradient.float() - wanted).abs().max()) <= 1e-3 * float(wanted.abs().max())


def test_low_res_loss_without_gradient_and_of_nothing():
    _, target = batch()
    subject, low = criterion("all"), torch.randn(8, C, 3, 4, requires_grad=True)
    totals = low_res_totals(subject, low, target, upsample)
    with torch.no_grad():
        value = low_res_loss(subject, low, target, totals, upsample)
    assert not value.requires_grad
    assert_close(value, low_res_loss(subject, low, target, totals, upsample).detach())
    nothing = low[:0].detach().requires_grad_()
    loss = low_res_loss(subject, nothing, target[:0], totals, upsample)
    loss.backward()
    assert float(loss.detach()) == 0
    assert nothing.grad.shape == (0, C, 3, 4)
    assert not low_res_totals(subject, nothing, target[:0], upsample).any()


# Losses in one line, without a config

ONE_LINE = {
    "ce": lambda ignore: CrossEntropy(C, ignore),
    "ce-weighted": lambda ignore: CrossEntropy(C, ignore, class_weights=torch.tensor(WEIGHTS)),
    "ce-smoothed": lambda ignore: CrossEntropy(C, ignore, label_smoothing=0.1),
    "ohem-weighted": lambda ignore: OHEMCrossEntropy(
        C, ignore, list(WEIGHTS), min_kept=0.5, threshold=0.1
    ),
    "focal": lambda ignore: FocalLoss(C, ignore),
    "dice": lambda ignore: DiceLoss(C, ignore),
    "jaccard": lambda ignore: JaccardLoss(C, ignore),
    "tversky": lambda ignore: TverskyLoss(C, ignore, alpha=0.3, beta=0.7),
    "lovasz": lambda ignore: LovaszSoftmax(C, ignore),
}


@pytest.mark.parametrize("spec", ONE_LINE)
def test_one_line_is_the_term_of_the_config(spec):
    logits, target = batch(n=5, h=4, w=5)
    loss, subject = ONE_LINE[spec](VOID), criterion(spec)
    assert loss == subject.terms[0]
    value, gradient = with_gradient(lambda x: loss(x, target), logits)
    of_term, slope = with_gradient(lambda x: subject(x, target), logits)
    assert value == of_term
    assert torch.equal(gradient, slope)
    total, count = loss.sum_and_count(logits, target)
    assert total / count == of_term


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_one_line_takes_every_float_and_integer_type(dtype):
    logits, target = batch()
    leaf = logits.to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = OHEMCrossEntropy(num_classes=C)(leaf, target.long())
    loss.backward()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert leaf.grad.dtype == dtype
    assert_close(loss.detach(), OHEMCrossEntropy(C)(leaf.detach(), target), rtol=1e-6)


def test_examples_in_the_docstrings_are_true():
    for module in (losses.pixelwise, losses.overlap, losses.criterion):
        found = doctest.testmod(module)
        assert found.attempted, module
        assert not found.failed, module


# Settings


def test_class_weights_from_outside_and_from_the_config():
    logits, target = batch()
    auto = build_criterion(Loss(class_weights="auto"), C, VOID, torch.tensor(WEIGHTS))
    assert auto == criterion("ce-weighted")
    assert auto.terms[0].sum_and_count(logits, target)[1] == sum(
        w * int((target == c).sum()) for c, w in enumerate(WEIGHTS)
    )


def test_a_loss_under_inference_mode_spoils_no_later_one():
    logits, target = batch()
    # weights that no other test has cached
    subject = build_criterion(Loss(class_weights=(0.1, 0.2, 0.3, 0.4, 0.6)), C)
    with torch.inference_mode():
        subject(logits, target)
    value, gradient = with_gradient(
        lambda x: subject.loss(x, target, subject.totals(x, target)), logits
    )
    assert value > 0
    assert gradient.any()

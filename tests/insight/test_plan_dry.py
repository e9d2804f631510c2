"""The pass without data: what it says of memory, FLOPs, and gradients is what torch keeps and makes
in real passes.
"""

from __future__ import annotations

import contextlib
import time
from itertools import count
from typing import Any

import pytest
import torch

from segtrain.config import Config, load_config
from segtrain.insight.plan.dry import DryModel
from segtrain.insight.plan.memory import ALLOWED, GIB, largest, moments, need, refusal
from segtrain.insight.plan.trace import Tally, saved_bytes
from segtrain.models import build_model
from segtrain.training.gradient_times import GradientTimes

CLASSES = 7
MODELS = [
    ("pico", "resnet18"),
    ("unet", "resnet18"),
    ("deeplabv3plus", "resnet18"),
    ("fpn", "resnet18"),
    ("segformer", "mit_b0"),
]


def settings(arch: str, encoder: str, *more: str) -> Config:
    return load_config(
        None, [f"model.arch={arch}", f"model.encoder={encoder}", "data.crop=[64,96]", *more]
    )


def real_bytes(config: Config) -> tuple[float, Any]:
    """What torch keeps for the backward pass of two images."""
    network = build_model(config.model, CLASSES)
    existing = {t.untyped_storage()._cdata for t in (*network.parameters(), *network.buffers())}
    half = config.train.precision == "bf16"
    with (
        saved_bytes(existing) as saved,
        torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext(),
    ):
        heads: Any = network(torch.randn(2, 3, *config.data.crop), low=True)
        return float(sum(saved.values())), (network, heads)


@pytest.mark.parametrize(("arch", "encoder"), MODELS)
def test_the_bytes_of_a_pass_are_those_that_torch_keeps(arch, encoder):
    config = settings(arch, encoder)
    found = DryModel(config, CLASSES, 4).step(2)
    saved, (network, heads) = real_bytes(config)
    assert found.saved == pytest.approx(saved, rel=0.1)
    assert found.peak > found.saved
    assert found.parameters[0] == sum(p.numel() for p in network.parameters())
    heads[0].sum().backward()
    with_gradient = [p for p in network.parameters() if p.grad is not None]
    assert len(found.gradients) == len(with_gradient)
    assert sum(size for size, _ in found.gradients) == 4 * sum(p.numel() for p in with_gradient)
    shares = [share for _, share in found.gradients]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1, abs=0.01)


def test_a_run_measures_when_its_gradients_are_ready(monkeypatch):
    """With a clock that counts its readings: of n gradients, the k-th is ready after k/n of the
    backward pass.
    """
    config = settings("pico", "resnet18")
    network, readings = build_model(config.model, CLASSES), count()
    monkeypatch.setattr(time, "thread_time", lambda: next(readings))
    ready = GradientTimes(network, torch.device("cpu"))
    for _ in range(2):  # two micro-batches
        network(torch.randn(2, 3, *config.data.crop), low=True)[0].sum().backward()
    computed = DryModel(config, CLASSES, 4).step(2).gradients
    rows = ready.rows()
    assert rows is not None
    assert rows["bytes"] == [size for size, _ in computed]
    assert rows["ready"] == pytest.approx(
        [k / len(computed) for k in range(1, len(computed) + 1)], abs=1e-4
    )
    ready.remove()
    network(torch.randn(2, 3, *config.data.crop), low=True)[0].sum().backward()
    assert ready.rows() == rows


def test_half_precision_keeps_what_autocast_keeps():
    config = settings("fpn", "resnet18", "train.precision=bf16")
    saved, _ = real_bytes(config)
    assert DryModel(config, CLASSES, 4).step(2).saved == pytest.approx(saved, rel=0.1)


@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("inputs", [False, True])
def test_each_gradient_of_a_convolution_costs_as_much_as_its_forward_pass(
    groups, transposed, inputs
):
    """2 * positions of the filter * in * out / groups * 9 for each pass, also with groups and for
    depthwise layers.
    """
    kind = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
    layer = kind(16, 32, 3, groups=groups, device="meta")
    images = torch.empty(2, 16, 10, 12, device="meta", requires_grad=inputs)
    with Tally() as tally:
        layer(images).sum().backward()
    passes = 2 * (10 * 12 if transposed else 8 * 10) * 2 * 16 * 32 // groups * 9
    assert sum(row.flops for row in tally.rows) == (3 if inputs else 2) * passes


@pytest.mark.parametrize("loss", ["ce", "ohem", "dice", "lovasz"])
def test_full_size_logits_are_counted(loss):
    """The logits of one image, and at least one more tensor of their size."""
    one = DryModel(settings("pico", "", f"loss.terms=[{loss}]"), CLASSES, 4).step(4)
    whole = DryModel(
        settings("pico", "", f"loss.terms=[{loss}]", "loss.full_logits=true"), CLASSES, 4
    ).step(4)
    logits = 4 * CLASSES * 64 * 96
    assert one.loss >= 2 * logits
    assert whole.loss == pytest.approx(4 * one.loss)


def test_state_of_the_optimizer_and_averages_are_counted():
    plain = settings("pico", "", "optim.name=sgd", "optim.momentum=0.9")
    more = settings("pico", "", "optim.name=adamw", "optim.ema=0.99")
    dry = DryModel(plain, CLASSES, 4).step(2)
    weights = 4.0 * dry.parameters[0]
    assert (moments(plain), moments(more)) == (1, 2)
    assert need(plain, dry, 1).fixed == pytest.approx(2 * weights + dry.buffers)
    assert need(more, dry, 1).fixed == pytest.approx(4 * weights + 2 * dry.buffers)
    assert need(plain, dry, 2).gradients == weights
    assert need(plain, dry, 2).allowed - need(plain, dry, 1).allowed == ALLOWED["nccl"]
    assert need(more, dry, 8, "fsdp").fixed < 0.6 * need(more, dry, 8).fixed


def test_a_batch_that_does_not_fit_is_refused_with_one_that_does():
    config = settings("fpn", "resnet18")
    model = DryModel(config, CLASSES, 16)
    few, many = (need(config, model.step(images), 8).total for images in (2, 16))
    assert refusal(config, model, 16, 8, many / GIB + 0.01) == ""
    room = (few + many) / 2
    most = largest(config, model, 16, 8, room)
    assert 2 < most < 16
    assert need(config, model.step(most), 8).total <= room
    assert f"batch {most} fits" in refusal(config, model, 16, 8, room / GIB)
    assert "2 do not fit" in refusal(config, model, 16, 8, 0.5)

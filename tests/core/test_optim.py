"""Tests of schedules, averaging, clipping, and loss scaling."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from segtrain.config import AdamWOptim, Model, MuonOptim, SGDOptim
from segtrain.models import build_model
from segtrain.optim import (
    Ema,
    LossScaler,
    Muon,
    build_optimizer,
    clip_,
    encoder_multiplier,
    multiplier,
    orthogonalize,
    parameter_groups,
    set_lr,
)
from segtrain.optim.groups import layers


def test_scaler_halves_doubles_and_travels():
    model = nn.Linear(1, 1)
    model.weight.grad, optimizer = torch.zeros(1, 1), torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = LossScaler(True, scale=8.0, patience=2)
    assert bool(scaler.step(optimizer, torch.tensor(math.inf)))
    assert float(scaler.factor) == 4.0
    assert not bool(scaler.step(optimizer, torch.tensor(1.0)))
    other = LossScaler(True, patience=2)
    other.load_state_dict({name: value.item() for name, value in scaler.state_dict().items()})
    other.step(optimizer, torch.tensor(1.0))
    assert other.factor == 8.0
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.tensor([16.0])
    other.unscale_([parameter])
    assert parameter.grad.tolist() == [2.0]
    assert LossScaler(False).factor == 1.0


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 3),
        nn.Conv2d(4, 4, 3),
        nn.Conv2d(4, 2, 1),
    )


@pytest.mark.parametrize("together", [False, True], ids=["each alone", "by shape, as on a GPU"])
@pytest.mark.parametrize(
    "optim",
    [SGDOptim(lr=0.05), AdamWOptim(lr=0.05), MuonOptim(lr=0.05, muon_lr=0.05)],
    ids=lambda o: o.name,
)
def test_a_step_that_overflows_is_skipped_on_the_device_as_if_it_had_never_been(
    optim, together, monkeypatch
):
    """To the bit, with its moments and averages: the reference does not call the optimizer at all
    in such a step.
    """
    if together:
        monkeypatch.setattr(Muon, "_together", staticmethod(by_shape))
    models = small_network(), small_network()
    optimizers = [build_optimizer(model, [], optim) for model in models]
    averages = [Ema(model, 0.9) for model in models]
    scaler, scale, good = LossScaler(True, scale=8.0, patience=3), 8.0, 0
    assert optimizers[0]._step_supports_amp_scaling  # type: ignore[attr-defined]
    for step, overflow in enumerate((True, False, False, True, False, False, False, True)):
        for model in models:
            generator = torch.Generator().manual_seed(step)
            for number, parameter in enumerate(model.parameters()):
                parameter.grad = scale * torch.randn(parameter.shape, generator=generator)
                if overflow and number == step % 5:
                    parameter.grad.view(-1)[0] = math.inf if step else math.nan
        scaler.unscale_(list(models[0].parameters()))
        skipped = scaler.step(optimizers[0], clip_(list(models[0].parameters()), 1.0))
        averages[0].update(step, skipped)
        if not overflow:
            for parameter in models[1].parameters():
                parameter.grad.mul_(1 / scale)  # type: ignore[union-attr]
            clip_(list(models[1].parameters()), 1.0)
            optimizers[1].step()
            averages[1].update(step)
        good = 0 if overflow else good + 1
        scale, good = scale / 2 if overflow else scale * 2 if good == 3 else scale, good % 3
        assert {name: value.item() for name, value in scaler.state_dict().items()} == {
            "scale": scale,
            "good": good,
        }
    found, expected = (
        [*model.state_dict().values(), *average.shadow.values()]
        for model, average in zip(models, averages)
    )
    assert all(map(torch.equal, found, expected))
    for mine, plain in zip(models[0].parameters(), models[1].parameters()):
        moments = [
            {k: v for k, v in o.state[p].items() if v is not None}
            for o, p in zip(optimizers, (mine, plain))
        ]
        assert moments[0].keys() == moments[1].keys()
        assert all(torch.equal(moments[0][key], moments[1][key]) for key in moments[0])


def test_an_average_reads_the_tensors_that_the_network_has_now():
    network = nn.BatchNorm2d(2)
    ema = Ema(network, 0.0)
    network.weight = nn.Parameter(torch.full((2,), 5.0))
    ema.update(10**6)
    assert ema.shadow["weight"].tolist() == [5.0, 5.0]


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", [(16, 144), (40, 10), (8, 8)])
def test_orthogonalize_flattens_the_singular_values(shape, bf16):
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    found = orthogonalize(matrix, bf16)
    assert found.dtype == torch.float32
    values = torch.linalg.svdvals(found)
    # A square random matrix has singular values near 0, which five rounds cannot lift all the way.
    assert values.max() < 1.35
    assert values.median() > 0.6
    assert float((found * (u @ v)).sum() / (found.norm() * (u @ v).norm())) > 0.9


def by_shape(found: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    shapes = {p.shape: None for p in found if p.grad is not None}
    return [[p for p in found if p.shape == shape] for shape in shapes]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_muon_updates_a_stack_of_matrices_as_each_alone(layout, monkeypatch):
    """As it does on a GPU: all weights of one shape together."""
    torch.manual_seed(0)
    first = nn.Sequential(
        *(nn.Conv2d(8, 8, 3) for _ in range(3)), nn.Conv2d(8, 4, 3), nn.Conv2d(8, 4, 3)
    ).double()
    first = first.to(memory_format=layout)  # type: ignore[call-overload]
    second = copy.deepcopy(first)
    for together in (False, True):
        model = second if together else first
        optimizer = build_optimizer(model, [], MuonOptim(lr=0.05, muon_lr=0.05, weight_decay=0.1))
        if together:
            monkeypatch.setattr(Muon, "_together", staticmethod(by_shape))
        for step in range(3):
            generator = torch.Generator().manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn(
                    parameter.shape, generator=generator, dtype=torch.float64
                )
            optimizer.step()
    for alone, stacked in zip(first.parameters(), second.parameters()):
        torch.testing.assert_close(stacked, alone, rtol=1e-12, atol=1e-14)


def test_muon_takes_an_inner_layer_with_as_many_channels_as_there_are_classes():
    model = nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), nn.Conv2d(8, 8, 1, bias=False))
    groups = parameter_groups(model, [], MuonOptim(), heads=model[1].parameters())
    assert {g["muon"]: [p.shape for p in g["params"]] for g in groups} == {
        True: [(8, 4, 3, 3)],
        False: [(8, 8, 1, 1)],
    }


@pytest.mark.parametrize(
    ("encoder", "groups"),
    [("convnext_tiny", 6), ("convnext_base", 12), ("vit_tiny_patch16_224", 12), ("resnet50", 6)],
)
def test_layers_are_grouped_as_in_the_recipe_of_convnext(encoder, groups):
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        features = timm.create_model(encoder, features_only=True)
    numbers = list(layers(name for name, _ in features.named_parameters()).values())
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(groups + 1))


def test_the_rate_decays_toward_the_stem_and_positions_keep_their_size():
    pytest.importorskip("segmentation_models_pytorch")
    network = build_model(Model(arch="dpt", encoder="tu-test_vit"), 3)
    optim = AdamWOptim(layer_decay=0.5, weight_decay=0.05)
    groups = parameter_groups(network, network.encoder_parameters(), optim)
    of = {id(p): (g["scale"], g["weight_decay"]) for g in groups for p in g["params"]}
    vit = network.encoder.model
    depth = len(vit.blocks)
    assert of[id(vit.pos_embed)] == of[id(vit.cls_token)] == (0.5 ** (depth + 1), 0)
    assert of[id(vit.patch_embed.proj.weight)] == (0.5 ** (depth + 1), 0.05)
    assert of[id(vit.blocks[-1].mlp.fc1.weight)] == (0.5, 0.05)
    assert {of[id(p)][0] for p in network.head_parameters()} == {1.0}


def test_an_encoder_that_begins_later_has_a_warm_up_of_its_own():
    network = build_model(Model(arch="pico"), 3)
    optim = AdamWOptim(encoder_start="4st", schedule="constant", lr=0.1)
    optimizer = build_optimizer(network, network.encoder_parameters(), optim)
    of_encoder = {id(p) for p in network.encoder_parameters()}
    rates = []
    for step in range(8):
        schedule = (optim, step, 10, 2)
        set_lr(optimizer, 0.1 * multiplier(*schedule), 0.1 * encoder_multiplier(*schedule, 4))
        rates.append(
            {id(g["params"][0]) in of_encoder: round(g["lr"], 3) for g in optimizer.param_groups}
        )
    assert [rate[True] for rate in rates] == [0, 0, 0, 0, 0.05, 0.1, 0.1, 0.1]
    assert [rate[False] for rate in rates] == [0.05, *[0.1] * 7]
    assert "late" not in str(parameter_groups(network, network.encoder_parameters(), AdamWOptim()))

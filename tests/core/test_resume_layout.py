"""Tests that a resumed run keeps the state of each weight with another memory layout or other
ranks.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import command, final
from torch import nn

from segtrain.config import make_config
from segtrain.optim import Ema, build_optimizer
from segtrain.parallel.model import full_state, load_full_state, whole_cpu

LAYOUTS = {False: torch.contiguous_format, True: torch.channels_last}
ROUNDING = 1e-4  # relative: another layout or strategy changes less; scrambled moments change 1e-1
SHARDED = [
    "train.duration=8st",
    "eval.every=8st",
    "checkpoint.every=4st",
    "parallel.sync_bn=true",
    "log.digest=false",
]


def network(channels_last: bool) -> nn.Module:
    torch.manual_seed(0)
    # No bias before batch norm: its gradient is rounding alone.
    first, norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
    layers = [first, norm, nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 1)]
    return nn.Sequential(*layers).double().to(memory_format=LAYOUTS[channels_last])  # type: ignore[call-overload]


def steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, ema: Ema, first: int, after: int
) -> None:
    for step in range(first, after):
        generator = torch.Generator().manual_seed(step)
        images, targets = (
            torch.randn(shape, generator=generator).double()
            for shape in ((2, 3, 12, 12), (2, 4, 8, 8))
        )
        layout = (
            torch.channels_last
            if model[0].weight.is_contiguous(memory_format=torch.channels_last)
            else None
        )  # type: ignore[index]
        images = images.contiguous(memory_format=layout or torch.contiguous_format)
        optimizer.zero_grad()
        (model(images) - targets).square().mean().backward()
        optimizer.step()
        ema.update(step)


def started(name: str, channels_last: bool) -> tuple[nn.Module, torch.optim.Optimizer, Ema]:
    model = network(channels_last)
    return (
        model,
        build_optimizer(model, [], make_config({"optim": {"name": name, "lr": 0.05}}).optim),
        Ema(model, 0.9),
    )


def apart(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """The largest relative distance of a tensor, by its norm."""
    assert found.keys() == expected.keys()
    numbers = [
        (torch.as_tensor(found[key]).double(), torch.as_tensor(expected[key]).double())
        for key in expected
    ]
    return max(float((a - b).norm() / b.norm().clamp_min(1e-9)) for a, b in numbers)


def flat(moments: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        f"{name}.{key}": value for name, slots in moments.items() for key, value in slots.items()
    }


@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
@pytest.mark.parametrize("before", [False, True], ids=["to channels_last", "to contiguous"])
def test_moments_follow_their_weights_into_another_layout(name, before):
    whole, part = started(name, before), started(name, before)
    steps(*whole, 0, 8)
    steps(*part, 0, 4)
    saved = full_state(part[0], part[1], whole_cpu)

    model, optimizer, ema = started(name, not before)
    load_full_state(model, optimizer, *saved)
    ema.shadow = {
        key: torch.empty_like(ema.shadow[key]).copy_(value) for key, value in part[2].shadow.items()
    }
    for parameter in model.parameters():
        for key, value in optimizer.state[parameter].items():
            assert key == "step" or value.stride() == parameter.stride(), key
    steps(model, optimizer, ema, 4, 8)

    weights, moments = full_state(model, optimizer, whole_cpu)
    expected = full_state(whole[0], whole[1], whole_cpu)
    assert apart(weights, expected[0]) < ROUNDING
    assert apart(flat(moments), flat(expected[1])) < ROUNDING
    assert apart(ema.shadow, whole[2].shadow) < ROUNDING


@pytest.mark.parametrize("setting", [{"fused": True}, {"capturable": True}, {"foreach": True}])
def test_a_loaded_count_lies_where_torch_itself_would_load_it(setting, monkeypatch):
    """As ``Optimizer.load_state_dict`` places it, on the device that it places it on."""
    model = nn.Linear(2, 2, device="meta")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for group in optimizer.param_groups:
        group.update({"foreach": False, "fused": False, "capturable": False, **setting})
    moments = {
        name: {
            "step": torch.tensor(3.0),
            "exp_avg": torch.ones(p.shape),
            "exp_avg_sq": torch.ones(p.shape),
        }
        for name, p in model.named_parameters()
    }
    load_full_state(
        model,
        optimizer,
        {name: torch.ones(p.shape) for name, p in model.named_parameters()},
        moments,
    )
    ours = {key: value.device.type for key, value in optimizer.state[model.weight].items()}

    assert ours == {
        "step": "cpu" if "foreach" in setting else "meta",
        "exp_avg": "meta",
        "exp_avg_sq": "meta",
    }
    other = torch.optim.AdamW(model.parameters(), foreach=True)
    other.load_state_dict(
        {
            "state": dict(enumerate(moments.values())),
            "param_groups": optimizer.state_dict()["param_groups"],
        }
    )
    assert ours == {key: value.device.type for key, value in other.state[model.weight].items()}


@pytest.fixture(scope="module")
def sharded(zygote, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:  # type: ignore[no-untyped-def]
    """Copies the folder of a run on two ranks of fsdp that nothing interrupted."""
    if not hasattr(
        pytest.importorskip("torch.distributed.fsdp", reason="this torch has no FSDP"),
        "fully_shard",
    ):
        pytest.skip("this torch has no fully_shard (2.6)")
    out = tmp_path_factory.mktemp("sharded") / "run"
    ranks = zygote.start_ranks(2, *command(out, *SHARDED, "parallel.strategy=fsdp"))
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].output

    return lambda folder: Path(shutil.copytree(out, folder))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_sharded_run_goes_on_whole(zygote, tmp_path, sharded, ranks):  # type: ignore[no-untyped-def]
    """In channels_last, as a run on a GPU or a CPU with AVX512 has it; fsdp's weights are always
    contiguous.
    """
    whole, out = sharded(tmp_path / "whole"), sharded(tmp_path / "run")
    (out / "checkpoints/step-00000008.pt").unlink()
    again = zygote.start_ranks(ranks, *command(out, *SHARDED, "train.channels_last=true"))
    assert [rank.wait() for rank in again] == [0] * ranks, again[0].output
    assert "going on from step 4 of 8" in again[0].output
    for part in ("model", "ema"):
        assert apart(final(out)[part], final(whole)[part]) < ROUNDING
    assert apart(flat(final(out)["optimizer"]), flat(final(whole)["optimizer"])) < ROUNDING

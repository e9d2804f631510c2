"""Tests of train.compile: the same training, compiled before the first step and never again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import refused
from torch import nn

import segtrain
from segtrain.config import Config
from segtrain.runfolder import checkpoint
from segtrain.training import loop
from segtrain.training.compiled import compiled, repeated_blocks

SMALL = {"stem": 8, "widths": [8, 8, 8, 8], "depths": [0, 2, 0, 0], "decoder": 8, "bins": [1, 2]}


def trained(out: Path, how: bool | str) -> dict[str, Any]:
    """The last checkpoint of a run of two crop sizes with two evaluations, on images of other
    sizes.
    """
    settings = {
        "out": str(out),
        "data": {
            "scenes": 8,
            "scene_size": [64, 72],
            "crop": [64, 64],
            "workers": 0,
            "check": "off",
        },
        "model": {"arch": "pico", "options": SMALL},
        "optim": {"name": "sgd", "lr": 1e-2},
        "loss": {"terms": ["dice"]},
        "train": {
            "device": "cpu",
            "batch_size": 4,
            "accumulate": 2,
            "duration": "4st",
            "compile": how,
            "progressive": [[0.5, 0.5]],
        },
        "eval": {"every": "2st", "scales": [0.5, 1.0]},
        "checkpoint": {"every": "4st"},
        "parallel": {"threads": 1},
        "log": {"tensorboard": False, "profile_ms": 0, "spans": False, "hang_s": 0, "pictures": 0},
    }
    segtrain.train(Config(**settings))
    return checkpoint.read(checkpoint.checkpoints(out)[-1])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("plain") / "run", False)


@pytest.mark.parametrize("how", [True, "regions"])
def test_a_compiled_run_compiles_before_its_first_step_alone_and_trains_alike(
    how, plain, tmp_path, monkeypatch
):
    """Neither a larger crop nor an evaluation compiles anything. The compiler's backend is left
    out.
    """
    from torch._dynamo.utils import counters

    counters.clear()
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    graphs = []
    step = loop.gradients

    def counted(*args: Any, **kwargs: Any) -> Any:
        graphs.append(counters["stats"]["unique_graphs"])
        return step(*args, **kwargs)

    monkeypatch.setattr(loop, "gradients", counted)
    found = trained(tmp_path / "run", how)
    graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] >= 2 * 2  # two sizes, with and without gradients
    assert graphs == graphs[:1] * 5
    assert not counters["graph_break"]
    for name, value in plain["model"].items():
        torch.testing.assert_close(found["model"][name], value, rtol=1e-4, atol=1e-6)


def test_regions_are_the_outermost_repeated_blocks():
    def block() -> nn.Module:
        return nn.TransformerEncoderLayer(4, 1)

    blocks = nn.ModuleList([block(), block(), nn.Conv2d(3, 3, 1)])
    network = nn.Sequential(
        blocks, nn.Sequential(nn.Sequential(nn.Conv2d(3, 3, 1)), nn.Sequential(nn.ReLU())), block()
    )
    assert repeated_blocks(network) == list(blocks)[:2]
    with refused("no-blocks-to-compile"):
        compiled(nn.Sequential(nn.Conv2d(3, 3, 1)), "regions")
    assert compiled(network, False) is network

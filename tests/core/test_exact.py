"""parallel.exact: the same bits on any number of ranks, also of a run that goes on with fewer, and a
refusal of what cannot hold it.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import refused
from small_runs import assert_same_weights, command, digests, final
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from waiting import until

from segtrain.config import Parallel
from segtrain.errors import EXIT_RESUMABLE
from segtrain.models.base import OwnModel
from segtrain.models.mit import MitAttention
from segtrain.observe.journal import FILE as JOURNAL
from segtrain.observe.journal import read_journal
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.exact import tree
from segtrain.parallel.strategy import start
from segtrain.training.start.mixing import refuse_mixing

EXACT = ["parallel.exact=4", "train.batch_size=8", "data.hue=0.1", "optim.clip=0.5"]
SHORT = ["train.duration=6st", "eval.every=6st"]
EXACT += ["train.progressive=[[0.5,0.5]]", "loss.terms=[{name: ce}, {name: dice}]"]
UNET = [
    "model.arch=unet",
    "model.encoder=resnet18",
    "model.options={decoder_channels: [8,8,8,8,4]}",
]


def scores(run: Path) -> list[Any]:
    return [event["scores"] for event in read_journal(run) if event["event"] == "eval"]


@pytest.mark.parametrize(
    ("settings", "worlds"),
    [(["optim.name=muon", *SHORT], (1, 2, 4)), ([*UNET, *SHORT], (1, 2))],
    ids=["pico", "unet"],
)
def test_the_same_bits_on_any_number_of_ranks(zygote, tmp_path, settings, worlds):
    for ranks in worlds:
        processes = zygote.start_ranks(ranks, *command(tmp_path / f"{ranks}", *EXACT, *settings))
        assert [process.wait() for process in processes] == [0] * ranks, processes[0].output
        assert_same_weights(final(tmp_path / "1"), final(tmp_path / f"{ranks}"))
        assert scores(tmp_path / f"{ranks}") == scores(tmp_path / "1")


def test_another_number_of_slices_is_named(zygote, tmp_path):
    short = [*command(tmp_path / "run", "train.batch_size=8"), "train.duration=2st"]
    assert zygote.start(*short, "eval.every=2st").wait() == 0
    longer = zygote.start(*short, "eval.every=2st", "parallel.exact=4", "train.extend=1st")
    assert longer.wait() == 0, longer.output
    assert "trained with parallel.exact=0, and goes on with parallel.exact=4" in longer.output


def test_stopped_on_4_ranks_and_killed_on_2_it_ends_on_1_with_the_bits_of_one_that_ran_through(
    zygote, tmp_path
):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings = [*EXACT, "train.batch_size=4"]  # one image on each of 4 ranks
    uninterrupted = zygote.start(*command(whole, *settings))
    for ranks, step, number in ((4, 3, signal.SIGTERM), (2, 7, signal.SIGKILL)):
        processes = zygote.start_ranks(ranks, *command(parts, *settings), HOLD=f"0:{step}")
        until(lambda step=step: (parts / JOURNAL).exists() and step in digests(parts))
        for process in processes:
            process.signal(number)
        stopped = EXIT_RESUMABLE if number == signal.SIGTERM else -number
        assert [process.wait() for process in processes] == [stopped] * ranks
    last = zygote.start(*command(parts, *settings))
    assert (uninterrupted.wait(), last.wait()) == (0, 0), last.output
    assert_same_weights(final(whole), final(parts))
    assert scores(parts) == scores(whole)


def test_the_sum_of_a_tree():
    rows = torch.randn(8, 5)
    pairs = rows[0::2] + rows[1::2]
    expected = (pairs[0] + pairs[1]) + (pairs[2] + pairs[3])
    assert torch.equal(tree(rows), expected)
    assert torch.equal(tree(list(rows)), expected)


class Standardized(nn.Conv2d):
    """A convolution whose kernel is computed from its parameter."""

    def forward(self, images: Tensor) -> Tensor:
        centered = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(images, centered, self.bias, padding=1)


class Twice(nn.Module):
    """One layer that is used three times, a scale, and a token for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(8, 8, 3, padding=1)
        self.scale = nn.Parameter(torch.rand(8, 1, 1))
        self.token = nn.Parameter(torch.rand(1, 8, 1))

    def forward(self, images: Tensor) -> Tensor:
        for _ in range(3):
            images = F.gelu(self.layer(images)) * self.scale
        token = self.token.expand(len(images), -1, -1)
        tokens = torch.cat([token, images.flatten(2)], 2)
        mixed = F.softmax(tokens.transpose(1, 2) @ tokens, -1) @ tokens.transpose(1, 2)
        return mixed.transpose(1, 2)[..., 1:].view_as(images)


class Centered(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images - images.mean(0, keepdim=True)


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(images)
        return images + weight

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return slope, slope.sum((0, 2, 3))[:, None, None]


class OwnBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return Sum.apply(images, self.weight)


class OwnNoise(nn.Module):
    """Noise for each image, and a result that nobody takes."""

    def forward(self, images: Tensor) -> Tensor:
        images = images * torch.empty(len(images), 1, 1, 1).bernoulli_(0.5)
        F.silu(images, inplace=True)
        return images + torch.rand([len(images), 1, 1, 1])


class Attention(nn.Module):
    """Attention of queries that are repeated for each image, with spectral norm."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.rand(5, 8))
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))

    def forward(self, images: Tensor) -> Tensor:
        queries = self.queries.repeat(len(images), 1, 1)
        tokens = self.layer(images.flatten(2).transpose(1, 2))
        return images + self.attention(queries, tokens, tokens)[0].mean(1)[..., None, None]


class Mit(MitAttention):
    """SegFormer's attention, with dropout."""

    num_heads, sr_ratio, scale = 2, 2, 0.5

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.proj = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(8, 8)
        self.sr, self.norm = nn.Conv2d(8, 8, 2, 2), nn.LayerNorm(8)
        self.attn_drop, self.proj_drop = nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(self, images: Tensor) -> Tensor:  # type: ignore[override]
        tokens = super().forward(images.flatten(2).transpose(1, 2), *images.shape[2:])
        return images + tokens.transpose(1, 2).reshape(images.shape)


class Average(nn.Module):
    """A moving average that is not used in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, images: Tensor) -> Tensor:
        self.mean.lerp_(images.detach().mean((0, 2, 3)), 0.1)  # type: ignore[operator]
        return images


class Checkpoint(nn.Conv2d):
    def forward(self, images: Tensor) -> Tensor:
        return checkpoint(super().forward, images, use_reentrant=True)


def network(layer: nn.Module, classes: int = 4) -> OwnModel:
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), layer, nn.Conv2d(8, classes, 1)
    return OwnModel(nn.Sequential(*layers), classes).train()


@pytest.mark.parametrize(
    "layer",
    [
        Standardized(8, 8, 3),
        Twice(),
        nn.GroupNorm(2, 8),
        OwnNoise(),
        Attention(),
        Mit(),
        nn.Sequential(nn.Dropout(), nn.SiLU(inplace=True), nn.Dropout2d(inplace=True)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_hold_it(layer):
    for images, height in ((3, 9), (1, 33)):  # of sizes that no vector divides
        refuse_mixing(network(layer), torch.randn(2 * images, 3, height, 47))


@pytest.mark.parametrize(
    "layer",
    [Centered(), OwnBackward(), Average(), Checkpoint(8, 8, 3), nn.SyncBatchNorm(8)],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_that_mixes_images_is_refused_by_its_name(layer):
    model = network(layer)
    with refused("layer-mixes-images") as error:
        refuse_mixing(model, torch.randn(6, 3, 9, 11))
    named = "the network" if isinstance(layer, Checkpoint) else "module.2"
    assert named in error.value.values["found"]
    assert model.exact is None
    assert model.module[1].training


def test_an_own_model_that_mixes_images_is_refused_before_the_first_step(tmp_path):
    import segtrain

    own = [text for text in command(tmp_path / "run", *EXACT)[1:] if "model." not in text]
    with refused("layer-mixes-images"):
        segtrain.train(segtrain.Config.load(None, *own), model=network(Centered(), 10).module)


class Decay(nn.CrossEntropyLoss):
    """A loss with a moving average of its values."""

    def __init__(self) -> None:
        super().__init__(ignore_index=255)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        loss = super().forward(logits, target)
        self.mean.lerp_(loss.detach(), 0.1)  # type: ignore[operator]
        return loss


def test_a_loss_with_state_is_refused(tmp_path):
    import segtrain

    config = segtrain.Config.load(None, *command(tmp_path / "run", "parallel.exact=4")[1:])
    with refused("loss-state-not-exact"):
        segtrain.train(config, criterion=Decay())


@pytest.mark.parametrize(
    ("settings", "ranks", "code"),
    [
        ({"exact": 4}, 3, "ranks-do-not-divide-slices"),
        ({"exact": 4, "strategy": "fsdp"}, 2, "strategy-not-exact"),
    ],
)
def test_ranks_and_strategies_that_cannot_hold_it(settings, ranks, code):
    with refused(code), start(Parallel(**settings), Cluster(0, ranks, 0, ranks)):
        pass

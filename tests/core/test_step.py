"""Promise 1: the same global batch gives the same gradient on 1, 2 and 4 ranks and under
accumulation.
"""

from __future__ import annotations

import gc
import json
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from segtrain.config import Model, Parallel
from segtrain.models import build_model
from segtrain.parallel import syncbn
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.model import wrap
from segtrain.parallel.strategy import Strategy
from segtrain.parallel.syncbn import SyncBatchNorm2d
from segtrain.training.step import Micro, _thinned, seed_generators

LOSSES = ["ce", "ohem", "focal", "dice", "jaccard", "lovasz", "tversky", "ce+dice", "weighted"]

RANK = """
import json, os, random
import torch
from torch import nn
from segtrain.config import Loss, Parallel
from segtrain.losses import build_criterion
from segtrain.observe.clock import Clock
from segtrain.parallel.cluster import discover
from segtrain.parallel.model import unwrapped
from segtrain.parallel.strategy import start
from segtrain.data.order import rank_slice
from segtrain.training.step import Micro, Precision, gradients

SETTINGS = json.loads(os.environ["SETTINGS"])
torch.manual_seed(0)
images = torch.randn(8, 3, 24, 20, dtype=torch.float64)
masks = torch.randint(0, 5, (8, 24, 20))
masks[0] = 255                       # an image that is all void
masks[1, 3:] = 255                   # void spread unevenly
masks[5, :, :15] = 255
masks[masks == 4] = 255 if SETTINGS.get("absent") else 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        norm = nn.BatchNorm2d(8) if SETTINGS.get("sync_bn") else nn.GroupNorm(2, 8)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), norm, nn.SiLU(), nn.Dropout(0.0), nn.Conv2d(8, 5, 3, 1, 1))
        self.aux = nn.Conv2d(3, 5, 4, 4)

    def forward(self, images, low=False):
        return self.body(images), self.aux(images)

    def upsample(self, low, size):
        return nn.functional.interpolate(low, size, mode="bilinear", align_corners=False)


cluster = discover()
parallel = Parallel(strategy=SETTINGS.get("strategy", "auto"), sync_bn=SETTINGS.get("sync_bn", False))
precision = SETTINGS.get("precision", "fp32")
dtype = torch.float64 if precision == "fp32" else torch.float32
found = {}
with start(parallel, cluster, "cpu") as strategy:
    for name in SETTINGS["losses"]:
        weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5]) if name == "weighted" else None
        terms = ["ce"] if name == "weighted" else name.split("+")
        criterion = build_criterion(Loss(terms=terms), 5, 255, weights)
        for accumulate in SETTINGS["accumulate"]:
            model = strategy.wrap(Net().to(dtype))
            model.train()
            micros = []
            for micro in range(accumulate):
                part = rank_slice(8, cluster.world_size, cluster.rank, accumulate, micro)
                micros.append(Micro(images[part].to(dtype), masks[part]))
            share, votes = gradients(
                model, micros, criterion, strategy, Precision("cpu", precision, loss_stride=SETTINGS.get("stride", 1)), seed=SETTINGS.get("seed", 0),
                votes=torch.ones(1, dtype=torch.float64), aux_weight=0.4, clock=Clock(),
            )
            assert float(votes) == cluster.world_size
            plain = unwrapped(model)
            whole = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in plain.parameters()]
            loss = strategy.reduce(share)
            stride, draw = SETTINGS.get("stride", 1), random.Random(SETTINGS.get("seed", 0))
            top, left = draw.randrange(stride), draw.randrange(stride)
            valid = int((masks[:, top::stride, left::stride] != 255).sum())
            found[f"{name}/{accumulate}"] = (loss, whole, {k: v.clone() for k, v in plain.named_buffers()}, valid)
if cluster.rank == 0:
    torch.save(found, SETTINGS["out"])
"""


def gradients_on(
    run_ranks: Callable[..., list[str]], tmp_path: Path, world: int, **settings: Any
) -> dict[str, Any]:
    out = tmp_path / f"gradients-{world}-{len(list(tmp_path.iterdir()))}.pt"
    settings = {"losses": LOSSES, "accumulate": [1], "out": str(out), **settings}
    standin = {"PYTHONPATH": str(Path(__file__).parents[2] / "launch/core/rehearse/standin")}
    run_ranks(
        RANK,
        world,
        SETTINGS=json.dumps(settings),
        **(standin if settings.get("strategy") == "smddp" else {}),
    )
    return torch.load(out, weights_only=True)


def relative(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    flat_a, flat_b = (torch.cat([t.reshape(-1) for t in x]) for x in (a, b))
    return float((flat_a - flat_b).norm() / flat_b.norm())


def assert_same(found, reference, bound: float) -> None:  # type: ignore[no-untyped-def]
    for key, (loss, gradient, *_) in found.items():
        expected_loss, expected, *_ = reference[key.split("/")[0] + "/1"]
        assert float(expected_loss) > 0
        assert float(loss) == pytest.approx(float(expected_loss), rel=bound), key
        assert relative(gradient, expected) < bound, key


def test_gradients_do_not_know_the_number_of_ranks(run_ranks, tmp_path):  # type: ignore[no-untyped-def]
    one = gradients_on(run_ranks, tmp_path, 1, accumulate=[1, 2, 4])
    assert_same(one, one, 1e-6)
    for world, accumulate in ((2, [1, 2]), (4, [1, 2])):
        assert_same(gradients_on(run_ranks, tmp_path, world, accumulate=accumulate), one, 1e-6)


def test_thinned_pixels_average_to_all_pixels(run_ranks, tmp_path):  # type: ignore[no-untyped-def]
    """Each corner of a stride of 2 is a quarter of the pixels: sums weighted by counts give back
    the whole gradient.
    """
    whole = gradients_on(run_ranks, tmp_path, 1, losses=["ce"])["ce/1"][1]
    corners = {}
    for seed in range(40):
        draw = random.Random(seed)
        corners.setdefault((draw.randrange(2), draw.randrange(2)), seed)
    found = [
        gradients_on(run_ranks, tmp_path, 1, losses=["ce"], stride=2, seed=seed)["ce/1"]
        for seed in corners.values()
    ]
    counts = [entry[3] for entry in found]
    mean = [
        sum(n * entry[1][k] for n, entry in zip(counts, found)) / sum(counts)
        for k in range(len(whole))
    ]
    assert len(found) == 4
    assert relative(mean, whole) < 1e-9


def test_with_synchronized_batch_norm_as_well(run_ranks, tmp_path):  # type: ignore[no-untyped-def]
    settings = {"losses": ["ce", "dice"], "sync_bn": True}
    one = gradients_on(run_ranks, tmp_path, 1, **settings)
    two = gradients_on(run_ranks, tmp_path, 2, **settings)
    assert_same(two, one, 1e-6)
    for name, mean in one["ce/1"][2].items():
        assert torch.allclose(mean.double(), two["ce/1"][2][name].double(), rtol=1e-6), name


def test_an_extra_forward_moves_no_running_statistics(run_ranks, tmp_path):  # type: ignore[no-untyped-def]
    """Dice under accumulation reads the logits twice; batch norm must see each micro-batch once."""
    found = gradients_on(
        run_ranks, tmp_path, 1, losses=["ce", "dice"], accumulate=[2], sync_bn=True
    )
    for name, value in found["ce/2"][2].items():
        assert torch.equal(value, found["dice/2"][2][name]), name


@pytest.mark.parametrize("strategy", ["fsdp", "smddp"])
def test_other_strategies_give_the_same_gradient(run_ranks, tmp_path, strategy):  # type: ignore[no-untyped-def]
    if strategy == "fsdp":
        fsdp = pytest.importorskip("torch.distributed.fsdp", reason="this torch has no FSDP")
        if not hasattr(fsdp, "fully_shard"):
            pytest.skip("this torch has no fully_shard (2.6)")
    settings = {"losses": ["ce", "dice"], "accumulate": [1, 2]}
    one = gradients_on(run_ranks, tmp_path, 1, losses=["ce", "dice"])
    found = gradients_on(run_ranks, tmp_path, 2, strategy=strategy, **settings)
    assert_same(found, one, 1e-6)
    # In mixed precision, the weights that a rank gathers, and their gradients, are float32.
    half = gradients_on(run_ranks, tmp_path, 1, losses=["ce"], precision="bf16")
    assert 1e-5 < relative(half["ce/1"][1], one["ce/1"][1]) < 2e-2
    found = gradients_on(run_ranks, tmp_path, 2, strategy=strategy, losses=["ce"], precision="bf16")
    assert_same(found, half, 5e-3)
    assert all(gradient.dtype == torch.float32 for gradient in found["ce/1"][1])


def test_statistics_of_bfloat16_images_are_sums_of_float32(monkeypatch):
    """Under autocast on CPUs. The other rank has the same images."""
    monkeypatch.setattr(syncbn.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(syncbn.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(syncbn, "all_reduce", lambda value: value.mul_(2))
    torch.manual_seed(0)
    images = (torch.randn(3, 2, 67, 71) + 10).bfloat16()
    found, expected = SyncBatchNorm2d(2), torch.nn.BatchNorm2d(2)
    normal, reference = found(images), expected(torch.cat([images, images]).float())[:3]
    assert normal.dtype == torch.bfloat16
    torch.testing.assert_close(found.running_mean, expected.running_mean, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.running_var, expected.running_var, rtol=1e-5, atol=0)
    torch.testing.assert_close(normal.float(), reference, rtol=2**-7, atol=1e-3)


def test_generators_are_seeded_as_by_torch(monkeypatch):
    """Also those of GPUs, if they are in use."""
    torch.manual_seed(7)
    expected = torch.rand(9)
    of_gpus = tuple(torch.Generator() for _ in range(2))
    seed_generators(7)
    assert torch.equal(torch.rand(9), expected)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", of_gpus)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    seed_generators(8)
    assert 8 not in [generator.initial_seed() for generator in of_gpus]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    seed_generators(7)
    assert [generator.initial_seed() for generator in of_gpus] == [7, 7]


def test_what_is_kept_for_a_model_goes_with_it():
    model = build_model(Model(), 3)
    low, size = torch.randn(1, 3, 8, 8), (32, 32)
    _, thinned = _thinned(
        [Micro(torch.zeros(1, 3, 32, 32), torch.zeros(1, 32, 32))], model.upsample, 2, seed=0
    )
    assert thinned(low, size).shape == (1, 3, 16, 16)
    gone = weakref.ref(model)
    del model, thinned
    gc.collect()
    assert gone() is None


def test_what_the_ranks_summed_outlives_the_strategy(monkeypatch):
    """Torch 2.0's gloo would wait for the interpreter to free such a tensor, while the interpreter
    waits for gloo.
    """
    summed: list[weakref.ref[torch.Tensor]] = []
    monkeypatch.setattr(dist, "all_reduce", lambda value: summed.append(weakref.ref(value)))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    SyncBatchNorm2d(3)(torch.randn(2, 3, 4, 4, requires_grad=True)).square().sum().backward()
    Strategy("ddp", Cluster(0, 2, 0, 2), torch.device("cpu"), Parallel()).reduce(torch.ones(1))
    gc.collect()
    alive = [value() for value in summed]
    assert len(alive) == 5  # two forward, two backward, one of the strategy
    for value in alive:
        assert value is not None
        assert value.grad_fn is None  # or the whole graph would live on


def test_smddp_synchronizes_batch_norm_by_sums(monkeypatch):
    """torch's SyncBatchNorm needs gathers and groups, which SMDDP lacks."""
    monkeypatch.setattr(nn.Module, "to", lambda module, device: module)
    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", lambda module, **_: module)
    for name, kind in (("smddp", SyncBatchNorm2d), ("ddp", nn.SyncBatchNorm)):
        model = wrap(
            nn.Sequential(nn.BatchNorm2d(2)),
            name,
            Parallel(sync_bn=True),
            torch.device("cuda", 0),
            2,
            lambda m: m,
        )
        assert type(model[0]) is kind

"""Tests of CUDA graphs of a step, with a stand-in that records operators on the CPU and replays
them on the same memory.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import refused
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from segtrain.config import Config, Parallel
from segtrain.data.train_loader import Batch
from segtrain.errors import ConfigError
from segtrain.losses import build_criterion
from segtrain.models import build_model
from segtrain.models.base import as_seg_model
from segtrain.observe.clock import Clock
from segtrain.optim import Ema, LossScaler, build_optimizer
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.strategy import Strategy
from segtrain.training import graphs as graphs_module
from segtrain.training import instruments
from segtrain.training.graphs import StepGraphs, refuse_graphs
from segtrain.training.instruments import graphs_first
from segtrain.training.learner import Learner
from segtrain.training.step import Precision, gradients

CLASSES = 4
POOL = (0, 7)
SINGLE = Strategy("single", Cluster(), torch.device("cpu"), Parallel())


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


class Graph:
    """As torch.cuda.CUDAGraph: a replay runs the same operators again, and writes to where they
    wrote.
    """

    capturing: Graph | None = None

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._whole = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        assert pool == POOL  # of all graphs
        if Graph.capturing is not None:
            raise RuntimeError("another graph is being captured")
        Graph.capturing, self._recorder = self, Recorder()
        self._recorder.__enter__()

    def capture_end(self) -> None:
        if Graph.capturing is not self or self._recorder is None:
            raise RuntimeError("no capture of this graph has begun")
        Graph.capturing, self._whole = None, True
        self._recorder.__exit__(None, None, None)

    def pool(self) -> tuple[int, int]:
        if not self._whole:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return POOL

    @torch.no_grad()
    def replay(self) -> None:
        if not self._whole or self._recorder is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        for func, args, kwargs, out in self._recorder.calls:
            again = func(*args, **kwargs)
            several = isinstance(out, (tuple, list))
            for old, new, form in zip(
                out if several else [out], again if several else [again], func._schema.returns
            ):
                # neither a view nor an operator in place
                if isinstance(old, Tensor) and form.alias_info is None:
                    old.copy_(new)


class Stream:
    def __init__(self, *_: Any) -> None: ...

    def wait_stream(self, _: Any) -> None: ...


def _outside_of_captures() -> None:
    assert Graph.capturing is None, "operation not permitted when stream is capturing"


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda _: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
    monkeypatch.setattr(torch.cuda, "empty_cache", _outside_of_captures)
    Graph.capturing = None


class Net(nn.Module):
    """With dropout, batch norm, and a parameter that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.5)
        )
        self.head, self.unused = nn.Conv2d(8, CLASSES, 1), nn.Parameter(torch.zeros(1))

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.interpolate(
            self.head(self.body(images)), images.shape[-2:], mode="bilinear"
        )


def learner(network: Any, terms: list[str], precision: str = "fp32") -> Learner:
    config = Config(loss={"terms": terms, "aux_weight": 0.4}, optim={"name": "adamw", "lr": 1e-2})
    criterion, scaler = build_criterion(config.loss, CLASSES), LossScaler(precision == "fp16")
    optimizer = build_optimizer(network, [], config.optim)
    return Learner(
        network, network, criterion, optimizer, Ema(network, 0.9), scaler, Precision("cpu"), True
    )


def batches(size: tuple[int, int], colors: bool) -> list[Batch]:
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(3):
        images = torch.randint(256, (2, *size, 3), generator=generator).to(torch.uint8)
        masks = torch.randint(CLASSES, (2, *size), generator=generator).to(torch.uint8)
        masks[:, :2] = 255
        looks = torch.rand(2, 14, generator=generator)
        looks.view(torch.int32)[:, 10:] = torch.tensor([1, 0, size[0], size[1] - 2])
        found.append(
            Batch(
                images,
                masks,
                np.arange(2),
                np.zeros(2),
                looks.view(torch.uint8) if colors else None,
            )
        )
    return found


def update(made: Learner, step: int, scale: float) -> list[Tensor]:
    """An optimizer step with another learning rate each time, as in the loop; returns the gradients
    it was made of.
    """
    made.scaler._scale.fill_(scale)
    kept = [torch.zeros(0) if p.grad is None else p.grad.clone() for p in made.parameters]
    for group in made.optimizer.param_groups:
        group["lr"] = 0.01 / (step + 1)
    made.optimizer.step()
    assert made.ema is not None
    made.ema.update(step)
    return kept


@pytest.mark.parametrize(
    ("arch", "terms", "colors"),
    [("net", ["ce"], True), ("net", ["dice", "ohem"], False), ("pico", ["ce", "focal"], False)],
)
def test_replayed_steps_are_those_of_the_loop_to_the_bit(arch, terms, colors):
    """On two crop sizes, with dropout that is seeded for each step, batch norm, and a loss scale
    that changes.
    """
    torch.manual_seed(0)
    model = Config(model={"arch": "pico", "options": {"aux": True}}).model
    network = as_seg_model(Net(), CLASSES) if arch == "net" else build_model(model, CLASSES)
    graphed, plain = (learner(copy.deepcopy(network).train(), terms, "fp16") for _ in range(2))
    graphs, sizes = StepGraphs(graphed, SINGLE, 0.4), [(32, 48), (64, 64)]
    for size in sizes:
        graphs.capture(2, size, colors)
    before = list(graphed.plain.state_dict().values())
    # the captures changed nothing
    assert all(map(torch.equal, before, plain.plain.state_dict().values()))
    steps = [batch for pair in zip(*(batches(size, colors) for size in sizes)) for batch in pair]
    for step, batch in enumerate(steps):
        for made in (graphed, plain):
            for parameter in made.parameters:
                parameter.grad = None
        votes = torch.tensor([1.0, step], dtype=torch.float64)
        found, summed = graphs.gradients(batch, seed=step, votes=votes, clock=Clock())
        share, _ = gradients(
            plain.model,
            [plain.micro(batch)],
            plain.criterion,
            SINGLE,
            plain.precision,
            seed=step,
            votes=votes,
            aux_weight=0.4,
            loss_scale=plain.scaler.factor,
            clock=Clock(),
        )
        assert summed is votes
        assert torch.equal(found, share)
        assert all(
            map(torch.equal, *(update(made, step, 2.0 ** (step + 3)) for made in (graphed, plain)))
        )
    for one, other in zip(graphed.plain.state_dict().values(), plain.plain.state_dict().values()):
        assert torch.equal(one, other)
    assert graphed.ema is not None and plain.ema is not None  # noqa: PT018
    assert all(map(torch.equal, graphed.ema.shadow.values(), plain.ema.shadow.values()))


def test_a_step_that_reads_values_cannot_be_captured():
    class Reading(Net):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) * float(images.mean() > 0)

    graphs = StepGraphs(learner(as_seg_model(Reading(), CLASSES).train(), ["ce"]), SINGLE, 0.4)
    with refused("cuda-graph-impossible", key="train.cuda_graph") as info:
        graphs.capture(2, (32, 32), False)
    assert "not permitted when stream is capturing): set it to false" in str(info.value)
    assert Graph.capturing is None
    torch.zeros(2).sum().item()  # the capture has ended


def test_a_backward_pass_that_reads_values_ends_its_capture():
    class ReadsSlopes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: Tensor) -> Tensor:
            return values.clone()

        @staticmethod
        def backward(ctx: Any, slopes: Tensor) -> Tensor:  # type: ignore[override]
            return slopes * float(slopes.mean() < 9)

    class Reading(Net):
        def forward(self, images: Tensor) -> Tensor:
            return ReadsSlopes.apply(super().forward(images))  # type: ignore[no-any-return]

    graphs = StepGraphs(learner(as_seg_model(Reading(), CLASSES).train(), ["ce"]), SINGLE, 0.4)
    with refused("cuda-graph-impossible", key="train.cuda_graph"):
        graphs.capture(2, (32, 32), False)
    assert Graph.capturing is None


@pytest.mark.parametrize(
    ("times", "settings", "on", "why"),
    [
        ((3.0, 2.0), {}, True, "take 2 ms as CUDA graphs, 3 ms without"),
        ((2.0, 2.0), {}, False, "take 2 ms as CUDA graphs, 2 ms without"),
        (None, {}, False, "cannot be captured"),
        ((3.0, 2.0), {"train": {"accumulate": 2}}, False, "train.accumulate>1"),
        ((3.0, 2.0), {"parallel": {"exact": 2}}, False, "parallel.exact"),
    ],
)
def test_auto_takes_what_is_faster_and_changes_nothing(times, settings, on, why, monkeypatch):
    class Reading(Net):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) * float(images.mean() > 0)

    settings = {**settings, "train": {"cuda_graph": "auto", **settings.get("train", {})}}
    network = as_seg_model(Reading() if times is None else Net(), CLASSES).train()
    before, lines = copy.deepcopy(network.state_dict()), list[str]()
    session: Any = SimpleNamespace(
        config=Config(**settings),
        learner=learner(network, ["ce"]),
        strategy=replace(SINGLE, device=torch.device("cpu")),
        plan=SimpleNamespace(crops=[(9, (32, 32), 1.0)]),
        state=SimpleNamespace(step=0),
        output=SimpleNamespace(screen=SimpleNamespace(say=lines.append)),
    )
    loader: Any = SimpleNamespace(parts=[slice(0, 2)], colors=False)
    assert graphs_first(session, loader) is None
    assert lines.pop().endswith("off, because it needs a GPU")

    measured = StepGraphs.milliseconds

    def timed(self: StepGraphs, colors: bool) -> Any:
        assert min(measured(self, colors)) > 0
        return times

    monkeypatch.setattr(StepGraphs, "milliseconds", timed)
    monkeypatch.setattr(graphs_module, "unfit", partial(fit_on_a_gpu, graphs_module.unfit))
    monkeypatch.setattr(instruments, "unfit", graphs_module.unfit)
    assert (graphs_first(session, loader) is not None) == on
    (line,) = lines
    assert f"auto: {'on' if on else 'off'}, because" in line
    assert why in line
    assert all(map(torch.equal, before.values(), network.state_dict().values()))
    assert all(parameter.grad is None for parameter in network.parameters())


def fit_on_a_gpu(unfit: Any, config: Config, strategy: Strategy, own: bool) -> str:
    return unfit(config, replace(strategy, device=torch.device("cuda")), own)  # type: ignore[no-any-return]


def test_where_no_graph_can_be_is_said_before_anything_is_loaded():
    config = Config(train={"cuda_graph": True})
    gpu = torch.device("cuda")
    one, two = (
        Strategy("single", Cluster(), gpu, Parallel()),
        Strategy("ddp", Cluster(0, 2, 0, 2), gpu, Parallel()),
    )
    refuse_graphs(config, one, False)
    refuse_graphs(Config(), SINGLE, True)
    for strategy, own, why in (
        (SINGLE, False, "a GPU"),
        (two, False, "ddp on 2"),
        (one, True, "waits for the GPU"),
    ):
        with pytest.raises(ConfigError, match=why):
            refuse_graphs(config, strategy, own)

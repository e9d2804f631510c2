"""What a run does on a GPU, on one that is not there: a JSON line for each case.

Started by test_fake_cuda.py, see fake_cuda.py.
"""
# ruff: noqa: B023

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from fake_cuda import FakeGpu

from segtrain.config import Config, Eval, Loss, Model, Parallel
from segtrain.data.datasets import open_dataset
from segtrain.data.workers import memory
from segtrain.data.workers.pool import WorkerPool
from segtrain.errors import DataError
from segtrain.evaluation import evaluation, tiles
from segtrain.losses.criterion import _TERMS, as_criterion, build_criterion
from segtrain.models import build_model
from segtrain.models.base import normalization
from segtrain.observe.clock import Clock
from segtrain.observe.console import Console
from segtrain.observe.journal import Journal
from segtrain.optim import Ema, LossScaler, build_optimizer, clip_
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.collective import digest
from segtrain.parallel.model import full_state, load_full_state, whole_cpu
from segtrain.parallel.strategy import Strategy
from segtrain.training import instruments, loop, sentinel
from segtrain.training.host_copies import HostCopies
from segtrain.training.learner import Learner
from segtrain.training.output import Output
from segtrain.training.saver import Saver
from segtrain.training.session import Session
from segtrain.training.start.derived import make_plan
from segtrain.training.state import State, Stopwatch, averaged_weights
from segtrain.training.step import Micro, Precision, gradients

warnings.simplefilter("ignore")
try:
    GPU = FakeGpu()
except Exception as error:  # whatever another torch raises
    print(json.dumps({"skip": f"this torch has no fake GPU: {type(error).__name__}: {error}"}))
    raise SystemExit(0) from None
torch.set_num_threads(1)
DEVICE, CLASSES = GPU.device, 7
SINGLE = Strategy("single", Cluster(), DEVICE, Parallel())


def say(name: str, work: Callable[[], Any]) -> None:
    """Run a case; print its waits, the operators that ran, what it found out, or its error."""
    GPU.waits.clear()
    GPU.ops.clear()
    line: dict[str, Any] = {"case": name, "error": None, "found": None}
    try:
        with GPU.on():
            line["found"] = work()
    except Exception as error:
        import traceback

        frames = [
            f"{f.filename}:{f.lineno}"
            for f in traceback.extract_tb(error.__traceback__)
            if "/segtrain/" in f.filename
        ]
        line["error"] = f"{type(error).__name__}: {str(error)[:500]} at {frames[-1:]}"
    line["waits"] = [[*place, count] for place, count in GPU.waits.items()]
    line["ops"] = sorted(GPU.ops)
    print(json.dumps(line), flush=True)


def network(arch: str, encoder: str = "resnet18", **options: Any) -> Any:
    return GPU.to_fake(build_model(Model(arch=arch, encoder=encoder, options=options), CLASSES))


def tensors(*shape: int, dtype: Any = torch.uint8) -> Any:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


def step(
    net: Any,
    loss: dict[str, Any] | None = None,
    optim: dict[str, Any] | None = None,
    precision: str = "bf16",
    size: int = 64,
    micros: int = 1,
    own: Any = None,
) -> list[str]:
    """The gradients of a step, and with ``optim`` an update; returns parameters whose gradient is
    absent or of a wrong kind.
    """
    config = Config(loss=loss or {}, optim={"lr": 1e-3, **(optim or {})})
    with GPU.real():
        weights = torch.ones(CLASSES) if config.loss.class_weights == "auto" else None
        criterion = (
            build_criterion(config.loss, CLASSES, 255, weights)
            if own is None
            else as_criterion(own, CLASSES, 255)
        )
    parameters = [p for p in net.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.grad = None
    batch = [
        Micro(tensors(2, 3, size, size, dtype=torch.float32), tensors(2, size, size))
        for _ in range(micros)
    ]
    gradients(
        net,
        batch,
        criterion,
        SINGLE,
        Precision(
            "cuda", precision, config.loss.full_logits or own is not None, config.loss.stride
        ),
        seed=1,
        votes=tensors(2, dtype=torch.float64),
        aux_weight=0.4,
        loss_scale=2.0,
        clock=Clock(),
    )
    wrong = [
        name
        for name, p in net.named_parameters()
        if p.requires_grad
        and (p.grad is None or p.grad.device != DEVICE or p.grad.dtype != p.dtype)
    ]
    if optim is not None:
        scaler = LossScaler(True, DEVICE)
        scaler.unscale_(parameters)
        optimizer = build_optimizer(net, net.encoder_parameters(), config.optim, bf16=True)
        Ema(net, 0.99).update(
            3, scaler.step(optimizer, clip_(parameters, config.optim.clip or 1.0))
        )
    return wrong


def resume(net: Any, name: str) -> list[str]:
    """Where the optimizer's state after a resume has another device, type or layout than in a run
    that was never interrupted.
    """

    names = {parameter: name for name, parameter in net.named_parameters()}

    def placed(optimizer: Any) -> dict[str, tuple[Any, ...]]:
        return {
            f"{names[parameter]} {key}": (str(value.device), value.dtype, value.stride())
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
            if isinstance(value, torch.Tensor)
        }

    optim = Config(optim={"name": name}).optim
    first, second = (build_optimizer(net, net.encoder_parameters(), optim) for _ in range(2))
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    first.step()
    load_full_state(net, second, *full_state(net, first, whole_cpu))
    second.step()
    fresh, resumed = placed(first), placed(second)
    return [
        f"{key}: {resumed.get(key)}, not {device}"
        for key, device in fresh.items()
        if resumed.get(key) != device
    ]


def score(net: Any, **view: Any) -> str:
    settings = Eval(**view)
    criterion = build_criterion(Loss(terms=["ce", "dice"]), net.num_classes)
    with evaluation.evaluating(net), torch.no_grad():
        form = *normalization(net), True
        predict = evaluation._predictor(
            evaluation._forward(net, DEVICE, "bf16"),
            tiles.View.of(settings, 1.0),
            settings.size,
            DEVICE,
            form,
            criterion,
        )
        labels = SimpleNamespace(num_classes=CLASSES, ignore_index=255)
        tally = evaluation.SplitTally(labels, 2, DEVICE, criterion)
        truth, guess, *numbers = predict(tensors(2, 64, 64, 3), tensors(2, 64, 64))
        tally.add([0, 1], truth, guess, *numbers)
        tally.settle()
        shown = SimpleNamespace(entries=[SimpleNamespace(image="x")])
        evaluation._picture(shown, 0, torch.zeros(1, 64, 64, 3), truth[:1], guess[:1])
        with suppress(DataError):  # that no image was counted: there are no values here
            tally.sum_over_ranks(None, None)
    return f"{guess.dtype} {guess.device}"


class Anything:
    """What the loop talks to and this test does not ask about: the writer of checkpoints, trackers,
    locks.
    """

    def __getattr__(self, name: str) -> Callable[..., Path]:
        return lambda *_, **__: Path("nothing")

    def __iter__(self) -> Any:
        return iter(())


def many_batches() -> None:
    """The results of 130 batches, as an evaluation keeps them."""
    tally = evaluation.SplitTally(SimpleNamespace(num_classes=CLASSES, ignore_index=255), 2, DEVICE)
    none = tensors(2, 0, dtype=torch.float64)
    for _ in range(130):
        tally.add([0, 1], tensors(2, 8, 8), tensors(2, 8, 8), tensors(2, dtype=torch.bool), none)


def many_images() -> int:
    """64 images of two sizes, as `segtrain predict` predicts them."""
    # here, because the GPU must be there before its functions are made
    from segtrain.infer import predictor, stream

    predictor.free_memory = lambda device: 1e12
    config = Config(
        model={"arch": "pico", "options": {"stem": 8, "widths": [8, 8, 8, 8]}},
        train={"precision": "bf16"},
    )
    net = GPU.to_fake(build_model(config.model, CLASSES)).eval()
    labels: Any = Anything()
    labels.mask_dtype = np.uint8
    subject = predictor.Predictor(net, config, labels)
    items = (stream.Item(np.zeros((40 + 8 * (k % 2), 48, 3), np.uint8), str(k)) for k in range(64))
    return len(list(stream.segmented(subject, items)))


def whole_loop(
    folder: Path,
    strategy: Strategy,
    settings: dict[str, Any],
    loss: str = "ce",
    optim: str = "adamw",
) -> dict[int, list[Any]]:
    """train.loop.run itself, as one of the ranks of ``strategy``; returns the waits of each step,
    from 1.
    """
    config = Config(
        out=str(folder / "run"),
        data={
            "scenes": 9,
            "scene_size": [40, 48],
            "crop": [32, 32],
            "workers": 0,
            "jitter": [0.4, 0.4, 0.4],
            "check": "off",
        },
        model={
            "arch": "pico",
            "options": {
                "stem": 8,
                "widths": [8, 8, 8, 8],
                "depths": [0, 1, 0, 0],
                "decoder": 8,
                "bins": [1, 2],
            },
        },
        train={"batch_size": 4, "precision": "bf16", **settings},
        optim={"ema": 0.9, "lr": 1e-3, "name": optim},
        loss={"terms": loss.split("+")},
        checkpoint={"every": "7st"},
        eval={"every": "8st"},
        log={
            "every": 4,
            "sentinel": 6,
            "digest": True,
            "spans": False,
            "hang_s": 0,
            "profile_ms": 0,
            "pictures": 0,
        },
    )
    dataset = open_dataset(config.data, config.data.train_split)
    net = GPU.to_fake(build_model(config.model, dataset.labels.num_classes))
    plan = make_plan(config, len(dataset), strategy.cluster, True)
    known = {
        "config": config,
        "strategy": strategy,
        "plan": plan,
        "train": dataset,
        "val": open_dataset(config.data, config.data.split),
        "learner": Learner(
            net,
            net,
            build_criterion(config.loss, dataset.labels.num_classes, 255),
            build_optimizer(net, [], config.optim),
            Ema(net, 0.9),
            LossScaler(config.train.precision == "fp16", DEVICE),
            Precision("cuda", config.train.precision),
            True,
        ),
        "state": State(),
        "watch": Stopwatch(strategy, lambda: 0.0),
        "pool": WorkerPool(0, plan.worker_kind),
        "guard": None,
        "helpers": None,
    }
    output = Output(
        Console(plan.steps, plan.epoch(plan.steps), rank=1),
        Journal(folder / "journal.jsonl", 1),
        Anything(),
        (),
    )
    saver = Saver(config, strategy, known["learner"], known["state"], Anything(), output, {})
    saver._writer, saver._copies = Anything(), HostCopies(DEVICE, print)
    session = Session(**known, output=output, saver=saver)
    steps: dict[int, list[Any]] = {}

    @contextmanager
    def counting(*_: Any) -> Any:
        def told(done: int) -> None:
            steps[done] = [[*place, count] for place, count in GPU.waits.items()]
            GPU.waits.clear()

        yield told

    def scored(self: Session) -> bool:
        with averaged_weights(self.learner.plain, self.learner.ema):
            score(self.learner.plain)
        return self.state.step == 8

    Session.patience_ended = False
    instruments._recording, loop.finish, Session.score = counting, lambda session: 0, scored
    sentinel._whole = lambda halves: 0  # of sums that have no values here
    loop._digest = lambda *_: 0  # of pixels, likewise
    GPU.waits.clear()
    loop.run(session, [])
    return steps


def pin_nothing_really() -> None:
    """The loader's blocks are page-locked by name alone."""
    make = memory.SharedBlock.__init__

    def block(self: Any, size: int, shared: bool, pin: bool) -> None:
        make(self, size, shared, False)
        if pin:
            address = self.array.ctypes.data
            GPU.pinned_bytes.append((address, address + self.array.nbytes))

    memory.SharedBlock.__init__ = block  # type: ignore[method-assign]


def main() -> None:
    GPU.launch_nothing()
    families = [
        ("pico", "resnet18", {"aux": True}),
        ("unet", "resnet18", {}),
        ("deeplabv3plus", "resnet18", {}),
        ("unet", "tu-convnext_atto", {}),
        ("segformer", "mit_b0", {}),
        ("fpn", "resnet18", {}),
        ("unetplusplus", "resnet18", {}),
        ("manet", "resnet18", {}),
        ("linknet", "resnet18", {}),
        ("pspnet", "resnet18", {}),
        ("deeplabv3", "resnet18", {}),
        ("pan", "resnet18", {}),
        ("upernet", "resnet18", {}),
        ("dpt", "tu-vit_tiny_patch16_224", {}),
        ("torchvision/fcn_resnet50", "", {}),
        ("torchvision/deeplabv3_mobilenet_v3_large", "", {}),
        ("torchvision/lraspp_mobilenet_v3_large", "", {}),
    ]
    for arch, encoder, options in families:
        size = {"pan": 256, "dpt": 64}.get(arch, 64)
        say(
            f"model {arch} {encoder}",
            lambda: step(network(arch, encoder or "resnet18", **options), size=size),
        )
    frozen = network("unet")
    frozen.freeze("encoder")
    say("model with a frozen encoder", lambda: step(frozen))
    net = network("pico", stem=8, widths=[8, 8, 16, 16], decoder=8, bins=[1, 2])
    for loss in ("ce", "ohem", "focal", "dice", "jaccard", "lovasz", "tversky", "ce+dice"):
        terms = {"terms": loss.split("+")}
        say(f"loss {loss}", lambda: step(net, terms, precision="fp16", micros=2))
    say("loss weighted, thinned", lambda: step(net, {"class_weights": "auto", "stride": 2}))
    say("loss own", lambda: step(net, micros=2, own=torch.nn.CrossEntropyLoss(ignore_index=255)))
    say(
        "loss of full logits",
        lambda: step(net, {"terms": ["ohem"], "class_weights": "auto", "full_logits": True}),
    )
    for name in ("sgd", "adamw", "muon"):
        say(f"optimizer {name}", lambda: step(net, optim={"name": name, "clip": 1.0}))
        say(f"resume {name}", lambda: resume(net, name))
    say("digest", lambda: str(digest(list(net.parameters()), DEVICE).device))
    for view in ({}, {"tile": (32, 32), "flip": True}, {"scales": (0.5, 1.0)}, {"size": (48, 48)}):
        say(f"evaluate {view}", lambda: score(net, **view))
    pin_nothing_really()
    dist.all_reduce = lambda value: value
    one_of_two = Strategy("single", Cluster(0, 2, 0, 2), DEVICE, Parallel(), "nccl")
    for precision, strategy, steps in (("bf16", one_of_two, "9st"), ("fp16", SINGLE, "4st")):
        settings = {"precision": precision, "duration": steps}
        with tempfile.TemporaryDirectory() as folder:
            say(f"loop {precision}", lambda: whole_loop(Path(folder), strategy, settings))
    settings, every = {"duration": "4st", "accumulate": 2, "precision": "tf32"}, "+".join(_TERMS)
    with tempfile.TemporaryDirectory() as folder:
        say("loop of every loss", lambda: whole_loop(Path(folder), SINGLE, settings, every, "muon"))
    graphed = {
        "duration": "9st",
        "cuda_graph": True,
        "precision": "fp16",
        "progressive": [[0.5, 0.5]],
    }
    with tempfile.TemporaryDirectory() as folder:
        say("graphs of every loss", lambda: whole_loop(Path(folder), SINGLE, graphed, every))
    say("evaluate 130 batches", many_batches)
    say("predict 64 images", many_images)
    torch.use_deterministic_algorithms(True)
    for arch, options in (("pico", {"bins": [1, 2, 3]}), ("unet", {}), ("deeplabv3plus", {})):
        say(f"deterministic {arch}", lambda: step(network(arch, **options), size=96))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # At the end of the interpreter, threads that torch has for the stand-in may abort the process.
    os._exit(0)

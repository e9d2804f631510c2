"""Recorded refusals: the code, the values, and the words of errors in training and evaluation."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import golden
import torch
from refusals import FOLDERS, make_set
from torch import Tensor, nn

from segtrain import losses
from segtrain.bucket.faults import StoppedInOutage
from segtrain.config import Loss, load_config
from segtrain.data import order
from segtrain.data.datasets import open_dataset
from segtrain.errors import SegtrainError
from segtrain.losses import build_criterion
from segtrain.losses.criterion import as_criterion
from segtrain.metrics import Scores, confusions, nonfinite_logits
from segtrain.models import build_model
from segtrain.models.base import OwnModel, as_seg_model
from segtrain.observe.clock import Clock
from segtrain.optim import Ema
from segtrain.parallel import launchers
from segtrain.parallel.cluster import Cluster, RankStarter, from_mpi, from_torchrun
from segtrain.parallel.collective import broadcast_bytes, digest, names_of
from segtrain.parallel.failure import rendezvous_error
from segtrain.parallel.gpus import own_gpu
from segtrain.parallel.places import RankPlace, placed
from segtrain.prove import parse_ranks
from segtrain.training.evaluate_run import _refuse_unread
from segtrain.training.score_output import open_folder, refuse_confusion
from segtrain.training.sentinel import Sentinel
from segtrain.training.start.agree import agree_on_config, agree_on_network, check_same_files
from segtrain.training.start.derived import make_plan
from segtrain.training.start.early_checks import refuse_batch, refuse_sizes
from segtrain.training.start.price import refuse_budget
from segtrain.training.state import State, not_finite, on_every_rank


def refusal(call: Callable[[], Any]) -> dict[str, Any]:
    """The error that ``call`` raises or returns."""
    try:
        error = call()
    except SegtrainError as raised:
        error = raised
    assert isinstance(error, SegtrainError), error
    found = {"code": error.code, "exit": error.exit_code, "text": str(error), **error.values}
    return found if error.silent is None else {**found, "silent": error.silent}


class Ranks:
    """Ranks in threads: a sum waits for all of them."""

    def __init__(self, world: int) -> None:
        self._rows, self._barrier = dict[int, Tensor](), threading.Barrier(world, timeout=60)
        self.world = world

    def reduce(self, rank: int, value: Tensor) -> Tensor:
        self._rows[rank] = value.clone()
        self._barrier.wait()
        value.copy_(torch.stack([self._rows[each] for each in range(self.world)]).sum(0))
        self._barrier.wait()
        return value

    def run(self, call: Callable[[Any], Any]) -> list[Any]:
        """What ``call(strategy)`` returns on each rank, or its refusal."""
        found: dict[int, Any] = {}

        def one(rank: int) -> None:
            strategy = SimpleNamespace(
                rank=rank,
                world_size=self.world,
                device=torch.device("cpu"),
                settings=SimpleNamespace(sync_bn=False),
                reduce=lambda value: self.reduce(rank, value),
            )
            try:
                found[rank] = call(strategy)
            except SegtrainError as error:
                found[rank] = refusal(lambda error=error: error)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[rank] for rank in range(self.world)]


def test_ranks_that_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    base = ["data.scenes=30", "train.batch_size=10", "log.sentinel=2", "train.duration=9st"]

    def configs(strategy: Any) -> None:
        more = ["optim.lr=0.3", "train.seed=4", "data.workers=3"] if strategy.rank in (2, 3) else []
        agree_on_config(load_config(None, [*base, *more]), {"model": "a.Net"}, strategy)

    def networks(strategy: Any) -> None:
        layers = [
            nn.Conv2d(3, 4, 1),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 2, 1, bias=strategy.rank != 1),
        ]
        agree_on_network(nn.Sequential(*layers), strategy)

    def weights(strategy: Any) -> None:
        look(strategy, lambda values: values[1].add_(strategy.rank == 4), 0)

    def samples(strategy: Any) -> None:
        look(strategy, lambda values: None, strategy.rank == 1)

    def look(strategy: Any, change: Callable[[Any], Any], shift: int) -> None:
        config = load_config(None, base)
        plan = make_plan(config, 30, Cluster(), False)
        network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        for parameter in network.parameters():
            nn.init.ones_(parameter)
        ema = Ema(network, 0.9)
        with torch.no_grad():
            change([*network.parameters()])
        learner: Any = SimpleNamespace(plain=network, ema=ema)
        names = [SimpleNamespace(image=f"image-{index}.png") for index in range(30)]
        dataset = type("Listed", (list,), {"entries": names})(names)
        sentinel = Sentinel(config, plan, strategy, learner, dataset, 0)
        for step in (0, 1):
            epochs, ids = order.samples(config.train.seed, 30, step * 10, 10)
            mine = slice(strategy.rank * 2, strategy.rank * 2 + 2)
            batch: Any = SimpleNamespace(epochs=epochs[mine], indices=(ids[mine] + shift) % 30)
            sentinel.step(step + 1, [batch], Clock())

    def files(strategy: Any) -> None:
        root = tmp_path / f"{strategy.rank}/set"
        make_set(root)
        if strategy.rank > 2:
            for kind in ("images", "masks"):
                (root / kind / "train/a1.png").rename(root / kind / "train/b1.png")
        words = [word for word in FOLDERS if word.startswith("data.") and "root" not in word]
        config = load_config(None, [*words, f"data.root={root}"])
        check_same_files({"train": open_dataset(config.data, "train")}, config, strategy)

    def failing(strategy: Any) -> int:
        def work() -> int:
            if strategy.rank in (1, 3):
                raise SegtrainError(f"rank {strategy.rank} cannot", code="it-cannot", found=3)
            return 7

        return on_every_rank(strategy, work)

    def outage(strategy: Any) -> None:
        def work() -> None:
            raise StoppedInOutage(f"no bucket on rank {strategy.rank}", code="stopped-in-outage")

        on_every_rank(strategy, work)

    def messages(strategy: Any) -> list[Any]:
        content = broadcast_bytes(strategy, 3, bytes(range(11)), strategy.rank != 2)
        return [content.hex(), names_of(strategy, [4]), names_of(strategy, [0, 1, 2, 3, 4])]

    found: dict[str, Any] = {}
    for call in (configs, networks, weights, samples, files, failing, outage, messages):
        each = Ranks(5).run(call)
        found[call.__name__] = each if call is messages else each[0]
        assert call is messages or all(one == each[0] for one in each)
    values = [
        torch.arange(3000.0),
        torch.arange(5, dtype=torch.int64),
        torch.ones(3, dtype=torch.bool),
    ]
    found["digests"] = [int(digest(part, torch.device("cpu"))) for part in (values, values[1:], [])]
    golden.check("core/ranks.txt", golden.data(found))


class Failing(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.Conv2d(3, 4, 1)

    def forward(self, images: Tensor) -> Any:
        logits = self.layer(images)
        return {"list": [logits], "channels": logits[:, :3], "detached": logits.detach()}[self.kind]


def loss_of(function: Callable[[Tensor, Tensor], Any], void: bool = False) -> Any:
    target = torch.arange(6).view(1, 2, 3) % 3
    if void:
        target[0, 0, 0] = 255
    return as_criterion(function, 3, 255)(torch.zeros(1, 3, 2, 3, requires_grad=True), target)


def test_refusals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(
        "segtrain.training.start.early_checks.memory_limit", lambda: (3 * 2**30, "host")
    )
    logits, target = torch.zeros(2, 3, 4, 5), torch.zeros(2, 4, 5, dtype=torch.long)
    ce, net = losses.CrossEntropy(3), nn.Conv2d(3, 4, 1)
    there = Cluster(3, 8, 1, 4, "node0", 29512, RankStarter("torchrun"), hosts=2)
    rows = [
        RankPlace("a boot", 0, ["u0"]),
        RankPlace("b boot", 0, ["u1"]),
        RankPlace("b boot", 1, ["u1"]),
    ]

    def config(*words: str) -> Any:
        return load_config(None, list(words))

    def model(options: str) -> Any:
        return build_model(config(f"model.options={options}").model, 3)

    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("")
    calls: dict[str, Callable[[], Any]] = {
        "float target": lambda: ce(logits, target.float()),
        "logits of another size": lambda: ce(logits, target[:, 1:]),
        "logits of other classes": lambda: ce(logits[:, 1:], target),
        "count of weights": lambda: losses.CrossEntropy(3, class_weights=(1.0, 2.0)),
        "negative weight": lambda: losses.CrossEntropy(3, class_weights=(1.0, -2.0, 0.5)),
        "no weight": lambda: losses.CrossEntropy(3, class_weights=(0.0, 0.0, 0.0)),
        "auto weights": lambda: build_criterion(Loss(class_weights="auto"), 3),
        "weights of the config": lambda: build_criterion(Loss(class_weights=(1.0, 2.0)), 3),
        "classes of a loss": lambda: as_criterion(ce, 4, 255),
        "void of a loss": lambda: as_criterion(losses.CrossEntropy(3, 254), 3, 255),
        "void counts": lambda: loss_of(nn.CrossEntropyLoss(), void=True),
        "void out of bounds": lambda: loss_of(nn.functional.cross_entropy, void=True),
        "detached loss": lambda: loss_of(lambda a, b: a.detach().sum()),
        "loss per image": lambda: loss_of(lambda a, b: a.sum((1, 2))),
        "loss as a number": lambda: loss_of(lambda a, b: 0.5),
        "scores of other shapes": lambda: confusions(target, target[:, 1:], 3),
        "prediction of other classes": lambda: confusions(target + 4, target, 3),
        "negative prediction": lambda: confusions(target - 1, target, 3),
        "unknown ids": lambda: confusions(target, target + torch.arange(5), 3),
        "names of classes": lambda: Scores.from_confusion(torch.eye(3).long()).table(["a", "b"]),
        "logits": lambda: nonfinite_logits(["a.png", "b.png", "c.png", "d.png"]),
        "a class as model": lambda: as_seg_model(nn.Conv2d, 3),  # type: ignore[arg-type]
        "a text as model": lambda: as_seg_model("unet", 3),  # type: ignore[arg-type]
        "model returns a list": lambda: OwnModel(Failing("list"), 4)(torch.zeros(2, 3, 5, 7)),
        "model of 3 channels": lambda: OwnModel(Failing("channels"), 4)(torch.zeros(2, 3, 5, 7)),
        "detached model": lambda: OwnModel(Failing("detached"), 4)(torch.zeros(2, 3, 5, 7)),
        "nothing to freeze": lambda: as_seg_model(net, 4).freeze("encoder"),
        "no class": lambda: build_model(config().model, 0),
        "unknown option": lambda: model("{stemm: 8}"),
        "reserved option": lambda: model("{num_classes: 8}"),
        "option of another kind": lambda: model("{stem: [8]}"),
        "option too large": lambda: model("{bins: [1, 65]}"),
        "option aux": lambda: model("{aux: 1}"),
        "stages": lambda: model("{widths: [8, 8, 8], depths: [1, 1]}"),
        "warm-up": lambda: make_plan(
            config("train.duration=9st", "optim.warmup=8ep"), 30, Cluster(), False
        ),
        "batch": lambda: refuse_batch(config("train.batch_size=8", "train.accumulate=4"), 3),
        "batch of procs": lambda: refuse_batch(config("train.batch_size=3", "parallel.procs=7"), 7),
        "samples": lambda: refuse_sizes(
            config("data.crop=[2000,3000]", "train.batch_size=60", "data.prefetch=7"), 6, 2
        ),
        "scenes": lambda: refuse_sizes(config("data.scene_size=[9000,33000]"), 1, 1),
        "size of images": lambda: refuse_sizes(config("eval.size=[9000,33000]"), 1, 1),
        "budget": lambda: refuse_budget(config("train.budget=20$"), ""),
        "budget on a machine": lambda: refuse_budget(config("train.budget=20$"), "ml.new.large"),
        "loss not finite": lambda: not_finite(
            17, "the loss", config("optim.lr=0.3", "train.precision=fp16", "train.device=cuda")
        ),
        "not finite at first": lambda: not_finite(1, "a weight", config(), updated=False),
        "entry of a state": lambda: State.read({"step": 3, "epoch": 2}, "run"),
        "kind of an entry": lambda: State.read({"step": 3.5}, "run"),
        "best after the end": lambda: State.read({"step": 3, "best_step": 4}, "run"),
        "ranks to prove": lambda: parse_ranks("1,0"),
        "words to prove": lambda: parse_ranks("1,two"),
        "setting for eval": lambda: _refuse_unread(["eval.flip=true", "optim.lr=1"]),
        "folder of images": lambda: open_folder(Path("file/images")),
        "confusion as text": lambda: refuse_confusion(Path("a.txt")),
        "confusion nowhere": lambda: refuse_confusion(Path("no/a.csv")),
        "confusion is a folder": lambda: refuse_confusion(Path("folder.csv")),
        "too few GPUs": lambda: own_gpu(rows, Cluster(2, 3), "nccl"),
        "not met": lambda: rendezvous_error(
            there, 30.5, RuntimeError("\ngloo: connect refused Exception raised from x")
        ),
        "not met, no words": lambda: rendezvous_error(Cluster(1, 2), 30, TimeoutError("")),
        "rank and size": lambda: launchers.refuse_unknown_launcher({"X_RANK": "1", "X_SIZE": "3"}),
        "no number": lambda: from_torchrun({"RANK": "one", "WORLD_SIZE": "2"}),
        "no rank": lambda: from_torchrun({"WORLD_SIZE": "2"}),
        "rank too large": lambda: from_torchrun(
            {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}
        ),
        "no port": lambda: from_torchrun(
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "65536"}
        ),
        "no address": lambda: from_mpi({"PMI_RANK": "1", "PMI_SIZE": "3"}),
    }
    golden.check(
        "core/errors.txt", golden.data({name: refusal(call) for name, call in calls.items()})
    )


def test_places_of_ranks(monkeypatch):
    rows = [
        RankPlace("a", None, ["u0", "u1"]),
        RankPlace("a", None, ["u0", "u1"]),
        RankPlace("b", None, ["u2", "u3", "u4"]),
        RankPlace("a", None, ["u0", "u1", "u9"]),
        RankPlace("b", None, ["u2"]),
    ]
    clusters = [placed(Cluster(rank, 5, 0, 0), rows) for rank in range(5)]
    environ = {
        "torchrun": {
            "RANK": "3",
            "WORLD_SIZE": "6",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "node0",
            "MASTER_PORT": "31000",
        },
        "alone": {"RANK": "0", "WORLD_SIZE": "1"},
        "mpi": {
            "OMPI_COMM_WORLD_RANK": "2",
            "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_LOCAL_RANK": "2",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        },
        "flux": {
            "FLUX_TASK_RANK": "2",
            "FLUX_JOB_SIZE": "4",
            "FLUX_TASK_LOCAL_ID": "1",
            "MASTER_ADDR": "n",
        },
        "one of MPI": {"PMI_RANK": "0", "PMI_SIZE": "1"},
    }
    found = {
        "placed": [[c.local_rank, c.local_world_size, c.hosts, c.host] for c in clusters],
        "GPUs": [own_gpu(rows, cluster, "nccl") for cluster in clusters],
        "sources": {
            name: from_torchrun(values) or from_mpi(values) for name, values in environ.items()
        },
        "variables": clusters[3].environment(),
    }
    golden.check("core/places.txt", golden.data(found))

"""Recorded numbers: losses, optimizers, schedules, scores, and windows on fixed input."""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import Any

import golden
import numpy as np
import pytest
import torch
from torch import nn

from segtrain.config import AdamWOptim, Loss, MuonOptim, SGDOptim, load_config
from segtrain.evaluation import tiles
from segtrain.evaluation.image_scores import ImageScores, counts
from segtrain.evaluation.tiles import View
from segtrain.losses import build_criterion
from segtrain.losses.lowres import low_res_loss
from segtrain.metrics import Scores, confusions
from segtrain.models import build_model
from segtrain.optim import Ema, build_optimizer, multiplier, set_lr
from segtrain.optim.scaler import LossScaler, clip_
from segtrain.parallel.cluster import Cluster
from segtrain.training.start.derived import make_plan

CLASSES, VOID = 5, 255
WEIGHTS = [0.7, 1.1, 0.4, 2.3, 1.7]


def waves(*shape: int, by: float = 0.37) -> torch.Tensor:
    """Numbers that no generator draws, all different: float64."""
    count = torch.arange(1, 1 + int(np.prod(shape)), dtype=torch.float64)
    return (torch.sin(by * count) + 0.5 * torch.cos(0.11 * count)).view(shape)


def labels(images: int, height: int, width: int) -> torch.Tensor:
    """Class 3 only in the first image, class 4 nowhere, some void pixels, the last image void."""
    count = torch.arange(images * height * width).view(images, height, width)
    target = (count * count // 7 + count) % 3
    target[0, 1:3, 2:5] = 3
    target[count % 11 == 0] = VOID
    target[-1] = VOID
    return target


def test_losses():
    terms: dict[str, list[dict[str, Any]]] = {
        "ce": [{"name": "ce"}],
        "ce smoothed": [{"name": "ce", "label_smoothing": 0.13}],
        "ohem": [{"name": "ohem"}],
        "ohem, few": [{"name": "ohem", "min_kept": 0.4, "threshold": 0.09}],
        "focal": [{"name": "focal"}],
        "focal, gamma 0.7": [{"name": "focal", "gamma": 0.7}],
        "dice": [{"name": "dice"}],
        "jaccard": [{"name": "jaccard"}],
        "tversky": [{"name": "tversky"}],
        "tversky, 0.3 and 0.6": [{"name": "tversky", "alpha": 0.3, "beta": 0.6}],
        "lovasz": [{"name": "lovasz"}],
        "sum": [{"name": "ce", "weight": 0.6}, {"name": "dice", "weight": 1.4}],
    }
    found: dict[str, Any] = {}
    target = labels(3, 6, 7)
    for name, settings in terms.items():
        for weights in ("none", WEIGHTS):
            criterion = build_criterion(Loss(terms=settings, class_weights=weights), CLASSES, VOID)
            logits = (1.7 * waves(3, CLASSES, 6, 7)).requires_grad_()
            value = criterion(logits, target)
            value.backward()
            slopes = logits.grad
            low = (1.7 * waves(3, CLASSES, 2, 3)).requires_grad_()
            upsample = torch.nn.functional.interpolate
            share = low_res_loss(
                criterion, low, target, criterion.totals(upsample(low, (6, 7)), target), upsample
            )
            share.backward()
            key = name if weights == "none" else f"{name}, weighted"
            found[key] = {
                "value": value,
                "slope": slopes.norm(),
                "of classes": slopes.abs().sum((0, 2, 3)),
                "low": [share, low.grad.norm()],
                "size": criterion.size,
                "needs logits": criterion.needs_logits,
                "fused": criterion.fused,
            }
    golden.check("core/losses.txt", golden.data(found))


def test_schedules():
    found = {}
    for name, more in {
        "poly": {},
        "poly 0.4": {"schedule": "poly", "poly_power": 0.4},
        "cosine": {"schedule": "cosine"},
        "onecycle": {"schedule": "onecycle"},
        "linear": {"schedule": "linear"},
        "constant": {"schedule": "constant"},
    }.items():
        optim = AdamWOptim(**more)
        for warmup in (0, 3, 10):
            found[f"{name}, warm-up {warmup}"] = [
                multiplier(optim, step, 11, warmup) for step in range(12)
            ]
    golden.check("core/schedules.txt", golden.data(found))


class Network(nn.Module):
    """An encoder and a head, with and without bias and norm, some frozen; a depthwise filter."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 6, 3)
        )
        self.depthwise = nn.Conv2d(6, 6, 3, groups=6, bias=False)
        self.wide = nn.Conv2d(6, 4, 1)
        self.frozen = nn.Conv2d(4, 4, 1).requires_grad_(False)
        self.head = nn.Conv2d(4, 5, 1)
        for number, parameter in enumerate(self.parameters()):
            parameter.data = waves(*parameter.shape, by=0.3 + 0.01 * number).float()


@pytest.mark.parametrize(
    "optim",
    [
        SGDOptim(lr=0.05, momentum=0.8, weight_decay=0.03, encoder_lr=0.3),
        SGDOptim(lr=0.05, momentum=0.0),
        AdamWOptim(lr=0.02, betas=(0.8, 0.95), weight_decay=0.03, encoder_lr=0.3),
        MuonOptim(
            lr=0.02, muon_lr=0.07, momentum=0.8, betas=(0.7, 0.9), weight_decay=0.03, encoder_lr=0.3
        ),
    ],
    ids=["sgd", "plain", "adamw", "muon"],
)
def test_optimizers(optim, request):
    network = Network()
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    optimizer = build_optimizer(
        network, network.encoder.parameters(), optim, network.head.parameters()
    )
    found: dict[str, Any] = {
        f"group {number}": {
            "of": [names[id(parameter)] for parameter in group["params"]],
            **{k: v for k, v in group.items() if k in ("lr", "scale", "weight_decay", "muon")},
            **{k: v for k, v in group.items() if k in ("momentum", "nesterov", "betas", "eps")},
        }
        for number, group in enumerate(optimizer.param_groups)
    }
    ema, scaler = Ema(network, 0.42), LossScaler(False)
    for step in range(3):
        for number, parameter in enumerate(network.parameters()):
            if parameter.requires_grad:
                parameter.grad = waves(
                    *parameter.shape, by=0.7 + 0.1 * step + 0.01 * number
                ).float()
        set_lr(optimizer, optim.lr * (1 - 0.2 * step))
        norm = clip_(list(network.parameters()), 2.5 if step else 0.0)
        scaler.step(optimizer, norm)
        ema.update(2 * step)
        found[f"norm {step}"] = norm
    for name, value in network.state_dict().items():
        average = ema.shadow[name]
        ends = [*value.flatten()[:2].tolist(), *average.flatten()[:2].tolist()]
        found[name] = [value.double().norm(), average.double().norm(), *ends]
    case = request.node.callspec.id
    golden.check(f"core/optimizer-{case}.txt", golden.data(found, 4))


def test_scores():
    """Class 2 is only predicted, class 4 neither predicted nor true."""
    table = [
        [23, 4, 3, 0, 0],
        [7, 31, 1, 2, 0],
        [0, 0, 0, 0, 0],
        [5, 0, 9, 2, 0],
        [0, 0, 0, 0, 0],
    ]
    scores = Scores.from_confusion(torch.tensor(table))
    target = labels(4, 6, 7)
    guesses = ((1.7 * waves(4, CLASSES, 6, 7, by=0.9)).argmax(1) + target * (target < 2)) % 4
    each = confusions(guesses, target, CLASSES, VOID)
    images = ImageScores.from_counts(counts(each).numpy())
    found = {
        **scores.to_dict(),
        "confusions": each.flatten(1),
        "of images": vars(images),
        "ranked": images.ranked(),
        "extremes": images.extremes(2),
        "empty": Scores.from_confusion(torch.zeros(2, 2, dtype=torch.int64)).to_dict(),
    }
    names = ["road", "sidewalk with steps", "car", "pole", "sky"]
    golden.check("core/scores.txt", f"{golden.data(found)}\n{scores.table(names)}")


def test_windows():
    found: dict[str, Any] = {}
    for length, tile, overlap in (
        (100, 30, 0.5),
        (100, 30, 0.0),
        (101, 30, 0.34),
        (61, 30, 0.95),
        (31, 30, 0.5),
        (30, 30, 0.5),
    ):
        begins = tiles.starts(length, tile, overlap)
        cover = tiles.coverage(length, tile, begins)
        found[f"starts {length} {tile} {overlap}"] = [begins, cover[::7].int()]
    views = {
        "whole": View(),
        "windows": View((20, 24), 0.25),
        "scales": View(scales=(0.5, 1.0, 1.75)),
        "all": View((20, 24), 0.5, (0.5, 1.3), True),
        "mirror": View(flip=True, mirror=(0, 2, 1)),
    }
    images = waves(2, 3, 29, 41).float()

    def forward(crop: torch.Tensor) -> torch.Tensor:
        """Depends on the place in the crop, and on its neighbors."""
        slope = torch.linspace(0, 1.5, crop.shape[-1])
        return crop * (1 + slope) + crop.roll(1, 2) - 0.7 * crop.mean((2, 3), keepdim=True)

    for name, view in views.items():
        size = (29, 41)
        scores = tiles.predict_scores(forward, images, view, (17, 23))
        ids = tiles.predict_ids(forward, images, view)
        found[name] = {
            "single": view.is_single(size),
            "windows": view.windows(size),
            "pixels": view.pixels(size),
            "scores": [*scores.square().mean((0, 2, 3)).tolist(), scores[1, 2, 5, 7]],
            "ids": torch.bincount(ids.flatten().long(), minlength=3),
        }
    masks = torch.arange(2 * 5 * 7).view(2, 5, 7)
    found["nearest"] = tiles.nearest(masks, (3, 4))
    found["larger"] = tiles.nearest(masks, (7, 9))[1]
    found["resized"] = [tiles.resize(images, size).std() for size in ((13, 60), (40, 50), (29, 41))]
    golden.check("core/windows.txt", golden.data(found))


def test_plans(monkeypatch):
    monkeypatch.setattr("segtrain.training.start.derived.cores", lambda: 6)
    found = {}
    for case, words in {
        "epochs": ["train.duration=7ep", "optim.warmup=15%"],
        "steps": ["train.duration=530st", "optim.warmup=2ep", "eval.every=3ep"],
        "short": ["train.duration=9st", "optim.warmup=99%", "checkpoint.every=2st"],
        "progressive": [
            "train.duration=200st",
            "train.progressive=[[0.31,0.5],[0.6,0.77]]",
            "data.crop=[100,180]",
            "data.scale=[0.6,1.9]",
            "data.scale_end=[0.9,1.2]",
        ],
        "workers": ["train.duration=3ep", "data.workers=3", "train.progressive=[[1,0.5]]"],
    }.items():
        config = load_config(None, ["data.scenes=90", "train.batch_size=6", *words])
        plan = make_plan(config, 83, Cluster(1, 2, 1, 2, "127.0.0.1", 29500), False)
        ends = (0, plan.steps // 3, plan.steps * 31 // 100, plan.steps - 1)
        found[case] = {
            **asdict(plan),
            "crops and scales": [plan.crop_and_scale(step) for step in ends],
            "epochs": [plan.epoch(step) for step in ends],
        }
    golden.check("core/plans.txt", golden.data(found))


def test_network():
    options: dict[str, Any] = {
        "stem": 8,
        "widths": [8, 12, 16],
        "depths": [1, 2, 0],
        "decoder": 8,
        "bins": [1, 3],
    }
    options["aux"] = True
    model = load_config(None, [f"model.options={options}"]).model
    network = build_model(model, 4)
    for number, parameter in enumerate(network.parameters()):
        parameter.data = 0.4 * waves(*parameter.shape, by=0.3 + 0.01 * number).float()
    copied = copy.deepcopy(network)
    heads = network(waves(2, 3, 37, 45).float(), low=True)
    with torch.no_grad():
        logits = copied.eval()(waves(2, 3, 37, 45).float())
    copied.freeze("encoder")
    copied.train()
    found = {
        "parameters": {name: list(value.shape) for name, value in network.named_parameters()},
        "encoder": [
            sum(p.numel() for p in network.encoder_parameters()),
            len(network.encoder_state()),
        ],
        "encoder state": list(network.encoder_state())[:3],
        "heads": sum(parameter.numel() for parameter in network.head_parameters()),
        "auxiliary": len(network.auxiliary_parts()),
        "stride": [network.stride, network.pads, network.least],
        "origin": str(network.origin),
        "low": [[list(head.shape), head.double().mean(), head.double().std()] for head in heads],
        "logits": [list(logits.shape), *logits.double().mean((0, 2, 3)).tolist(), logits.std()],
        "frozen": [part.training for part in copied.encoder_parts()],
        "trained": sum(p.numel() for p in copied.parameters() if p.requires_grad),
    }
    golden.check("core/network.txt", golden.data(found, 4))

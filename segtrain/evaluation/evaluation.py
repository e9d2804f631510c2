"""Evaluation of a model on a split, with bitwise identical scores on any number of ranks.

Each image is counted once, with integers (int64), whose sum does not depend on the order. Batches
have images of equal size (``eval_groups``) and do not depend on the number of ranks; rank r takes
batches r, r + world_size, ... So each forward pass sees the same tensor on any number of ranks. The
loop calls no collective, so no rank waits for another. One all-reduce follows the loop. It also
carries how often each image was seen, its scores, whether its logits were finite, and whether a
rank failed.

Bitwise equality needs the same kernels on every rank: the same number of threads and the same kind
of device.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from segtrain import config
from segtrain.base.compat import uncompiled
from segtrain.base.precision import autocast, tf32
from segtrain.data.device_feed import DeviceFeed
from segtrain.data.order import eval_groups
from segtrain.data.pixels.bands import visible
from segtrain.data.train_loader import EvalLoader, image_sizes, normalize, widened
from segtrain.data.workers.pool import WorkerPool
from segtrain.evaluation.chosen import counted_classes
from segtrain.evaluation.image_scores import ImageScores, class_dice
from segtrain.evaluation.tally import SplitTally
from segtrain.evaluation.tiles import Forward, Size, View, nearest, predict_ids, resize
from segtrain.evaluation.val_loss import LossReader, mean_loss
from segtrain.losses import Criterion
from segtrain.metrics import (
    Scores,
    mean_of_known,
    nonfinite_logits,
    plain,
)
from segtrain.models.base import normalization
from segtrain.observe.pictures import PredictedImage

Predict = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Evaluation:
    """Result of ``evaluate``. ``scores``, ``confusion``, ``protocol``, and ``images`` are the same
    on every rank.
    """

    scores: Scores
    confusion: np.ndarray  # int64 (C, C), rows: truth, columns: prediction
    # see the function ``protocol``; protocol["line"] is a readable summary
    protocol: dict[str, Any]
    images: ImageScores
    more: dict[str, Any]  # scores that are not made from the confusion: see ``_more_scores``
    pictures: tuple[PredictedImage, ...] = ()  # on rank 0
    worst: tuple[PredictedImage, ...] = ()  # on rank 0, the worst first
    best: tuple[PredictedImage, ...] = ()  # on rank 0, the best first
    seconds: float = field(default=0.0, compare=False)  # time of this rank until the all-reduce

    def values(self) -> dict[str, Any]:
        """The scores as values for JSON; shares are fractions."""
        return {**self.scores.to_dict(), **plain(self.more)}

    def to_dict(self) -> dict[str, Any]:
        """The scores, the protocol, and the seconds, as values for JSON."""
        return {
            **self.values(),
            "protocol": self.protocol,
            "seconds": round(self.seconds, 3),
        }


def evaluate(
    model: nn.Module,
    dataset: Any,
    settings: config.Eval,
    *,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
    rank: int = 0,
    world_size: int = 1,
    all_reduce: Callable[[Tensor], Tensor] | None = None,
    workers: int = 0,
    pool: WorkerPool | None = None,
    prefetch: int = 4,
    channels_last: bool = False,
    base_scale: float = 1.0,
    pictures: int = 0,
    extremes: int = 0,
    criterion: Criterion | None = None,
) -> Evaluation:
    """Score ``model`` on ``dataset`` (see ``data.datasets``). Every rank calls it, and every rank
    gets the scores.

    model: the plain module, because the forward passes of DDP and FSDP call collectives. Gather a
    sharded model first. all_reduce: sums an int64 tensor over the ranks and returns it; called
    once, even after an error. precision: fp32, tf32, bf16, or fp16. base_scale: ``data.base_scale``
    of the training; see ``tiles.View.of``. pool: workers that read the images, instead of
    ``workers`` threads.
    pictures: number of images, evenly spread over the split, that rank 0 returns with their
    predictions. extremes: rank 0 also returns this many of the worst images, and as many of the
    best. criterion: the loss of the training, whose mean over the split is another score.
    An error on one rank is raised on every rank, so that no rank waits forever.
    """
    start, device = time.perf_counter(), torch.device(device)
    view = View.of(settings, base_scale, dataset.labels.mirror)
    wanted = _spread(len(dataset), pictures) if rank == 0 else []
    labels = dataset.labels
    counted = counted_classes(settings, labels.names)
    tally = SplitTally(labels, len(dataset), device, criterion, settings.hausdorff)
    failure: Exception | None = None
    with evaluating(model), tf32(precision == "tf32"), torch.inference_mode():
        form = *normalization(model), channels_last
        predict = _predictor(
            _forward(model, device, precision), view, settings.size, device, form, criterion
        )
        try:
            sizes = image_sizes(dataset)
            groups = eval_groups(sizes, settings.batch_size)[rank::world_size]
            pin = device.type == "cuda"
            with EvalLoader(
                dataset,
                groups,
                workers,
                prefetch,
                pin_memory=pin,
                pool=pool,
                sizes=sizes,
            ) as loader:
                shown = _loop(predict, DeviceFeed(loader, device), tally, dataset, wanted)
            tally.settle()
        except Exception as error:
            failure = error
        seconds = time.perf_counter() - start
        table, found, nonfinite, numbers = tally.sum_over_ranks(
            failure, all_reduce if world_size > 1 else None
        )
        if nonfinite:
            raise nonfinite_logits([str(dataset.entries[index].image) for index in nonfinite])
        images = ImageScores.from_counts(found)
        worst, best = images.extremes(extremes) if rank == 0 else ([], [])
        for index in [*wanted, *worst, *best]:
            if index not in shown:
                # Copies, because the arrays may be read-only.
                image, mask = (torch.tensor(array)[None] for array in dataset.read(index))
                shown[index] = _picture(dataset, index, image, *predict(image, mask)[:2])
    pixels = table.sum(1).tobytes() + images.pixels.tobytes()
    facts = protocol(dataset, settings, view, sizes, precision, pixels)
    scores = Scores.from_confusion(table, counted)
    more = _more_scores(scores, found, criterion, numbers)
    spread, worst_shown, best_shown = (
        tuple(shown[index] for index in some) for some in (wanted, worst, best)
    )
    return Evaluation(scores, table, facts, images, more, spread, worst_shown, best_shown, seconds)


def _more_scores(
    scores: Scores, found: np.ndarray, criterion: Criterion | None, numbers: np.ndarray
) -> dict[str, Any]:
    """Dice of images, and, where asked for, the loss and the Hausdorff distances. ``found`` and
    ``numbers``: see ``SplitTally.sum_over_ranks``.
    """
    more: dict[str, Any] = {"image_dice": class_dice(found)}
    if criterion is not None:
        terms = 2 * len(criterion.terms)
        more["loss"] = mean_loss(criterion, numbers[:, :terms])
        numbers = numbers[:, terms:]
    if numbers.size:
        more["hausdorff"] = tuple(map(mean_of_known, numbers.T.tolist()))
    means = {
        f"mean_{key}": mean_of_known([more[key][c] for c in scores.counted])
        for key in ("image_dice", "hausdorff")
        if key in more
    }
    return more | means


def _loop(
    predict: Predict, batches: DeviceFeed, tally: SplitTally, dataset: Any, wanted: list[int]
) -> dict[int, PredictedImage]:
    """Add this rank's images to ``tally``, and return pictures of the images in ``wanted``. Calls
    no collective.
    """
    shown: dict[int, PredictedImage] = {}
    for _, (indices, images, masks) in batches:
        truth, guess, *numbers = predict(images, masks)
        tally.add(indices, truth, guess, *numbers)
        for position, index in enumerate(int(index) for index in indices):
            if index in wanted:
                part = slice(position, position + 1)
                shown[index] = _picture(dataset, index, images[part], truth[part], guess[part])
        batches.ahead()
    return shown


def _predictor(
    forward: Forward,
    view: View,
    size: Size | None,
    device: torch.device,
    form: tuple[Any, ...],
    criterion: Criterion | None,
) -> Predict:
    """A function that maps images (n, H, W, bands) and masks (n, H, W) to (truth, predicted ids,
    nonfinite, losses).

    All four are on the device. Truth (resized by nearest neighbor) and ids have the ``size``, or
    that of the masks. nonfinite is bool (n,): whether a logit is NaN or infinite. losses: see
    ``LossReader.numbers``. ``form``: of normalized images, see ``normalize``.
    """

    def predict(images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        nonfinite: list[Tensor] = []
        truth = widened(masks.to(device, non_blocking=True))
        truth = nearest(truth, size) if size else truth
        inputs = normalize(images.to(device, non_blocking=True), *form)
        losses = LossReader(criterion, truth) if criterion else None
        shape = (truth.shape[-2], truth.shape[-1])
        ids = predict_ids(forward, inputs, view, shape, nonfinite, losses)
        none = torch.zeros(len(truth), 0, dtype=torch.float64, device=device)
        return truth, ids, torch.stack(nonfinite).any(0), losses.numbers if losses else none

    return predict


def _forward(model: nn.Module, device: torch.device, precision: str) -> Forward:
    def forward(images: Tensor) -> Tensor:
        with autocast(device.type, precision):
            return model(images)

    return forward


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode. Afterwards, restore the mode of each layer: a frozen batch
    norm has its own.

    Turns off the benchmark mode of cuDNN and layers that are compiled, which would take seconds for
    each image size. The benchmark's timings could also lead ranks to different kernels, whose
    logits differ in the last bits.
    """
    modes = [(module, module.training) for module in model.modules()]
    benchmark = torch.backends.cudnn.benchmark
    model.eval()
    torch.backends.cudnn.benchmark = False
    try:
        with uncompiled(model):
            yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        for module, training in modes:
            module.training = training


def _spread(count: int, wanted: int) -> list[int]:
    """``wanted`` of ``count`` indices, evenly spaced."""
    wanted = min(count, wanted)
    return [(2 * i + 1) * count // (2 * wanted) for i in range(wanted)]


def _picture(
    dataset: Any, index: int, image: Tensor, truth: Tensor, guess: Tensor
) -> PredictedImage:
    """Copies of an image (1, H, W, bands), resized to (h, w), and of its truth and prediction (1,
    h, w).
    """
    size = (truth.shape[-2], truth.shape[-1])
    if image.dtype != torch.uint8:
        image = torch.from_numpy(visible(image[0].cpu().numpy()))[None]
    pixels = (
        resize(image.permute(0, 3, 1, 2).float(), size).permute(0, 2, 3, 1)[0].round().clamp(0, 255)
    )
    parts = pixels.to(torch.uint8), guess[0], truth[0]
    arrays = [part.to("cpu", copy=True).numpy() for part in parts]
    return PredictedImage(str(dataset.entries[index].image), *arrays)


def protocol(
    dataset: Any,
    settings: config.Eval,
    view: View,
    sizes: list[Size],
    precision: str,
    labels: bytes,
) -> dict[str, Any]:
    """Everything that a score depends on, except the weights, as plain values. ``line`` is a
    readable summary. ``labels``: the labels of the masks, as numbers of pixels.

    Two scores can be compared only if their protocols are equal. In the result, ``size`` is None if
    the masks have different sizes, and ``labels_resized`` says whether masks were resized. Example
    of ``line``:
    ``11 classes, void 255 ignored, 360x480, whole image, scale 1, no flip, fp32, camvid val: 101
    images #3fa92c``.
    """
    own, size = {tuple(size) for size in sizes}, settings.size
    names = dataset.labels.names
    counted = counted_classes(settings, names)
    common = size or (next(iter(own)) if len(own) == 1 else None)
    facts = {
        "data": dataset.name,
        "split": dataset.split,
        "images": len(dataset),
        "split_hash": hashlib.sha256(dataset.fingerprint().encode() + labels).hexdigest()[:12],
        "classes": dataset.labels.num_classes,
        "void": dataset.labels.ignore_index,
        "size": list(common) if common else None,
        "labels_resized": size is not None and own != {tuple(size)},
        "tile": list(view.tile) if view.tile else None,
        "overlap": view.overlap if view.tile else None,
        "scales": list(view.scales),
        "flip": view.flip,
        "precision": precision,
        **({"mean_over": [names[c] for c in counted]} if counted is not None else {}),
        **({"region": settings.region} if settings.region else {}),
    }
    shape = f"{common[0]}x{common[1]}" if common else "each mask's own size"
    line = [
        f"{facts['classes']} classes",
        f"void {facts['void']} ignored",
        f"labels resized to {shape}" if facts["labels_resized"] else shape,
        f"windows {view.tile[0]}x{view.tile[1]} overlap {view.overlap:g}"
        if view.tile
        else "whole image",
        f"scale{'s' * (len(view.scales) > 1)} {' '.join(f'{scale:g}' for scale in view.scales)}",
        "flip" if view.flip else "no flip",
        precision,
        *([f"mean over {' '.join(facts['mean_over'])}"] if counted is not None else []),
        *([f"inside {settings.region}"] if settings.region else []),
        f"{facts['data']} {facts['split']}: {facts['images']} images #{facts['split_hash']}",
    ]
    return {**facts, "line": ", ".join(line)}

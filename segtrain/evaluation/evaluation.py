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
from segtrain.data.labels.space import LabelSpace
from segtrain.data.order import eval_groups
from segtrain.data.pixels.bands import visible
from segtrain.data.train_loader import EvalLoader, image_sizes, normalize, widened
from segtrain.data.workers.pool import WorkerPool
from segtrain.errors import DataError
from segtrain.evaluation.image_scores import ImageScores, counts
from segtrain.evaluation.tiles import Forward, Size, View, nearest, predict_ids, resize
from segtrain.metrics import Scores, confusions, nonfinite_logits, refuse_unknown
from segtrain.models.base import normalization
from segtrain.observe.pictures import PredictedImage

# Batches between two copies of results from the device to the host.
_AT_ONCE = 64
Predict = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


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
    pictures: tuple[PredictedImage, ...] = ()  # on rank 0
    worst: tuple[PredictedImage, ...] = ()  # on rank 0, the worst first
    best: tuple[PredictedImage, ...] = ()  # on rank 0, the best first
    seconds: float = field(default=0.0, compare=False)  # time of this rank until the all-reduce

    def to_dict(self) -> dict[str, Any]:
        """The scores as fractions, the protocol, and the seconds, as values for JSON."""
        return {
            **self.scores.to_dict(),
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
    best.
    An error on one rank is raised on every rank, so that no rank waits forever.
    """
    start, device = time.perf_counter(), torch.device(device)
    view = View.of(settings, base_scale, dataset.labels.mirror)
    wanted = _spread(len(dataset), pictures) if rank == 0 else []
    tally = _Tally(dataset.labels, len(dataset), device)
    failure: Exception | None = None
    with _evaluating(model), tf32(precision == "tf32"), torch.inference_mode():
        form = *normalization(model), channels_last
        predict = _predictor(_forward(model, device, precision), view, settings.size, device, form)
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
        table, images, nonfinite = tally.sum_over_ranks(
            failure, all_reduce if world_size > 1 else None
        )
        if nonfinite:
            raise nonfinite_logits([str(dataset.entries[index].image) for index in nonfinite])
        worst, best = images.extremes(extremes) if rank == 0 else ([], [])
        for index in [*wanted, *worst, *best]:
            if index not in shown:
                # Copies, because the arrays may be read-only.
                image, mask = (torch.tensor(array)[None] for array in dataset.read(index))
                shown[index] = _picture(dataset, index, image, *predict(image, mask)[:2])
    labels = table.sum(1).tobytes() + images.pixels.tobytes()
    facts = protocol(dataset, settings.size, view, sizes, precision, labels)
    spread, worst_shown, best_shown = (
        tuple(shown[index] for index in some) for some in (wanted, worst, best)
    )
    return Evaluation(
        Scores.from_confusion(table), table, facts, images, spread, worst_shown, best_shown, seconds
    )


def _loop(
    predict: Predict, batches: DeviceFeed, tally: _Tally, dataset: Any, wanted: list[int]
) -> dict[int, PredictedImage]:
    """Add this rank's images to ``tally``, and return pictures of the images in ``wanted``. Calls
    no collective.
    """
    shown: dict[int, PredictedImage] = {}
    for _, (indices, images, masks) in batches:
        truth, guess, nonfinite = predict(images, masks)
        tally.add(indices, truth, guess, nonfinite)
        for position, index in enumerate(int(index) for index in indices):
            if index in wanted:
                part = slice(position, position + 1)
                shown[index] = _picture(dataset, index, images[part], truth[part], guess[part])
        batches.ahead()
    return shown


class _Tally:
    """Results of this rank: a confusion matrix int64 (C, C) on the device, and a row of numbers for
    each image.
    """

    def __init__(self, labels: LabelSpace, images: int, device: torch.device) -> None:
        classes, self._ignore_index = labels.num_classes, labels.ignore_index
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=device)
        # A row per image: how often it was seen, its ``counts``, and whether a logit was not
        # finite.
        # The row of an image that this rank has not seen is all 0.
        self.images = torch.zeros(images, 2 + 3 * classes, dtype=torch.int64)
        self._fresh: list[tuple[list[int], Tensor]] = []
        # unknown ids raise in ``settle``, which waits for a GPU anyway
        self._unread: list[Tensor] = []

    def add(self, indices: Any, truth: Tensor, guess: Tensor, nonfinite: Tensor) -> None:
        tables = confusions(guess, truth, len(self.confusion), self._ignore_index, self._unread)
        self.confusion += tables.sum(0)
        # All numbers are in one tensor, so that ``settle`` copies them to the host at once.
        found = torch.cat([counts(tables).flatten(1), nonfinite[:, None]], 1)
        self._fresh.append(([int(index) for index in indices], found))
        if len(self._fresh) >= _AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Copy the counts of the images added since the last call. Waits for the device, so ``add``
        rarely calls it.
        """
        if not self._fresh:
            return
        refuse_unknown(self._unread, len(self.confusion), self._ignore_index)
        self._unread = []
        seen = torch.tensor([index for indices, _ in self._fresh for index in indices])
        found = torch.cat([found for _, found in self._fresh]).cpu()
        self._fresh = []
        self.images[:, 0] += torch.bincount(seen, minlength=len(self.images))
        self.images[seen, 1:] = found

    def sum_over_ranks(
        self, failure: Exception | None, all_reduce: Callable[[Tensor], Tensor] | None
    ) -> tuple[np.ndarray, ImageScores, list[int]]:
        """The confusion matrix, the image scores, and the indices of images with nonfinite logits,
        of all ranks.

        Calls the only collective of the evaluation. Raises ``failure``, or DataError if another
        rank has failed.
        """
        failed = torch.tensor([failure is not None], dtype=torch.int64)
        own = torch.cat([self.images.flatten(), failed])
        message = torch.cat([self.confusion.flatten(), own.to(self.confusion.device)])
        message = (all_reduce(message) if all_reduce else message).cpu()
        if failure is not None:
            raise failure
        if message[-1]:
            ranks = int(message[-1])
            why = (
                f"the evaluation failed on {ranks} other rank{'s' * (ranks > 1)}: see the "
                "error message there"
            )
            error = DataError(why, code="other-rank-failed", ranks=ranks)
            # The rank that failed reports the cause.
            error.silent = True
            raise error
        images = message[self.confusion.numel() : -1].view_as(self.images).numpy()
        wrong = np.flatnonzero(images[:, 0] != 1).tolist()
        if wrong:
            first = f"image {wrong[0]}: {int(images[wrong[0], 0])} times"
            why = f"{len(wrong)} of {len(images)} images were not counted exactly once ({first})"
            fix = "the ranks must see the same files in the same order"
            raise DataError(
                f"{why}: {fix}",
                code="images-not-counted-once",
                found=len(wrong),
                images=len(images),
            )
        table = message[: self.confusion.numel()].view_as(self.confusion).numpy().copy()
        scores = ImageScores.from_counts(images[:, 1:-1].reshape(len(images), 3, -1))
        return table, scores, np.flatnonzero(images[:, -1]).tolist()


def _predictor(
    forward: Forward, view: View, size: Size | None, device: torch.device, form: tuple[Any, ...]
) -> Predict:
    """A function that maps images (n, H, W, bands) and masks (n, H, W) to (truth, predicted ids,
    nonfinite).

    All three are on the device. Truth (resized by nearest neighbor) and ids have the ``size``, or
    that of the masks. nonfinite is bool (n,): whether a logit is NaN or infinite. ``form``: of
    normalized images, see ``normalize``.
    """

    def predict(images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nonfinite: list[Tensor] = []
        truth = widened(masks.to(device, non_blocking=True))
        truth = nearest(truth, size) if size else truth
        inputs = normalize(images.to(device, non_blocking=True), *form)
        ids = predict_ids(forward, inputs, view, (truth.shape[-2], truth.shape[-1]), nonfinite)
        return truth, ids, torch.stack(nonfinite).any(0)

    return predict


def _forward(model: nn.Module, device: torch.device, precision: str) -> Forward:
    def forward(images: Tensor) -> Tensor:
        with autocast(device.type, precision):
            return model(images)

    return forward


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
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
    size: Size | None,
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
    own = {tuple(size) for size in sizes}
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
        f"{facts['data']} {facts['split']}: {facts['images']} images #{facts['split_hash']}",
    ]
    return {**facts, "line": ", ".join(line)}

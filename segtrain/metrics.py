"""Scores of predictions: an int64 confusion matrix, and IoU, Dice, and accuracy from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from segtrain.base.bins import add_up
from segtrain.errors import DataError, SegtrainError, some_of


@torch.no_grad()
def predict_classes(logits: Tensor, nonfinite: list[Tensor] | None = None) -> Tensor:
    """Class of the largest logit; the lowest class on a tie. (N, C, H, W) -> uint8 (N, H, W), int64
    above 256 classes.

    nonfinite: a list, to which a bool tensor (N,) is appended. It says for each image whether the
    largest logit of any pixel is NaN or infinite.
    """
    dtype = torch.uint8 if logits.shape[1] <= 256 else torch.int64
    if logits.device.type != "cpu" or not logits.is_contiguous():
        # torch documents that max gives the first of equal maxima.
        best, classes = logits.max(1)
        _note_nonfinite(best, nonfinite)
        return classes.to(dtype)
    # On a CPU, one plane after another takes less time than max(1), and far less than argmax(1).
    best = logits[:, 0].clone()
    classes = torch.zeros(best.shape, dtype=dtype, device=logits.device)
    for c in range(1, logits.shape[1]):
        plane = logits[:, c]
        classes.masked_fill_(plane > best, c)
        torch.maximum(best, plane, out=best)
    _note_nonfinite(best, nonfinite)
    return classes


def _note_nonfinite(best: Tensor, nonfinite: list[Tensor] | None) -> None:
    """Append which images of ``best`` (N, H, W) hold NaN or an infinity. Does not wait for a
    GPU.
    """
    if nonfinite is not None:
        nonfinite.append(~torch.stack(best.flatten(1).aminmax(dim=1)).isfinite().all(0))


def nonfinite_logits(images: list[str]) -> SegtrainError:
    """The error for a model whose logits on these images are NaN or infinite."""
    why = f"the model's logits are NaN or infinite on {len(images)} image{'s' * (len(images) > 1)}"
    fix = (
        "look for a division by zero, a logarithm, or an overflow in the model, or try "
        "train.precision=fp32"
    )
    return SegtrainError(
        f"{why} ({some_of(images, 3)}): {fix}", code="logits-not-finite", images=images
    )


def confusions(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    ignore_index: int = 255,
    later: list[Tensor] | None = None,
) -> Tensor:
    """int64 (N, C, C): pixels of each of N images by true class (row) and predicted class (column).

    pred, target: integers (N, ...) of any type. Pixels whose target is ``ignore_index`` do not
    count. Raises DataError if either holds another id outside 0..C-1; it names the smallest and the
    largest. This check waits for a GPU. If the list ``later`` is given, nothing is checked here.
    Instead, a tensor on the device is appended to the list, and ``refuse_unknown`` checks it.
    """
    if pred.shape != target.shape:
        why = (
            f"prediction {tuple(pred.shape)} and target {tuple(target.shape)} differ in shape: "
            "resize one first"
        )
        raise DataError(why, code="prediction-shape")
    images, cells = len(pred), num_classes * num_classes
    valid = target != ignore_index
    # For each image, bin 0 is for void and the last one for ids outside 0..C-1. int32 is the
    # fastest type.
    index = torch.where(valid, target.int() * num_classes + pred.int() + 1, 0)
    if target.dtype != torch.uint8:
        index = torch.where(valid & (target < 0), cells + 1, index)
    index = index.clamp_(0, cells + 1).flatten(1)
    if images > 1:
        wide = index if images * (cells + 2) < 2**31 else index.long()
        index = wide + torch.arange(images, dtype=wide.dtype, device=wide.device)[:, None] * (
            cells + 2
        )
    # On a CPU bincount is faster.
    count = histogram if index.is_cuda else torch.bincount
    counts = count(index.flatten(), minlength=images * (cells + 2)).view(images, cells + 2)
    tables = counts[:, 1:-1].view(images, num_classes, num_classes)
    ends = (
        [*pred.aminmax(), *torch.where(valid, target, 0).aminmax()]
        if pred.numel()
        else [*counts.new_zeros(4)]
    )
    found = torch.stack([*(end.long() for end in ends), counts[:, -1].sum()])
    if later is None:
        refuse_unknown([found], num_classes, ignore_index)
    else:
        later.append(found)
    return tables


def histogram(index: Tensor, minlength: int) -> Tensor:
    """int64 (minlength,): ``torch.bincount`` of ids below ``minlength``, without waiting for a
    GPU.
    """
    return add_up(
        minlength, index, torch.ones((), dtype=torch.int64, device=index.device).expand(len(index))
    )


def refuse_unknown(later: list[Tensor], num_classes: int, ignore_index: int = 255) -> None:
    """Check what ``confusions`` appended to ``later``. Raises DataError for unknown ids. Waits once
    for the device.
    """
    for least, most, *ids, unknown in torch.stack(later).tolist() if later else []:
        if least < 0 or most >= num_classes:
            why = (
                f"the prediction holds classes {least}..{most} instead of "
                f"0..{num_classes - 1}: use another model"
            )
            raise DataError(
                why, code="prediction-classes", found=(least, most), expected=num_classes
            )
        if unknown:
            wrong = sorted({end for end in ids if not 0 <= end < num_classes})
            known = f"classes are 0..{num_classes - 1}, and {ignore_index} is void"
            why = (
                f"{unknown} pixels of the target have ids such as {wrong}, but {known}: map "
                "them in data.label_map"
            )
            raise DataError(why, code="unknown-ids", pixels=unknown, found=wrong)


@dataclass(frozen=True)
class Scores:
    """Scores in [0, 1], as Python floats made from integer counts: equal counts give equal scores
    to the last bit.

    A class that is neither in the target nor predicted has no score (nan), and does not count in
    the means. A class that is only predicted has IoU and Dice 0, which count in the means, and no
    accuracy (recall). One that is never predicted has no precision. Without any pixel, every score
    is nan.
    """

    miou: float
    mean_dice: float
    accuracy: float  # share of the pixels that are correct
    mean_accuracy: float  # mean of ``class_accuracy``
    mean_precision: float
    iou: tuple[float, ...]
    dice: tuple[float, ...]
    class_accuracy: tuple[float, ...]
    precision: tuple[float, ...]
    pixels: tuple[int, ...]  # of each class in the target
    predicted: tuple[int, ...]  # of each class in the prediction
    counted: tuple[int, ...]  # the classes that the means are over

    @property
    def classes_present(self) -> int:
        """Number of counted classes with a pixel in the target."""
        return sum(self.pixels[c] > 0 for c in self.counted)

    @classmethod
    def from_confusion(cls, counts: Any, counted: Sequence[int] | None = None) -> Scores:
        """Scores of a confusion matrix: (C, C) integers (tensor, array, or lists), a row per class
        of the target. ``counted``: the classes that the means are over; None: all.
        """
        table = torch.as_tensor(counts)
        hits, pixels, predicted = (
            part.tolist() for part in (table.diagonal(), table.sum(1), table.sum(0))
        )
        iou = tuple(
            _ratio(hit, truth + guess - hit) for hit, truth, guess in zip(hits, pixels, predicted)
        )
        dice = tuple(
            _ratio(2 * hit, truth + guess) for hit, truth, guess in zip(hits, pixels, predicted)
        )
        recall, precision = tuple(map(_ratio, hits, pixels)), tuple(map(_ratio, hits, predicted))
        counted = tuple(range(len(iou)) if counted is None else counted)
        means = (
            mean_of_known([values[c] for c in counted]) for values in (iou, dice, recall, precision)
        )
        miou, mean_dice, mean_accuracy, mean_precision = means
        return cls(
            miou=miou,
            mean_dice=mean_dice,
            accuracy=_ratio(sum(hits), sum(pixels)),
            mean_accuracy=mean_accuracy,
            mean_precision=mean_precision,
            iou=iou,
            dice=dice,
            class_accuracy=recall,
            precision=precision,
            pixels=tuple(pixels),
            predicted=tuple(predicted),
            counted=counted,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; nan becomes None. ``classes`` and ``classes_present``: the number
        of counted classes, and of those in the target.
        """
        values = asdict(self) | {"classes": len(self.counted)}
        del values["counted"]
        return plain(values | {"classes_present": self.classes_present})

    def table(self, names: Sequence[str]) -> str:
        """One line per class and one of means; the last columns show the share of pixels in truth
        and prediction.
        """
        found, expected = len(names), len(self.iou)
        if found != expected:
            why = f"{found} class names for {expected} classes: give one name per class"
            raise DataError(why, code="class-names-count", found=found, expected=expected)
        width = max(len("all classes"), *map(len, names))
        total = max(1, sum(self.pixels))
        lines = [f"{'class':{width}}    IoU   Dice  recall  precision   truth  predicted"]
        for c, name in enumerate(names):
            scores = _cells(self.iou[c], self.dice[c], self.class_accuracy[c], self.precision[c])
            shares = f"{self.pixels[c] / total:>7.2%} {self.predicted[c] / total:>10.2%}"
            lines.append(f"{name:{width}} {scores}  {shares}")
        present = self.classes_present
        classes = len(self.counted)
        few = f" ({present} of {classes} classes)" if present < classes else ""
        means = _cells(self.miou, self.mean_dice, self.mean_accuracy, self.mean_precision)
        over = "all classes" if classes == len(names) else "mean"
        lines.append(
            f"{over:{width}} {means}   pixel accuracy {_percent(self.accuracy).strip()} %{few}"
        )
        return "\n".join(lines)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def mean_of_known(values: Sequence[float]) -> float:
    """The mean without NaN, rounded once, so that it does not depend on the order."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _cells(iou: float, dice: float, recall: float, precision: float) -> str:
    return f"{' '.join(map(_percent, (iou, dice, recall)))} {_percent(precision):>10}"


def _percent(value: float) -> str:
    return f"{'-':>6}" if math.isnan(value) else f"{100 * value:6.2f}"


def plain(value: Any) -> Any:
    """A value for JSON: NaN becomes None, also in lists and mappings."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value

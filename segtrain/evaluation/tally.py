"""Results of one rank: the confusion matrix and the numbers of each image, which the ranks add up
once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segtrain.data.labels.space import LabelSpace
from segtrain.errors import DataError
from segtrain.evaluation.hausdorff import hausdorff
from segtrain.evaluation.image_scores import counts
from segtrain.losses import Criterion
from segtrain.metrics import confusions, refuse_unknown

# Batches between two copies of results from the device to the host.
_AT_ONCE = 64


class SplitTally:
    """Results of this rank: a confusion matrix int64 (C, C) on the device, and a row of numbers for
    each image.
    """

    def __init__(
        self,
        labels: LabelSpace,
        images: int,
        device: torch.device,
        criterion: Criterion | None = None,
        distances: bool = False,
    ) -> None:
        classes, self._ignore_index = labels.num_classes, labels.ignore_index
        self._distances = distances
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=device)
        # A row per image: how often it was seen, its ``counts``, whether a logit was not finite,
        # and the bits of float64 numbers: of the loss, and the Hausdorff distance of each class.
        # The row of an image that this rank has not seen is all 0, so the sum over ranks has the
        # bits of the one rank that has.
        numbers = 2 * len(criterion.terms if criterion else ()) + classes * distances
        self._counts = 1 + 3 * classes
        self.images = torch.zeros(images, self._counts + 1 + numbers, dtype=torch.int64)
        self._fresh: list[tuple[list[int], Tensor]] = []
        # unknown ids raise in ``settle``, which waits for a GPU anyway
        self._unread: list[Tensor] = []

    def add(
        self, indices: Any, truth: Tensor, guess: Tensor, nonfinite: Tensor, losses: Tensor
    ) -> None:
        tables = confusions(guess, truth, len(self.confusion), self._ignore_index, self._unread)
        self.confusion += tables.sum(0)
        # All numbers are in one tensor, so that ``settle`` copies them to the host at once.
        own = [counts(tables).flatten(1), nonfinite[:, None], losses.view(torch.int64)]
        if self._distances:
            own.append(self._measured(truth, guess).view(torch.int64))
        found = torch.cat(own, 1)
        self._fresh.append(([int(index) for index in indices], found))
        if len(self._fresh) >= _AT_ONCE:
            self.settle()

    def _measured(self, truth: Tensor, guess: Tensor) -> Tensor:
        """Hausdorff distances, float64 (n, C). Waits for the device."""
        pairs = zip(truth.cpu().numpy(), guess.cpu().numpy())
        classes, void = len(self.confusion), self._ignore_index
        rows = [hausdorff(*pair, classes, void) for pair in pairs]
        return torch.tensor(rows, dtype=torch.float64, device=truth.device)

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
    ) -> tuple[np.ndarray, np.ndarray, list[int], np.ndarray]:
        """The confusion matrix, the ``counts`` (N, 3, C) of the images, the indices of those with
        nonfinite logits, and the float64 numbers (N, n) of the images, of all ranks.

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
        end = self._counts
        found = images[:, 1:end].reshape(len(images), 3, -1)
        numbers = np.ascontiguousarray(images[:, end + 1 :]).view(np.float64)
        return table, found, np.flatnonzero(images[:, end]).tolist(), numbers

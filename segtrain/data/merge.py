"""Merges the masks that several annotators made of the same images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from segtrain.data.annotations.dataset import SHAPES
from segtrain.data.dataset import Dataset
from segtrain.errors import DataError, some_of


def merged(ids: np.ndarray, rule: str, background: int, void: int) -> np.ndarray:
    """Class ids (H, W) of those of each annotator, uint8 or uint16 (N, H, W).

    A class that all annotators chose stays. Of other pixels, ``majority`` takes the class of more
    than half of them, ``union`` the only class besides the background, and ``intersection`` the
    background if none is void. All others become void.
    """
    agreed = (ids == ids[0]).all(0)
    result = np.where(agreed, ids[0], void)
    if rule == "majority":
        for value in np.unique(ids):
            result[2 * (ids == value).sum(0) > len(ids)] = value
    elif rule == "union":
        drawn = (ids != background) & (ids != void)
        lowest = np.where(drawn, ids, np.iinfo(ids.dtype).max).min(0)
        highest = np.where(drawn, ids, 0).max(0)
        np.copyto(result, lowest, where=lowest == highest)
    elif rule == "intersection":
        result[~agreed & (ids != void).all(0)] = background
    return result


def refuse_other_images(dataset: Dataset, others: Sequence[Dataset]) -> None:
    """Raise DataError if other annotators have masks of other images, or other classes, or the same
    masks.
    """
    names = [entry.meta["name"] for entry in dataset.entries]
    seen = [_masks(dataset)]
    for other in others:
        theirs = [entry.meta["name"] for entry in other.entries]
        if theirs != names or other.labels.names != dataset.labels.names:
            unlike = sorted({*names} ^ {*theirs}) or [*dataset.labels.names, *other.labels.names]
            raise DataError(
                f"{dataset.name} {dataset.split}: the annotators have other images or classes: "
                f"{some_of(unlike)}: merge those that all have (data.absent_mask=leave-out)",
                code="annotators-differ",
                found=unlike[:5],
            )
        if _masks(other) in seen:
            first = other.entries[0].mask
            raise DataError(
                f"{dataset.name} {dataset.split}: --annotator names the masks of an annotator "
                f"before it, such as {first}: name those of another one",
                code="annotator-repeated",
                found=first,
            )
        seen.append(_masks(other))


def _masks(dataset: Dataset) -> list[str | None]:
    """The shapes or the mask file of each image. One file may have the shapes of several people."""
    files = [entry.mask for entry in dataset.entries]
    return [*getattr(dataset.entries, "meta", {}).get(SHAPES, files)]

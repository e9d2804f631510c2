"""Mean and standard deviation of each band, measured on images of a split."""

from __future__ import annotations

import numpy as np

from segtrain.bucket.faults import ignoring_file_faults
from segtrain.config import Data
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.dataset import Dataset
from segtrain.data.pixels.bands import BandImage

# At most this many images are read, evenly drawn.
_IMAGES = 100
Numbers = tuple[float, ...]


def bands_finding(data: Data, dataset: Dataset) -> SplitFinding | None:
    """A finding with ``data.mean`` and ``data.std`` of ``dataset``, if stored values need them."""
    if not data.stored or (data.mean and data.std):
        return None
    step = max(1, len(dataset) // _IMAGES)
    indices = range(step // 2, len(dataset), step)
    mean, std, images = _measured(dataset, indices)
    if not images:
        return None
    return SplitFinding(
        f"data.mean and data.std are not set: measured on {images} of {len(dataset):,} images of "
        f"{dataset.split}",
        settings={"data.mean": mean, "data.std": std},
    )


def _measured(dataset: Dataset, indices: range) -> tuple[Numbers, Numbers, int]:
    """Mean and standard deviation of each band over the values that are not missing, to six
    figures, and the number of images read. Faulty files are left out.
    """
    sums, images = np.zeros((3, dataset.reading.pixels.channels)), 0
    for index in indices:
        with ignoring_file_faults():
            image = dataset.stored_image(index)
            assert isinstance(image, BandImage)
            values = image.values().astype(np.float64)
            sums += np.nansum([values, values**2, np.isfinite(values)], axis=(1, 2))
            images += 1
    total, squares, count = sums
    count = np.maximum(count, 1)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    std[std == 0] = 1.0  # a constant band
    short_mean, short_std = (tuple(float(f"{value:.6g}") for value in part) for part in (mean, std))
    return short_mean, short_std, images

"""The second account's preprocessing: ten Gaussian blurs of 11x11 on a sample, and cheaper ways to
the same end.

Each is a value of ``data.transforms``: a function of (image, mask, rng) that returns a blurred
image and the mask.
"""

from __future__ import annotations

import cv2
import numpy as np

COUNT, SIDE, SIGMAS = 10, 11, (0.1, 2.0)  # torchvision's own range of sigma


def sigmas(rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(*SIGMAS, COUNT)


def ten(
    image: np.ndarray, mask: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """With torchvision, as in the account."""
    return _by_torchvision(image, sigmas(rng).tolist()), mask


def _by_torchvision(image: np.ndarray, widths: list[float]) -> np.ndarray:
    import torch
    import torchvision.transforms.v2.functional as functional

    pixels = torch.from_numpy(image).permute(2, 0, 1)
    for sigma in widths:
        pixels = functional.gaussian_blur(pixels, [SIDE, SIDE], [sigma, sigma])
    return pixels.permute(1, 2, 0).contiguous().numpy()


def ten_by_opencv(
    image: np.ndarray, mask: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The same blurs; OpenCV blurs rows and columns one after the other."""
    for sigma in sigmas(rng).tolist():
        image = cv2.GaussianBlur(image, (SIDE, SIDE), sigma)
    return image, mask


def one(
    image: np.ndarray, mask: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """One blur whose sigma is that of the ten together."""
    return cv2.GaussianBlur(image, (0, 0), float(np.sqrt(np.sum(sigmas(rng) ** 2)))), mask

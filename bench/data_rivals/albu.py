"""The usual albumentations transform: cv2 decoding, scale, crop, flip, color, Normalize,
ToTensorV2.

OpenCV's own threads are off, as albumentations' guide for loaders with workers advises.
"""

from __future__ import annotations

import albumentations as A
import cv2
import numpy as np
import torch
from common import FILL, FLIP, HUE, IGNORE, JITTER, JITTER_P, MEAN, SCALE, STD, draw_scale


class LogUniformScale(A.RandomScale):
    """RandomScale itself draws uniformly."""

    def get_params(self) -> dict[str, float]:
        return {"scale": draw_scale(self.py_random.random(), uniform=False)}


def transform(crop: tuple[int, int], uniform: bool, crop_first: bool = False) -> A.Compose:
    """``crop_first``: RandomResizedCrop, which never resizes more than the crop; not the same
    distribution of crops.
    """
    height, width = crop
    around = (1 - JITTER, 1 + JITTER)
    if crop_first:
        cut = [
            A.RandomResizedCrop(
                (height, width), scale=(0.0625, 1.0), ratio=(width / height, width / height)
            )
        ]
    else:
        kind = A.RandomScale if uniform else LogUniformScale
        scale = kind(scale_limit=(SCALE[0] - 1, SCALE[1] - 1), p=1.0)
        cut = [scale, A.RandomCrop(height, width, pad_if_needed=True, fill=FILL, fill_mask=IGNORE)]
    return A.Compose(
        [
            *cut,
            A.HorizontalFlip(p=FLIP),
            A.ColorJitter(
                brightness=around, contrast=around, saturation=around, hue=(-HUE, HUE), p=JITTER_P
            ),
            A.Normalize(MEAN, STD),
            A.ToTensorV2(),
        ]
    )


def augmented(
    transform: A.Compose, image: np.ndarray, mask: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    sample = transform(image=image, mask=mask)
    return sample["image"], sample["mask"]


def read(image: str, mask: str) -> tuple[np.ndarray, np.ndarray]:
    """Files to arrays: RGB (H, W, 3) and ids (H, W)."""
    cv2.setNumThreads(0)
    return cv2.cvtColor(cv2.imread(image), cv2.COLOR_BGR2RGB), cv2.imread(
        mask, cv2.IMREAD_UNCHANGED
    )


def decode(image: bytes, mask: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The same from bytes."""
    cv2.setNumThreads(0)
    pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), cv2.imdecode(
        np.frombuffer(mask, np.uint8), cv2.IMREAD_UNCHANGED
    )

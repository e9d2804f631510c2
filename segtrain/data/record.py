"""What is one sample before anything is decoded?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

import numpy as np

Stored = Union[bytes, memoryview, np.ndarray]


@dataclass(frozen=True)
class StoredSample:
    """An image and its mask in their stored form; the names are for messages ("shard-000003.tar: 000123.jpg")."""

    image: Stored  # a file's content, or decoded pixels uint8 (H, W, 3) RGB
    mask: Stored | None  # a file's content, or ids uint8 (H, W); None: there is none
    image_name: str
    mask_name: str
    ids: Literal["raw", "train"]  # what numbers ``mask`` holds where it is an array

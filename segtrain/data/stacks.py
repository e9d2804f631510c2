"""Stacks of images and of masks in .npy and .npz files and in TIFFs of several pages, such as
``train_images.npy`` (N, H, W, C) and ``train_masks.npy`` (N, H, W).
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import numpy as np

from segtrain.base.terminal import Say
from segtrain.data.index.detect_pairs import MASK_WORDS, SPLITS
from segtrain.data.index.split_by import POOL
from segtrain.data.pixels.array_mask import ids_in
from segtrain.data.pixels.header import read_header
from segtrain.errors import DataError, file_error

# Words in the names of stacks of masks.
_MASKS = {*MASK_WORDS, "y", "seg", "segs"}
_FIX = "save one stack of images (N, H, W, C) and one of integer masks (N, H, W) for each split"
# Images (N, H, W, C), and masks (N, H, W), maybe with a plane per class.
Stack = tuple[np.ndarray, np.ndarray]


def has_pages(path: Path) -> bool:
    """Whether a file is a TIFF of several images."""
    with contextlib.suppress(DataError):
        return read_header(path).pages > 1
    return False


def stacks_in(folder: str, say: Say) -> dict[str, Stack]:
    """The stacks of each split in a folder; {} if it holds none. Images without masks are left out
    if another split has masks. Raises DataError if the images and masks of a split do not fit.
    """
    stacks: dict[str, dict[bool, tuple[str, np.ndarray]]] = {}
    for name, array in _arrays(folder).items():
        if array.ndim < 3:
            continue
        words = re.findall("[a-z]+", name.lower())
        split = next((word for word in words if word in SPLITS), POOL)
        kind = bool(_MASKS & {*words})
        other, _ = stacks.setdefault(split, {}).setdefault(kind, (name, array))
        if other != name:
            message = f"{folder}: both {other} and {name} may hold the {split} stack: {_FIX}"
            raise DataError(message, code="stacks-unfit", folder=folder, split=split)
    whole = {split: parts for split, parts in stacks.items() if True in parts} or stacks
    for split in stacks.keys() - whole:
        say(f"{folder}: {stacks[split][False][0]} has no masks, and is left out")
    return {split: _fitting(folder, split, parts) for split, parts in whole.items()}


def _arrays(folder: str) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for path in sorted(Path(folder).iterdir()):
        try:
            arrays |= _arrays_in(path)
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            message = f"cannot be read ({error}): write it again"
            raise file_error(str(path), message, code="array-unreadable") from None
    return arrays


def _arrays_in(path: Path) -> dict[str, np.ndarray]:
    from PIL import Image, ImageSequence

    if path.suffix == ".npy":
        return {path.name: np.load(path, mmap_mode="r", allow_pickle=False)}
    if path.suffix == ".npz":
        stored = np.load(path, allow_pickle=False)
        return {f"{path.stem}/{key}": stored[key] for key in stored}
    if not has_pages(path):
        return {}
    with Image.open(path) as pages:
        return {path.name: np.stack([*map(np.array, ImageSequence.Iterator(pages))])}


def _fitting(folder: str, split: str, parts: dict[bool, tuple[str, np.ndarray]]) -> Stack:
    if len(parts) == 2:
        images, masks = parts[False][1], parts[True][1]
        images = images[..., None] if images.ndim == 3 else images
        if images.shape[:3] != masks.shape[:3] == (len(images), *images.shape[2:]):
            images = np.moveaxis(images, 1, -1)  # from (N, C, H, W)
        if images.shape[:3] == masks.shape[:3]:
            return images, masks
    shapes = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in parts.values())
    message = f"{folder}: the {split} stacks do not fit: {shapes}: {_FIX}"
    raise DataError(message, code="stacks-unfit", folder=folder, split=split)


def write_stack(stack: Stack, made: Path, split: str) -> dict[str, int]:
    """Write each image and each mask. Returns the number of masks."""
    for number, (image, mask) in enumerate(zip(*stack)):
        try:
            ids = ids_in(mask)
        except ValueError as error:
            message = f"mask {number} of the {split} stack has {error}: {_FIX}"
            raise DataError(message, code="stacks-unfit", folder=str(made), split=split) from None
        name = os.path.join("" if split == POOL else split, f"{number:06}")
        write_array(made / "images" / name, image)
        write_array(made / "masks" / name, ids)
    return {"masks": len(stack[1])}


def write_array(path: Path, values: np.ndarray) -> None:
    """Write ids (H, W), 8-bit gray, or 8-bit RGB as PNG, other values (H, W, C) as .npy.

    path: without the ending. Its folder is made.
    """
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    if values.ndim == 3 and values.shape[2] == 1 and values.dtype == np.uint8:
        values = values[..., 0]
    if values.ndim == 2 or (values.shape[2] == 3 and values.dtype == np.uint8):
        Image.fromarray(values).save(f"{path}.png")
    else:
        np.save(f"{path}.npy", values)

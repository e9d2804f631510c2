"""Images and masks in arrays: stacks such as ``train_images.npy`` (N, H, W, C) and
``train_masks.npy`` (N, H, W), TIFFs of several pages, and files that hold an image and its mask.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from segtrain.base.terminal import Say
from segtrain.data.index.detect_pairs import IMAGE_WORDS, SPLITS
from segtrain.data.index.split_by import POOL
from segtrain.data.pixels.array_mask import HOLDERS, MASK_WORDS, arrays_in, ids_in, words_in
from segtrain.data.pixels.header import read_header
from segtrain.errors import DataError, SegtrainError, file_error, some_of

# Endings of files of arrays.
ARRAYS = (".npy", *HOLDERS)
_FIX = "save one stack of images (N, H, W, C) and one of integer masks (N, H, W) for each split"
# At most so many values along the last axis of an image are channels.
_CHANNELS = 4
# The names and arrays of images (False) and of masks (True).
Parts = dict[bool, dict[str, np.ndarray]]


def has_pages(path: Path) -> bool:
    """Whether a file is a TIFF of several images."""
    if path.suffix.lower() in (".tif", ".tiff"):
        with contextlib.suppress(DataError):
            return read_header(path).pages > 1
    return False


def write_arrays(folder: str, made: Path, say: Say) -> int:
    """Write each image and each mask in the arrays below a folder. Returns the number of masks.
    Images without masks are left out if others have masks.

    A file may hold images and masks; stacks in other files belong together by their split. Raises
    DataError if images and masks do not fit.
    """
    count, unused = 0, Counter[str]()
    rest = defaultdict[str, Parts](lambda: defaultdict(dict))
    for path in sorted(Path(folder).rglob("*")):
        name, _ = os.path.splitext(path.relative_to(folder))
        for split, parts in _parts_in(path, name).items():
            if parts[False] and parts[True]:
                count += _write(parts, str(path), made, split, unused, name)
            else:
                for kind, arrays in parts.items():
                    rest[split][kind] |= arrays
    for split, parts in rest.items():
        if not parts[True] and (count or any(other[True] for other in rest.values())):
            say(f"{folder}: {min(parts[False])} has no masks, and is left out")
        else:
            count += _write(parts, folder, made, split, unused)
    if unused:
        say(f"{folder}: not read: {some_of([*unused])}")
    return count


def _parts_in(path: Path, name: str) -> dict[str, Parts]:
    """The arrays of each split in a file, which has this name without its ending."""
    found = defaultdict[str, Parts](lambda: defaultdict(dict))
    try:
        for key, array in _arrays_in(path):
            words = re.findall("[a-z]+", f"{name}/{key}".lower())
            split = next((word for word in reversed(words) if word in SPLITS), POOL)
            kind = bool(MASK_WORDS & words_in(key or path.stem))
            found[split][kind][f"{path.name}/{key}".rstrip("/")] = array
    except SegtrainError:
        raise
    except Exception as error:  # such as OSError, zipfile.BadZipFile, MatReadError
        message = f"cannot be read ({error}): write it again"
        raise file_error(str(path), message, code="array-unreadable") from None
    return found


def _arrays_in(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Pairs (name in the file, array)."""
    from PIL import Image, ImageSequence

    if path.suffix.lower() in HOLDERS:
        with path.open("rb") as stream:
            yield from arrays_in(stream, path.name)
    elif path.suffix.lower() == ".npy":
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim > 2:
            yield "", array
    elif has_pages(path):
        with Image.open(path) as pages:
            yield "", np.stack([*map(np.array, ImageSequence.Iterator(pages))])


def _write(
    parts: Parts, where: str, made: Path, split: str, unused: Counter[str], name: str = ""
) -> int:
    """Write the images and masks of two arrays, as ``name`` or with numbers. Returns how many.

    Of several arrays of images, the one with a word such as image in its name is taken; ``unused``
    counts the names of the others. Raises DataError.
    """
    named = {key: array for key, array in parts[False].items() if words_in(key) & {*IMAGE_WORDS}}
    images = named if len(named) == 1 else parts[False]
    unused.update(key.partition("/")[2] for key in parts[False].keys() - images.keys())
    both = [*images.items(), *parts[True].items()]
    pairs = _pairs(both[0][1], *both[1][::-1]) if len(both) == 2 else []
    if not pairs:
        shapes = ", ".join(f"{key} {array.dtype} {array.shape}" for key, array in both)
        raise _unfit(where, split, f"the arrays do not fit: {shapes}")
    for number, (image, mask) in enumerate(pairs):
        try:
            ids = ids_in(mask)
        except ValueError as error:
            raise _unfit(where, split, f"mask {number} has {error}") from None
        ways = [part for part in (name, f"{number:06}" * (len(pairs) > 1 or not name)) if part]
        place = Path("" if split == POOL else split, "_".join(ways))
        write_array(made / "images" / place, image)
        write_array(made / "masks" / place, ids)
    return len(pairs)


def _unfit(where: str, split: str, what: str) -> DataError:
    message = f"{where}: {split}: {what}: {_FIX}"
    return DataError(message, code="stacks-unfit", folder=where, split=split)


def _pairs(images: np.ndarray, masks: np.ndarray, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The images (H, W, C) and masks (H, W), maybe with a plane per class, of two arrays: of one
    image, or of N along the first axis, which is the last one in MATLAB. [] if they do not fit.
    """
    if ".mat/" in name and masks.ndim > 2:
        images, masks = np.moveaxis(images, -1, 0), np.moveaxis(masks, -1, 0)
    for some, of_some in ((images, masks), (images[None], masks[None])):
        if some.ndim == 3 and some.shape[-1] > _CHANNELS:
            some = some[..., None]
        if some.shape[:3] != of_some.shape[:3]:  # from (N, C, H, W)
            some = np.moveaxis(some, 1, -1)
        if some.ndim == 4 and some.shape[:3] == of_some.shape[:3]:
            return [*zip(some, of_some)]
    return []


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

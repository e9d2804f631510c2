"""Cuts pictures that have an image and its mask side by side."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from segtrain.base.terminal import Say, counted
from segtrain.bucket.faults import ignoring_file_faults
from segtrain.data.index.walk import images_below, no_folder
from segtrain.data.pixels import decode
from segtrain.data.pixels.common_colors import common_colors
from segtrain.data.stacks import write_array
from segtrain.data.storage import LOCAL
from segtrain.errors import file_error

# So many pictures are looked at to find the side of the masks.
_FEW = 20


def cut(root: str, folder: Path, side: str, say: Say) -> None:
    """Write the halves of each picture to ``folder``/images and masks, in its folders of splits.
    Raises DataError.

    side: where the masks are, "left" or "right". Gray masks get one channel.
    """
    paths = sorted(images_below(root, LOCAL))
    if not paths:
        raise no_folder(root, "pictures to cut", LOCAL)
    for path in paths:
        pixels = decode.decode_image(os.path.join(root, path))
        if pixels.shape[1] % 2:
            reason = f"is {pixels.shape[1]} pixels wide: an image and its mask have the same width"
            raise file_error(path, reason, code="picture-not-two-halves")
        halves = np.split(pixels, 2, axis=1)
        image, mask = halves if side == "right" else halves[::-1]
        if (mask == mask[..., :1]).all():
            mask = mask[..., 0]
        name = os.path.splitext(path)[0]
        write_array(folder / "images" / name, image)
        write_array(folder / "masks" / name, mask)
    lossy = sum(path.lower().endswith((".jpg", ".jpeg")) for path in paths)
    say(f"{counted(len(paths), 'picture')} cut")
    if lossy:
        say(
            f"{counted(lossy, 'picture')} were JPEGs, so values of masks are off by a few: the "
            "check shows the command that repairs them"
        )


def side_of_masks(root: str) -> str:
    """The side with masks in the pictures of a folder, "left" or "right", as their colors show in
    most of some pictures; "" if no side has.
    """
    paths = sorted(images_below(root, LOCAL))
    sides = list[str]()
    for path in paths[:: 1 + len(paths) // _FEW]:
        with ignoring_file_faults():
            pixels = decode.decode_image(os.path.join(root, path))
            halves = np.array_split(pixels, 2, axis=1)
            masks = [side for side, h in zip(("left", "right"), halves) if common_colors([h])]
            sides.append(masks[0] if len(masks) == 1 else "")
    most = max(sides, key=sides.count, default="")
    return most if 2 * sides.count(most) > len(sides) else ""

"""The layout ``folders``: a folder of images and a folder of masks that ``data.images`` and
``data.masks`` name.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from segtrain import config
from segtrain.config.paste import command
from segtrain.data.index.detect_pairs import IMAGE_WORDS, MASK_WORDS, in_all_splits, pair_of_folders
from segtrain.data.index.entries import Entries
from segtrain.data.index.layout import Layout
from segtrain.data.index.listing import Watch
from segtrain.data.index.names import NAME
from segtrain.data.index.pairs import by_pattern, name_patterns, pair
from segtrain.data.index.unpaired import several_masks
from segtrain.data.index.walk import pictures
from segtrain.errors import DataError


def _folders(data: config.Data, split: str, watch: Watch) -> Entries:
    """Files of the two folders, paired by name or by ``data.pair``. ``{split}`` in a folder stands
    for the split.
    """
    texts = (
        text.replace("{split}", split).removesuffix("/.") for text in (data.images, data.masks)
    )
    images, masks = (data.root if text == "." else os.path.join(data.root, text) for text in texts)
    if data.pair:
        of_images, of_masks = (text.replace("{split}", split) for text in data.pair)
        return by_pattern((of_images, of_masks), images, masks, watch)
    if os.path.realpath(images) == os.path.realpath(masks):
        names = pictures(images, "data.images", watch)
        several = several_masks(names, names, NAME, together=True)
        if several:
            raise DataError(f"{images}: {several}", code="several-masks-per-image", folder=images)
        message = (
            f"{images}: data.images and data.masks are the same folder: say which files "
            "are masks, as in "
        )
        setting = command({"data.pair": ["{name}.jpg", "{name}_mask.png"]})
        raise DataError(message + setting, code="masks-among-images", folder=images)
    splits = dict.fromkeys(
        (split, data.train_split, data.split) if "{split}" in data.images else (split,)
    )

    where: dict[str, Any] = {
        "folders": (data.images, data.masks),
        "splits": [*splits],
        "store": watch.store,
    }
    tried = partial(in_all_splits, root=data.root, **where)
    fix = partial(name_patterns, images, tried=tried)
    return pair((images, masks), ("data.images", "data.masks"), watch, fix=fix)


def _files(data: config.Data) -> tuple[str, str]:
    images, masks = ("" if text == "." else f"{text}/" for text in (data.images, data.masks))
    return f"{images}{{name}}.png", f"{masks}{{name}}.png"


FOLDERS = Layout(
    "folders",
    f"a folder of images ({', '.join(IMAGE_WORDS[:5])}, ...) and one of masks "
    f"({', '.join(MASK_WORDS[:5])}, ...), with "
    "or without split folders above or below them; or a.jpg and a_mask.png in one folder",
    pair_of_folders,
    _folders,
    files=_files,
)

"""The layout ``folders``: a folder of images and a folder of masks that ``data.images`` and
``data.masks`` name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from functools import partial

import numpy as np

from segtrain import config
from segtrain.config.label_values import Names
from segtrain.config.paste import command
from segtrain.data.index.detect_pairs import (
    IMAGE_WORDS,
    MASK_WORDS,
    Found,
    names_of_pair,
    pair_of_folders,
)
from segtrain.data.index.entries import Entries
from segtrain.data.index.layout import Layout
from segtrain.data.index.listing import Watch
from segtrain.data.index.names import (
    IMAGE_ARRAYS,
    NAME,
    Proposal,
    is_array,
    is_image,
    name_in,
    propose_for,
    replaced,
)
from segtrain.data.index.pairs import by_pattern, name_patterns
from segtrain.data.index.pairs import pair as paired
from segtrain.data.index.unpaired import several_masks
from segtrain.data.index.walk import masks_below, pictures
from segtrain.data.pixels.header import read_header
from segtrain.data.pixels.reading import MOST_BANDS
from segtrain.data.storage import Store
from segtrain.errors import DataError


def _folders(data: config.Data, split: str, watch: Watch) -> Entries:
    """Files of the two folders, paired by name or by ``data.pair``. ``{split}`` in a folder stands
    for the split.
    """
    texts = (
        text.replace("{split}", split).removesuffix("/.") for text in (data.images, data.masks)
    )
    images, masks = (data.root if text == "." else os.path.join(data.root, text) for text in texts)
    if data.pair or data.files:
        pair = replaced(data.pair or (NAME, NAME), "{split}", split)
        files = [text.replace("{split}", split) for text in data.files]
        return by_pattern((files[0], pair[1]) if files else pair, images, masks, watch, files)
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

    def in_all() -> Proposal | None:
        both = data.images, data.masks
        return propose_for(
            {name: names_of_pair(data.root, both, name, watch.store) for name in splits}
        )

    fix = partial(name_patterns, images, in_all=in_all)
    return paired((images, masks), ("data.images", "data.masks"), watch, fix=fix)


def _detect(root: str, store: Store) -> Found | None:
    found = pair_of_folders(root, store)
    return found and with_bands(root, store, found)


def with_bands(root: str, store: Store, found: Found, names: Names = NAME) -> Found:
    """Detected folders with the number of bands of images that are not RGB. names: the patterns of
    the images that the user has given.
    """
    if store.local:
        images = os.path.join(root, found[0]["images"].replace("{split}", found[1][0]))
        paths = itertools.chain(masks_below(images, store, IMAGE_ARRAYS), store.walk(images))
        named = (path for path in paths if name_in(names, path) is not None)
        path = os.path.join(images, next((path for path in named if is_image(path, True)), ""))
        # The check reports unreadable files.
        with contextlib.suppress(OSError, ValueError, EOFError, DataError):
            if is_array(path):
                shape = np.load(path, mmap_mode="r").shape
                channels = min(shape[0], shape[-1]) if len(shape) == 3 else 1
            else:
                header = read_header(path)
                deep = header.channels > 3 and header.bits > 8
                many = header.format == "tiff" and (header.channels > 4 or header.floating or deep)
                channels = header.channels if many else 0
            if 0 < channels <= MOST_BANDS:
                found[0].update(channels=channels, values="stored")
    return found


def _files(data: config.Data) -> tuple[str, str]:
    images, masks = ("" if text == "." else f"{text}/" for text in (data.images, data.masks))
    return f"{images}{{name}}.png", f"{masks}{{name}}.png"


FOLDERS = Layout(
    "folders",
    f"a folder of images ({', '.join(IMAGE_WORDS[:5])}, ...) and one of masks "
    f"({', '.join(MASK_WORDS[:5])}, ...), with "
    "or without split folders above or below them; or a.jpg and a_mask.png in one folder",
    _detect,
    _folders,
    files=_files,
)

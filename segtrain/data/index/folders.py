"""The layout ``folders``: a folder of images and a folder of masks that ``data.images`` and
``data.masks`` name. Which of several folders to read is up to the user.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from segtrain.base.terminal import counted
from segtrain.config import Data
from segtrain.config.label_values import Names
from segtrain.config.paste import command
from segtrain.data.index.detect_files import are_alike, every, has_masks
from segtrain.data.index.detect_pairs import (
    IMAGE_WORDS,
    MASK_WORDS,
    SPLITS,
    TOKEN,
    Template,
    folders_below,
    is_drawn,
    names_of_pair,
    pair_of_folders,
    patterns_of,
    ranked_pairs,
    to_merge,
)
from segtrain.data.index.entries import Entries
from segtrain.data.index.layout import Detected, Layout
from segtrain.data.index.listing import Watch
from segtrain.data.index.names import (
    IMAGE_ARRAYS,
    NAME,
    Both,
    Proposal,
    fitted,
    images_in,
    in_split,
    is_array,
    is_image,
    name_in,
    propose_for,
    replaced,
)
from segtrain.data.index.pairs import by_pattern, name_patterns, several_masks
from segtrain.data.index.pairs import pair as paired
from segtrain.data.index.walk import NAMES, images_below, masks_below, pictures, several
from segtrain.data.pixels.header import read_header
from segtrain.data.pixels.reading import MOST_BANDS
from segtrain.data.storage import Store
from segtrain.errors import DataError, some_of

_ALIKE = 4  # so many masks are compared


def _folders(data: Data, split: str, watch: Watch) -> Entries:
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


def _detect(root: str, store: Store) -> Detected | None:
    found = pair_of_folders(root, store)
    return found and with_bands(root, store, found)


def with_bands(root: str, store: Store, found: Detected, names: Names = NAME) -> Detected:
    """Detected folders with the number of bands of images that are not RGB. names: the patterns of
    the images that the user has given.
    """
    if store.local:
        images = in_split(root, found[0]["images"], found[1][0])
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


def _files(data: Data) -> Both:
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


def choose(
    data: Data, given: Mapping[str, Any], splits: Sequence[str], store: Store
) -> dict[str, Any]:
    """The data.pair of the folders that the user has given, or no setting if all folders were
    detected.

    Raises DataError with the settings of each choice if several folders, such as those of patients,
    have folders of images and of masks, or if others beside the detected ones hold about as many
    images.
    """
    own = data.images, data.masks
    if given.keys() & {"images", "masks"}:
        folders = given.get("images", data.images), given.get("masks", data.masks)
        return {"pair": patterns_of(data.root, folders, splits, store)}
    _refuse_mixed_depth(data, splits, store)
    below = folders_below(data.root, store)
    pairs = ranked_pairs(data.root, below, store)
    alike = [
        (pair, its_splits)
        for pair, its_splits in pairs
        if [*map(os.path.basename, pair)] == [*map(os.path.basename, own)]
        and os.path.dirname(pair[0]) == os.path.dirname(pair[1])
    ]
    if len(alike) < 2:
        alike = [(own, [*splits])]
    rivals = [_rivals(data.root, template, below, pairs, store) for template in alike]
    above = [os.path.dirname(pair[0]) or "." for pair, _ in alike]
    if len(alike) == 1 and not rivals[0]:
        return {}
    choices = [] if any(rivals) else every(data.root, alike, splits[0], store)
    if choices:
        alike = alike[:1]
    why = list[str]()
    for ((images, masks), its_splits), others in zip(alike, rivals):
        first = its_splits[0]
        more = [o for o in others if not store.local or has_masks(data.root, o, first, store)]
        of_images, of_masks = [images, *(o for o in others if o not in more)], [masks, *more]
        if more and store.local:
            train = data.train_split if data.train_split in its_splits else first
            of_masks, passed = _informative(data.root, images, of_masks, train, store)
            why += passed
        ways = itertools.product(of_images, of_masks)
        choices += [{"data.images": one, "data.masks": other} for one, other in ways]
    if len(above) > 1:
        what = f"{some_of(above)} have images and masks"
    else:
        what = f"{some_of([*own, *rivals[0]])} hold about as many images"
    after, kind = "", re.sub(r"\d", "", data.masks)
    if annotators := [rival for rival in rivals[0] if re.sub(r"\d", "", rival) == kind]:
        settings = data.model_dump(exclude_defaults=True, exclude={"root"})
        after = to_merge(
            data.root,
            [{"data.masks": folder} for folder in annotators],
            {f"data.{key}": value for key, value in settings.items()},
        )
    raise several(
        data.root,
        what,
        choices,
        after,
        code="folders-ambiguous",
        found=above if len(above) > 1 else rivals[0],
        why="; ".join(why) if len(choices) == 1 else "",
    )


def _informative(
    root: str, images: str, masks: list[str], split: str, store: Store
) -> tuple[list[str], list[str]]:
    """The folders of masks that a network could learn from, and why the others are passed over;
    all of them if none could be.

    These have a mask for some image of the split, and differ from image to image.
    """
    why = dict[str, str]()
    for folder in masks:
        names = names_of_pair(root, (images, folder), split, store)[1]
        path = in_split(root, folder, split)
        if not names:
            why[folder] = f"{folder} has no mask for {split}"
        elif are_alike([os.path.join(path, name) for name in names[:: -(-len(names) // _ALIKE)]]):
            why[folder] = (
                f"the masks in {folder} are nearly the same in all images, as those of a camera's "
                "field of view"
            )
    kept = [folder for folder in masks if folder not in why]
    passed = [f"{why[folder]} (to read it: {command({'data.masks': folder})})" for folder in why]
    return (kept, passed) if kept else (masks, [])


def _refuse_mixed_depth(data: Data, splits: Sequence[str], store: Store) -> None:
    """Raise DataError if images and masks lie beside the folders of splits, and train or val is
    missing: they may be this split, or all images may be one set.
    """
    above = [os.path.dirname(folder) or "." for folder in (data.images, data.masks)]
    images, masks = (images_in(os.path.join(data.root, folder), store) for folder in above)
    flat = fitted(data.pair or (NAME, NAME), images, masks, above[0] == above[1])
    complete = {data.train_split, data.split} <= {*splits}
    if complete or os.path.basename(data.images) != "{split}" or not all(flat):
        return
    pair = {"data.pair": list(data.pair)} if data.pair else {}
    choices = (
        {"data.images": one, "data.masks": other, **pair}
        for one, other in (above, (data.images, data.masks))
    )
    what = f"{counted(len(flat[0]), 'image')} beside the folders of {some_of(splits)}"
    raise several(data.root, what, choices, code="folders-ambiguous", found=above)


def _rivals(
    root: str, template: Template, folders: list[str], pairs: Sequence[Template], store: Store
) -> list[str]:
    """Folders at the level of a pair, of no pair of their own, with about as many images in one of
    its splits.
    """
    own, splits = template
    parts = {part for pair, _ in pairs if pair[0] != own[0] and pair[1] != own[1] for part in pair}
    rivals = list[str]()
    for split in splits:
        many = _count(in_split(root, own[0], split), store)
        for folder in folders:
            text = re.sub(rf"(?<![A-Za-z]){re.escape(split)}(?![A-Za-z])", "{split}", folder)
            # Folders with the name of another split are not an alternative to this one.
            if (
                all(text.count(part) == own[0].count(part) for part in ("/", "{split}"))
                and text not in (*own, *rivals)
                and not any(f"{part}/".startswith(f"{text}/") for part in parts)
                and not {*TOKEN.findall(text.lower())} & {*SPLITS}
                and not is_drawn(text)
                and 10 * _count(os.path.join(root, folder), store) >= 9 * many
            ):
                rivals.append(text)
    return rivals


def _count(folder: str, store: Store) -> int:
    """The number of images below a folder; of a large folder in a bucket, only the first names are
    known.
    """
    images = images_below(folder, store)
    return sum(1 for _ in itertools.islice(images, None if store.local else NAMES))

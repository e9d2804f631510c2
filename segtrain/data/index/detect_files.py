"""Detection of folders of images and masks by their files, whatever their names."""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from segtrain.config.label_values import Names
from segtrain.config.paste import Settings, command
from segtrain.data.index.detect_pairs import (
    IMAGE_WORDS,
    MASK_WORDS,
    TOKEN,
    Template,
    folders_below,
    is_drawn,
    names_of_pair,
    settings_of,
    with_split,
)
from segtrain.data.index.layout import Detected
from segtrain.data.index.names import (
    NAME,
    Both,
    count_pairs,
    fitted,
    in_split,
    is_array,
    is_image,
    propose,
    propose_for,
    stem,
    ways,
)
from segtrain.data.index.pairs import several_masks
from segtrain.data.index.walk import masks_below, several
from segtrain.data.pixels.array_mask import array_mask
from segtrain.data.pixels.decode import decode_mask
from segtrain.data.storage import LOCAL, Store
from segtrain.errors import DataError

# ``by_files`` compares at most this many folders. Masks have at most this many colors.
_FEW, _COLORS = 20, 64
# Masks are nearly the same if they share this part of their pixels.
_SAME = 0.9


def by_files(root: str, store: Store) -> Detected | None:
    """Detect folders with other names by their files: masks have the names of the images, and few
    colors or a folder named like MASK_WORDS. Raises DataError if several pairs of folders fit.
    """
    splits_of: dict[str, list[str]] = defaultdict(list)
    for folder in [".", *folders_below(root, store)] if store.local else ():
        names = store.list(os.path.join(root, folder), "")
        if any(is_image(name) or is_array(name) for name in names) and not is_drawn(folder):
            (template, _), split = with_split(folder, folder)
            splits_of[template].append(split)
    whole = len(splits_of) > _FEW
    if whole:  # folders of two patients or scenes stand for all
        above = [*dict.fromkeys(map(os.path.dirname, splits_of))][:2]
        splits_of = {
            text: there for text, there in splits_of.items() if os.path.dirname(text) in above
        }
    if len(splits_of) > _FEW:
        return None
    found = list[Detected]()
    for template, splits in splits_of.items():
        formats = _two_formats(in_split(root, template, splits[0]), store)
        if formats:
            found.append(({"images": template, "masks": template, "pair": formats}, splits))
    found = found or _in_two_folders(root, splits_of, store)
    every = _wholes(root, found, store)
    if len(found) < 2 or (whole and not every):
        return None if whole or not found else found[0]
    single = [
        {
            f"data.{key}": value
            for key, value in settings.items()
            if key != "pair" or settings["images"] == settings["masks"]
        }
        for settings, _ in found
    ]
    what = "several folders may hold images and masks"
    choices = [*sorted(every, key=command), *sorted(single, key=command)]
    raise several(root, what, choices, code="folders-ambiguous", found=single)


def _in_two_folders(root: str, splits_of: dict[str, list[str]], store: Store) -> list[Detected]:
    """Pairs of a folder of images and one of masks; those in one folder, if there are several."""
    masks = [text for text, splits in splits_of.items() if has_masks(root, text, splits[0], store)]
    found = list[Detected]()
    for one, other in itertools.product(splits_of.keys() - masks, masks):
        splits = [split for split in splits_of[one] if split in splits_of[other]]
        if not splits and len(splits_of[one]) == len(splits_of[other]) == 1:
            one, other = (text.replace("{split}", splits_of[text][0]) for text in (one, other))
            splits = ["all"]
        listings = {split: names_of_pair(root, (one, other), split, store) for split in splits}
        if not listings or not all(files for files, _ in listings.values()):
            continue
        equal = (2 * count_pairs((NAME, NAME), *two) >= len(two[0]) for two in listings.values())
        if any(several_masks(files, several, NAME) for files, several in listings.values()):
            found.append(({"layout": "objects", "images": one, "annotations": other}, splits))
        elif all(equal) or propose_for(listings):
            found.append(settings_of(root, (one, other), splits, store))
    near = [pair for pair in found if len({os.path.dirname(text) for text in _folders(pair)}) == 1]
    return near if len(near) > 1 else found


def _folders(found: Detected) -> Both:
    settings, _ = found
    return settings["images"], settings.get("masks") or settings["annotations"]


def _wholes(root: str, found: Sequence[Detected], store: Store) -> list[Settings]:
    """The settings that read pairs of folders with the same names as one set."""
    alike = defaultdict[tuple[str, ...], list[Detected]](list)
    for pair in found:
        images, masks = _folders(pair)
        names = pair[0]["pair"] if images == masks else map(os.path.basename, (images, masks))
        key = (*names, *pair[1])
        alike[key].append(pair)
    wholes = list[Settings]()
    for pairs in alike.values():
        templates = [(_folders(pair), pair[1]) for pair in pairs]
        if len(pairs) > 1:
            wholes += every(root, templates, pairs[0][1][0], store, pairs[0][0].get("pair"))
    return wholes


def every(
    root: str,
    alike: Sequence[Template],
    split: str,
    store: Store,
    known: Sequence[Names] | None = None,
) -> list[Settings]:
    """The settings that read all pairs of folders as one set, if each image has a mask then."""
    own = alike[0][0]
    folder = os.path.commonpath([pair[0] for pair, _ in alike]) or "."
    patterns = known
    if not patterns:
        proposal = propose(*names_of_pair(root, own, split, store))
        patterns = proposal.patterns if proposal else (NAME, NAME)
    images, masks = (ways(text)[0] for text in patterns)
    if own[0] != own[1]:
        images, masks = (
            f"*/{os.path.basename(one)}/{text}" for one, text in zip(own, (images, masks))
        )
    paths = sorted(store.walk(in_split(root, folder, split)))
    inside = [path for path in paths if is_image(os.path.basename(path), arrays=True)]
    names = fitted((images, masks), inside, inside)
    count = sum(len(names_of_pair(root, pair, split, store)[0]) for pair, _ in alike)
    count //= 1 + (own[0] == own[1])
    split_above = ("{split}" in own[0]) > ("{split}" in folder)
    if split_above or names[0].keys() != names[1].keys() or len(names[0]) < count:
        return []
    return [{"data.images": folder, "data.masks": folder, "data.pair": [images, masks]}]


def _two_formats(folder: str, store: Store) -> list[str] | None:
    """Patterns for images and masks of the same names in two formats: ``a.jpg``, ``a.png``."""
    names = list(filter(is_image, store.list(folder, "")))
    stems = {*map(stem, names)}
    suffixes = {os.path.splitext(name)[1] for name in names}
    if len(suffixes) == 2 and len(names) == 2 * len(stems):
        few = {suffix for suffix in suffixes if _has_few_colors(f"{folder}/{min(stems)}{suffix}")}
        if len(few) == 1:
            return [NAME + suffix for suffix in sorted(suffixes, key=few.__contains__)]
    return None


def has_masks(root: str, template: str, split: str, store: Store) -> bool:
    """Whether a folder holds masks, by its name, or else by its first files."""
    words = {*map(str.lower, TOKEN.findall(template))}
    if words & {*IMAGE_WORDS, *MASK_WORDS}:
        return not words & {*IMAGE_WORDS}
    folder = in_split(root, template, split)
    names = masks_below(folder, store)
    return all(_has_few_colors(os.path.join(folder, name)) for name in itertools.islice(names, 3))


def _has_few_colors(file: str) -> bool:
    try:
        raw = (array_mask if is_array(file) else decode_mask)(LOCAL.content(file), file)
    except DataError:
        return False
    return len(np.unique(_packed(raw))) <= _COLORS


def _packed(raw: np.ndarray) -> np.ndarray:
    """A mask with a number for each color."""
    return raw if raw.ndim < 3 else raw @ np.array((1 << 16, 1 << 8, 1))


def are_alike(files: list[str]) -> bool:
    """Whether masks of different images have 0 and one other value, in nearly the same pixels."""
    try:
        masks = [_packed(decode_mask(file, file)) for file in files]
    except DataError:
        return False
    values = {int(value) for mask in masks for value in np.unique(mask)}
    same = len(masks) > 1 and len({mask.shape for mask in masks}) == 1
    marked = [mask > 0 for mask in masks]
    return (
        same
        and len(values - {0}) == 1
        and all(
            np.count_nonzero(one & other) > _SAME * np.count_nonzero(one | other)
            for one, other in itertools.combinations(marked, 2)
        )
    )


def given(root: str, store: Store, images: str, masks: str) -> Detected | None:
    """The settings of the two folders that the user has given, and their splits."""
    if not (images and masks):
        return None
    text = re.escape(images).replace(r"\{split\}", "([^/]+)")
    matches = (re.fullmatch(text, folder) for folder in folders_below(root, store))
    splits = [match[1] for match in matches if match and match.groups()]
    splits = [split for split in splits if any(masks_below(in_split(root, masks, split), store))]
    return {"images": images, "masks": masks}, splits or ["all"]

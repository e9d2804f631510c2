"""Detection of the folders that hold images and masks, and of the splits in their names."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from segtrain.config.label_values import Names
from segtrain.config.paste import Settings, command
from segtrain.data.index.layout import Detected
from segtrain.data.index.names import (
    IMAGE_ARRAYS,
    NAME,
    SUFFIXES,
    Both,
    fitted,
    folders_in,
    propose,
    propose_for,
    same_stems,
    stem,
)
from segtrain.data.index.pairs import MASK_ENDINGS, owned_masks, several_masks
from segtrain.data.index.walk import apart, images_below, masks_below, several
from segtrain.data.storage import Store


def _plural_and_singular(words: str) -> list[str]:
    return [form for word in words.split() for form in (f"{word}s", word)]


IMAGE_WORDS = _plural_and_singular("image img jpegimage frame photo input rgb pngimage")
MASK_WORDS = _plural_and_singular(
    "mask label annotation annot segmentationclasspng segmentationclass segmentation groundtruth "
    "gt target stuffthingmaps"
)
SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing", "trainval")
# Levels below the root, and folders in total, that are searched.
_DEPTH, _MANY = 3, 2000
# Of the endings of file names, the most common ones may be those of images.
_ENDS = 8
TOKEN = re.compile(r"[A-Za-z]+|[^A-Za-z]+")

# Such a folder has one of these in its name, see is_drawn. SegmentationObject is Pascal VOC's.
_DRAWN = ("visual", "overlay", "preview", "thumb", "segmentationobject")

Template = tuple[Both, list[str]]  # folders, splits


def pair_of_folders(root: str, store: Store) -> Detected | None:
    """Detect a folder of images and a folder of masks by their names, or images and masks in one
    folder by file names.

    The two folders may be ``images/SPLIT`` and ``masks/SPLIT``, ``SPLIT/images`` and
    ``SPLIT/masks``, ``images_SPLIT`` and ``masks_SPLIT``, or ``images`` and ``masks``, with any of
    IMAGE_WORDS and MASK_WORDS.
    """
    folders = folders_below(root, store)
    order = ranked_pairs(root, folders, store)
    if order:
        return settings_of(root, *order[0], store)
    return _one_folder(root, folders, store)


def settings_of(root: str, folders: Both, splits: list[str], store: Store) -> Detected:
    """The settings of a pair of folders, and their splits."""
    settings = {"images": folders[0], "masks": folders[1]}
    patterns = patterns_of(root, folders, splits, store)
    return {**settings, "pair": patterns} if patterns else settings, splits


def to_merge(root: str, annotators: Sequence[Settings], settings: Settings) -> str:
    """Lines with the command that merges the masks of annotators; "" if one differs from the first,
    of ``settings``, in several settings, as --annotator takes one.
    """
    differing = [
        {key: value for key, value in other.items() if settings.get(key) != value}
        for other in annotators
    ]
    if any(len(setting) != 1 for setting in differing):
        return ""
    places = f"{shlex.quote(root)} {shlex.quote(f'{root}-merged')}"
    others = " ".join(f"--annotator {command(setting)}" for setting in differing)
    return (
        "\nto merge masks of several annotators into a copy, void where they differ:\n  segtrain "
        f"data convert {places} --merge agreement {others} {command(settings)}"
    )


def is_drawn(folder: str) -> bool:
    """Whether a folder holds pictures that tools draw for people to look at, or ids of objects."""
    return any(word in folder.lower() for word in _DRAWN)


def ranked_pairs(root: str, folders: list[str], store: Store) -> list[Template]:
    """Pairs of folders, with ``{split}`` if they have splits, and the names of the splits; the most
    likely first.
    """
    templates: dict[Both, list[str]] = defaultdict(list)
    there = {name.lower(): name for name in folders}
    for images in folders:
        masks = _mask_folder(images, there)
        # Not a pair: in Pascal VOC (with ImageSets), lists say which image is in which split.
        if masks is None or os.path.join(os.path.dirname(images), "ImageSets").lower() in there:
            continue
        inner = [name.rpartition("/")[2] for name in folders if os.path.dirname(name) == images]
        own = [
            name
            for name in inner
            if (folder := there.get(f"{masks}/{name}".lower()))
            and any(masks_below(os.path.join(root, folder), store))
        ]
        # Other folders are those of cities, scenes, or patients, also those below a split.
        named = {*SPLITS} & {*TOKEN.findall(" ".join(own).lower())}
        if named and not set(images.lower().split("/")) & set(SPLITS):
            templates[f"{images}/{{split}}", f"{masks}/{{split}}"] = own
        elif all(map(any, _listings(root, (images, masks), store))):
            pair, split = with_split(images, masks)
            if split not in templates[pair]:
                templates[pair].append(split)

    # Pairs with more splits come first.
    return sorted(
        templates.items(), key=lambda item: ("{split}" not in item[0][0], -len(item[1]), item[0])
    )


def folders_below(root: str, store: Store) -> list[str]:
    """Relative paths of the folders under the root, down to the depth at which data sets have their
    splits.
    """
    below, level, depth = list[str](), [""], _DEPTH
    while level and depth and len(below) < _MANY:
        level = [
            os.path.join(above, name)
            for above in level[:_MANY]
            for name in folders_in(os.path.join(root, above), store)
        ]
        below += level[: max(0, _MANY - len(below))]
        depth -= len(level) > 1  # archives are often unpacked into a chain of folders
    return below


def _mask_folder(images: str, there: dict[str, str]) -> str | None:
    """The folder named as ``images``, but with a word of MASK_WORDS in place of its image word, or
    after the name of its split; None if none exists. Of numbered folders, the first.

    there: lowercase name -> name.
    """
    tokens = TOKEN.findall(images)
    for index, token in enumerate(tokens):
        if token.lower() not in IMAGE_WORDS:
            continue
        for number, word in itertools.product(("", "1", "_1"), MASK_WORDS):
            other = "".join([*tokens[:index], word + number, *tokens[index + 1 :]]).lower()
            if other in there:
                return there[other]
    if os.path.basename(images).lower() in SPLITS:
        beside = (f"{images}_{word}".lower() for word in MASK_WORDS)
        return next((there[other] for other in beside if other in there), None)
    return None


def with_split(images: str, masks: str) -> tuple[Both, str]:
    """Both names with ``{split}`` in place of the split's name, and that name ("all" if there is no
    split).
    """
    for split in sorted({token for token in TOKEN.findall(images) if token.lower() in SPLITS}):
        if split in TOKEN.findall(masks):
            one, other = (
                "".join("{split}" if part == split else part for part in TOKEN.findall(text))
                for text in (images, masks)
            )
            return (one, other), split
    return (images, masks), "all"


def patterns_of(
    root: str, folders: Both, splits: Sequence[str], store: Store
) -> list[Names] | None:
    """The value of data.pair for images and masks with different names; None if no pattern is
    needed or fits.
    """
    listings = {split: names_of_pair(root, folders, split, store) for split in splits}
    if not any(_need_patterns(*files) for files in listings.values()):
        return None
    proposal = propose_for(listings)
    return list(proposal.patterns) if proposal else None


def _need_patterns(images: list[str], masks: list[str]) -> bool:
    """Whether patterns pair a split, and not equal names or the usual endings of masks."""
    proposal = None if same_stems(images, masks) else propose(images, masks)
    if proposal is None or several_masks(images, masks, proposal.patterns[0]):
        return False
    of_images, of_masks = proposal.patterns
    return of_images != NAME or str(of_masks).removeprefix(NAME) not in MASK_ENDINGS


def _listings(root: str, folders: Sequence[str], store: Store) -> tuple[Iterator[str], ...]:
    """The paths of the images, and those of the masks."""
    images, masks = (os.path.join(root, folder) for folder in folders)
    return (
        apart(masks_below(images, store, IMAGE_ARRAYS), images, masks),
        apart(masks_below(masks, store), masks, images),
    )


def names_of_pair(root: str, folders: Both, split: str, store: Store) -> list[list[str]]:
    """Sorted paths of the images and of the masks of a split."""
    own = [folder.replace("{split}", split) for folder in folders]
    listings = [*map(sorted, _listings(root, own, store))]
    # Of a large folder in a bucket, only the first names are known, so one list may be longer than
    # the other.
    return listings if store.local else [names[: min(map(len, listings))] for names in listings]


def _one_folder(root: str, folders: list[str], store: Store) -> Detected | None:
    """Images beside their masks, ``a.jpg`` and ``a_mask.png``: in a folder per split, or in one
    folder.
    """
    splits = [name for name in folders if name.lower() in SPLITS]
    for folder, names in (("{split}", splits), (".", ["all"])):
        found = {
            name: _beside(os.path.join(root, folder.format(split=name)), folder, store)
            for name in names
        }
        of_split = {name: settings for name, settings in found.items() if settings is not None}
        for settings in of_split.values():
            return {"images": folder, "masks": folder, **settings}, [*of_split]
    return None


def _beside(folder: str, template: str, store: Store) -> dict[str, Any] | None:
    """The setting data.pair for a folder of images and masks; None for other folders. template: the
    folder in settings. Raises DataError if files with several endings may be the images.

    The name of a mask is that of its image with a common ending, or the full file name of its image
    (``a.jpg.png``). The images may have an ending of their own (``a_sat.jpg``). At least half of
    the images need a mask. Returns {} if images have several masks: the lister raises the error for
    that. Raises DataError, too, if each image has several masks that differ in their ending.
    """
    names = sorted(images_below(folder, store))
    _refuse_variants(folder, template, names)
    for word in (*MASK_ENDINGS, *sorted(SUFFIXES)):
        masks = [name for name in names if stem(name).endswith(word)]
        if not masks:
            continue
        images = sorted(set(names).difference(masks))
        best, most = dict[str, list[str]](), (0, 0)
        for end in _endings(images, len(masks)):
            texts = _texts(NAME + end, images), _texts(NAME + word, masks)
            for patterns in itertools.product(*texts):
                in_images, in_masks = fitted(patterns, names, names, together=True)
                pairs = len(in_images.keys() & in_masks.keys())
                score = (pairs, pairs - len(in_images))
                if 2 * pairs >= len(in_images) and score > most:
                    best, most = {}, score
                if score == most > (0, 0):
                    best.setdefault(end, list(patterns))
        if len(best) > 1 and "" not in best:
            both = {"data.images": template, "data.masks": template}
            ways = ({**both, "data.pair": pair} for pair in best.values())
            what = "several files of a name may be the image"
            raise several(folder, what, ways, code="images-ambiguous", found=[*best])
        if best:
            return {"pair": next(iter(best.values()))}
    equal = len({*map(stem, names)}) < len(names)
    masks = [name for name in names if not name.lower().endswith((".jpg", ".jpeg"))]
    return None if equal or not several_masks(names, masks, NAME, together=True) else {}


def _refuse_variants(folder: str, template: str, names: list[str]) -> None:
    """Raise DataError, with the patterns of each, if all images have masks with several of the
    usual endings.
    """
    owned = owned_masks(names, names, NAME, together=True)
    masks = {mask.path for these in owned.values() for mask in these}
    images = [name for name in names if name not in masks]
    ends = Counter(
        mask.path.removeprefix(stem(image)) for image in images for mask in owned.get(image, ())
    )
    full = (end for end, count in ends.items() if count == len(images) and "/" not in end)
    common = sorted(end for end in full if stem(end).endswith(MASK_ENDINGS))
    if len(common) < 2:
        return
    suffixes = {os.path.splitext(image)[1] for image in images}
    image = NAME + (suffixes.pop() if len(suffixes) == 1 else "")
    ways = (
        {"data.images": template, "data.masks": template, "data.pair": [image, NAME + end]}
        for end in common
    )
    what, after = "each image has several masks", "\nor merge the masks of an image into one PNG"
    place = folder.removesuffix("/.")
    raise several(place, what, ways, after, code="several-masks-per-image")


def _endings(paths: list[str], masks: int) -> list[str]:
    """ "", and the last parts of the stems, such as ``_sat``, of half as many files as masks."""
    ends = Counter(re.search(r"[_-][^_-]*$|$", stem(path))[0] for path in paths)  # type: ignore[index]
    common = (end for end, count in ends.most_common(_ENDS) if 2 * count >= masks)
    return sorted({"", *(end for end in common if not is_drawn(end))})


def _texts(start: str, paths: list[str]) -> list[str]:
    """Patterns of ``start`` and a suffix of the paths. If there are several suffixes, the first
    pattern has none.
    """
    endings = [
        ending for ending, _ in Counter(os.path.splitext(path)[1] for path in paths).most_common()
    ]
    return [start + ending for ending in ([""] * (len(endings) > 1) + endings)]

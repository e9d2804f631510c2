"""Pairs the image and mask files of two folders, by equal names or by patterns of their names, and
recognizes images that have several masks, such as one per class.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from segtrain.base.terminal import counted
from segtrain.config.label_values import Names, Patterns
from segtrain.config.paste import command, flow
from segtrain.data.index.entries import Entries, column_of
from segtrain.data.index.listing import WARNING, Watch
from segtrain.data.index.names import (
    NAME,
    SUFFIXES,
    Both,
    Paths,
    Proposal,
    count_pairs,
    is_array,
    name_in,
    part,
    propose,
    siblings,
    stem,
    suffix,
)
from segtrain.data.index.walk import apart, pictures, question, unread
from segtrain.errors import DataError, some_of

# Endings that annotation tools add to the names of masks. An ending is removed only if all masks of
# a split have it.
MASK_ENDINGS = (
    *("_mask", "_masks", "_label", "_labels", "_gt", "_seg", "_L", "-mask", "-label"),
    *("_anno", "_segmentation"),
)
_SAME_NAME = "an image and its mask must have the same name: add or remove files"
_OTHER_NAMES = (
    ", give patterns of the names, as in data.pair=['{name}_RGB.tif', '{name}_label.tif'], or name "
    "the pairs in lists (data.layout=list)"
)
_SHOWN = 3
# At the end of a name: a_mask.png and a_mask_1.png.
NUMBER = re.compile(r"[_\-. ]?\d+$")


def pair(
    folders: Both,
    what: Both,
    watch: Watch,
    endings: Both = ("", ""),
    fix: Callable[[list[str], list[str]], str] | None = None,
) -> Entries:
    """Entries of the images and masks of two folders with the same name, each before its ending and
    suffix.

    Raises DataError for files that have no partner. If ``watch.skips``, masks without an image are
    left out instead, with a warning. ``what``: what the folders should hold. ``fix``: returns the
    advice at the end of that error, given the paths of the images and the masks.
    """
    files = _files(folders, what, watch)
    # Patterns that choose one suffix, in place of the star, in each folder.
    mask = NAME + _ending(map(stem, files[1]))
    patterns = [(f"{NAME}*", mask), (NAME, f"{mask}*")] if fix else [(), ()]
    in_images, in_masks = (
        _named(folder, paths, NAME + ending, by_suffix)
        for folder, paths, ending, by_suffix in zip(folders, files, endings, patterns)
    )
    if not in_images:
        kinds = ", ".join(sorted(SUFFIXES))
        message = (
            f"{folders[0]}: the split has no images ({kinds}): check the folder, "
            "data.train_split, and data.split"
        )
        raise DataError(message, code="split-empty", folder=folders[0])
    paths = [[named[name] for name in sorted(named)] for named in (in_images, in_masks)]
    in_masks = _without_ending(in_images, in_masks)
    return _entries(folders, in_images, in_masks, watch, lambda: fix(*paths) if fix else _SAME_NAME)


def _entries(
    folders: Both,
    in_images: dict[str, str],
    in_masks: dict[str, str],
    watch: Watch,
    fix: Callable[[], str],
) -> Entries:
    """Entries of all images, sorted by name. Raises DataError for images without a mask if
    ``watch.absent`` is "auto" or "error", and for masks without an image unless ``watch.skips``.

    in_images, in_masks: name -> path. fix: returns the advice at the end of the error.
    """
    without_mask, without_image = (
        [os.path.join(folder, named[name]) for name in sorted(named.keys() - others.keys())]
        for folder, named, others in zip(folders, (in_images, in_masks), (in_masks, in_images))
    )
    done = {"leave-out": "left out", "background": "taken as background"}.get(watch.absent)
    if done and 0 < len(without_mask) < len(in_images):
        if watch.absent == "background":
            in_masks = dict.fromkeys(in_images, "") | in_masks
        in_images = {name: path for name, path in in_images.items() if name in in_masks}
        watch.notes.append(
            f"{WARNING}{counted(len(without_mask), 'image')} without a mask {done}: "
            f"{some_of(without_mask)}"
        )
        without_mask = []
    if without_mask or (without_image and not watch.skips):
        problems = [
            f"{counted(len(paths), 'file')} {what}: {some_of(paths)}"
            for paths, what in (
                (without_mask, "without a mask"),
                (without_image, "(masks) without an image"),
            )
            if paths
        ]
        read = {*map(suffix, in_masks.values())}
        problems += [text for folder in folders for text in unread(os.path.join(folder, ""), read)]
        masks = {"data.faults": "skip"} if without_image else {}
        ways = [{"data.absent_mask": way} for way in ("leave-out", "background") if without_mask]
        some = in_images.keys() & in_masks
        one_of = ", with one of" if ways else ""
        raise question(
            f"{folders[0]}: {'; '.join(problems)}: {fix()}"
            f"{f'. Or leave them out{one_of}' if some else ''}",
            [way | masks for way in ways or [{}] if some],
            code="files-unpaired",
            folder=folders[0],
            images=len(without_mask),
            masks=len(without_image),
        )
    if without_image:
        watch.notes.append(
            f"{WARNING}{counted(len(without_image), 'mask')} without an image left out: "
            f"{some_of(without_image)}"
        )
    names = sorted(in_images)
    image, mask = (
        column_of((named[name] for name in names), os.path.join(folder, ""))
        for folder, named in zip(folders, (in_images, in_masks))
    )
    return Entries(image, mask, {"name": column_of(names)})


def name_patterns(
    folder: str, images: list[str], masks: list[str], in_all: Callable[[], Proposal | None]
) -> str:
    """The advice for images and masks without a partner: patterns for data.pair, if some fit.

    in_all: returns the patterns that fit all splits, or None.
    Raises DataError if images have several masks.
    """
    proposal = propose(images, masks)
    several = several_masks(images, masks, proposal.patterns[0] if proposal else NAME)
    if several:
        raise DataError(f"{folder}: {several}", code="several-masks-per-image", folder=folder)
    if not proposal:
        return _SAME_NAME + _OTHER_NAMES * (not count_pairs((NAME, NAME), images, masks))
    fitting = in_all()
    if not fitting:
        only = f"the names differ: {flow(proposal.patterns)} fits this split, but not the others"
        return f"{only}: name the pairs in lists (data.layout=list)"
    setting = command({"data.pair": fitting.patterns})
    return f"the names differ: {setting} pairs {fitting.pairs:,} of {fitting.images:,} images"


def by_pattern(
    patterns: Patterns, images: str, masks: str, watch: Watch, files: Sequence[str] = ()
) -> Entries:
    """Pairs of files whose names match patterns, see ``names.name_in``. Other files are left out,
    with a warning. ``files``: patterns of all files of an image.

    Raises DataError if no file matches, for two files with the same name, and for
    files without a partner.
    """
    paths = _files((images, masks), ("data.images", "data.masks"), watch)
    in_images, in_masks = (
        _named(images, paths[0], patterns[0]),
        _named(masks, paths[1], patterns[1]),
    )
    for folder, these, named, pattern in zip(
        (images, masks), paths, (in_images, in_masks), patterns
    ):
        if not named:
            few = ", ".join(os.path.join(folder, path) for path in sorted(these)[:3])
            message = (
                f"{folder}: no file matches {pattern!r} of data.pair: the folder has "
                f"{few or 'no images'}"
            )
            raise DataError(message, code="pattern-matches-nothing", folder=folder, pattern=pattern)
    together = os.path.realpath(images) == os.path.realpath(masks)
    if together:
        part(patterns, in_images, in_masks)
        # {name}_mask.png finds a_color_mask.png, which is another mask of a.jpg.
        alone = [in_masks[key] for key in in_masks.keys() - in_images.keys()]
        owned = owned_masks([*in_images.values()], alone, patterns[0], together)
        others = {mask.path for these in owned.values() for mask in these}
        in_masks = {key: path for key, path in in_masks.items() if path not in others}

    def fix() -> str:
        several = several_masks(*paths, NAME, together=True) if together else ""
        advice = f"with data.pair={flow(patterns)}: add or remove files, or correct data.pair"
        return f"{advice}. {several}" if several else advice

    entries = _entries((images, masks), in_images, in_masks, watch, fix)
    if files:
        wanted = (file for path in in_images.values() for file in siblings(files, path))
        if missing := sorted({*wanted}.difference(paths[0])):
            message = (
                f"{images}: {counted(len(missing), 'file')} of images missing: {some_of(missing)}: "
                "add them, or correct data.files"
            )
            raise DataError(message, code="band-file-missing", folder=images, found=missing)
        return entries
    every, used = (
        {os.path.join(f, path) for f, these in zip((images, masks), two) for path in these}
        for two in (paths, (in_images.values(), in_masks.values()))
    )
    left = sorted(every - used)
    if left:
        why = (
            f"left out, because they match no pattern of data.pair={flow(patterns)} or have "
            "no image"
        )
        watch.notes.append(f"{WARNING}{counted(len(left), 'file')} {why}: {some_of(left)}")
    return entries


def _files(folders: Both, what: Both, watch: Watch) -> tuple[list[str], list[str]]:
    """Relative paths of the images and of the masks. Raises DataError."""
    images, masks = folders
    return (
        [*apart(pictures(images, what[0], watch), images, masks)],
        [*apart(_masks(masks, what[1], watch), masks, images)],
    )


def _masks(folder: str, what: str, watch: Watch) -> list[str]:
    """Relative paths of the masks in a folder: of arrays if it has no image. Raises DataError."""
    images = pictures(folder, what, watch)
    return images or [path for path in watch.store.walk(folder) if is_array(path)]


def _named(
    folder: str, paths: list[str], pattern: Names, by_suffix: Sequence[str] = ()
) -> dict[str, str]:
    """Name (see ``name_in``) -> path of each file that matches a pattern.

    Raises DataError if two files have the same name. by_suffix: patterns that choose the files
    with the suffix in place of the star.
    """
    named = dict[str, str]()
    for path in paths:
        key = name_in(pattern, path)
        if key is not None and named.setdefault(key, path) != path:
            other, file = sorted(os.path.join(folder, name) for name in (path, named[key]))
            pairs = [
                [text.replace("*", os.path.splitext(name)[1]) for text in by_suffix]
                for name in (file, other)
            ]
            how = "one of" if by_suffix else "data.pair"
            what = f"{file}: {other} has the same name: keep one of them, or choose the ending with"
            choices = [{"data.pair": texts} for texts in pairs if texts]
            raise question(f"{what} {how}", choices, code="name-repeated", file=file, other=other)
    return named


def _without_ending(in_images: dict[str, str], in_masks: dict[str, str]) -> dict[str, str]:
    """Remove an ending of MASK_ENDINGS that all names of masks have, unless a name already equals
    an image's.
    """
    if in_images.keys() & in_masks.keys():
        return in_masks
    ending = _ending(in_masks)
    return {name.removesuffix(ending): path for name, path in in_masks.items()}


def _ending(names: Iterable[str]) -> str:
    names = [*names]
    return next((e for e in MASK_ENDINGS if all(name.endswith(e) for name in names)), "")


def several_masks(images: Paths, masks: Paths, known: Names, together: bool = False) -> str:
    """The message if at least half of the images have more than one mask, such as one per class, or
    any has two whose names differ by a number; otherwise "".

    ``images``, ``masks``: paths under their folders. ``known``: the patterns of the images' names.
    ``together``: both are files of one folder.
    """
    owned = owned_masks(images, masks, known, together)
    used = {mask.path for these in owned.values() for mask in these} if together else set[str]()
    count = len(images) - len(used)
    numbered = {image for image in owned if image not in used and _numbered(owned[image])}
    many = {
        image: sorted(mask.path for mask in these)
        for image, these in owned.items()
        if image in numbered or (sum(mask.part > "" for mask in these) > 1 and image not in used)
    }
    if not many or (2 * len(many) < count and not numbered):
        return ""
    image, these = min(many.items())
    return (
        f"{len(many):,} of {count:,} images have several masks ({image}: "
        f"{some_of(these, _SHOWN)}), and segtrain reads one mask of class ids for each image: "
        "merge the masks of an image into one PNG, or choose one with data.pair; masks of two "
        "values, one per object or class, are data.layout=objects in `segtrain data check`"
    )


def _numbered(masks: Sequence[OwnedMask]) -> bool:
    """Whether the names of two masks of an image differ only by a number at the end."""
    parts = [NUMBER.sub("", mask.part) for mask in masks if not mask.folder]
    return len({*parts}) < len(parts)


class OwnedMask(NamedTuple):
    """One of the masks of an image. part: what its name has besides that of the image. folder:
    whether this is a folder.
    """

    path: str
    part: str
    folder: bool


def owned_masks(
    images: Paths, masks: Paths, known: Names, together: bool = False
) -> dict[str, list[OwnedMask]]:
    """Image -> its masks, which have its name and maybe a part of their own. See
    ``several_masks``.
    """
    stems = {name: path for path in images if (name := name_in(known, path)) is not None}
    owned: dict[str, list[OwnedMask]] = defaultdict(list)
    for path in masks:
        name = stem(path)
        whole = [] if together else [(name, "", False)]
        for shorter, rest, folder in itertools.chain(whole, _shorter(name, together)):
            if shorter in stems:
                owned[stems[shorter]].append(OwnedMask(path, rest, folder))
                break
    return owned


def _shorter(path: str, shortest: bool) -> Iterator[tuple[str, str, bool]]:
    """Yield a path without its last parts, without its first parts, and without one folder; longest
    first in each kind. Also yield the part that is left out, and whether it is a folder. shortest:
    the shortest first, since both ``a_mask.png`` and ``a_mask_1.png`` are masks of ``a.png``.

    ``road/p0_car`` gives ``road/p0``, ``road/car``, ``p0_car``, and ``road``.
    """
    folder, slash, name = path.rpartition("/")
    cuts = [match.start() for match in re.finditer(r"[_\-. ]", name)]
    yield from (
        (folder + slash + name[:cut], name[cut + 1 :], False)
        for cut in sorted(cuts, reverse=not shortest)
    )
    yield from ((folder + slash + name[cut + 1 :], name[:cut], False) for cut in cuts)
    parts = path.split("/")
    for index in range(len(parts) if slash else 0):
        rest = "/".join(parts[:index] + parts[index + 1 :])
        yield rest, parts[index], index < len(parts) - 1

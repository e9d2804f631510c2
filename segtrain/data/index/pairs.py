"""Pairs the image and mask files of two folders, by equal names or by patterns of their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

from segtrain.config.paste import command
from segtrain.data.index.entries import Column, Entries, column_of, pack_keys
from segtrain.data.index.listing import WARNING, Watch
from segtrain.data.index.names import NAME, SUFFIXES, Patterns, name_in, part, propose
from segtrain.data.index.unpaired import refuse_unicode_forms, several_masks
from segtrain.data.index.walk import pictures, unread
from segtrain.errors import DataError, some_of
from segtrain.terminal import counted

# Endings that annotation tools add to the names of masks. An ending is removed only if all masks of a split have it.
MASK_ENDINGS = ("_mask", "_masks", "_label", "_labels", "_gt", "_seg", "_L", "-mask", "-label")
_SAME_NAME = "an image and its mask must have the same name: add or remove files"


def pair(
    images: Column, masks: Column, where: str, watch: Watch, fix: Callable[[Column, Column], str] | None = None
) -> Entries:
    """Entries of images and masks with the same key. Raises DataError with the files that have no partner.

    If ``watch.skips``, masks without an image are left out instead, with a warning.

    ``fix``: returns the advice at the end of that error, given the images and the masks.
    """
    if not len(images):
        kinds = ", ".join(sorted(SUFFIXES))
        says = f"{where}: the split has no images ({kinds}): check the folder, data.train_split, and data.split"
        raise DataError(says, code="split-empty", folder=where)
    as_named = masks
    if not images.same_keys(masks):
        masks = _without_ending(images, masks)
    alone = list(_without_partner(images, masks)), list(_without_partner(masks, images))
    if watch.skips and alone[1] and not alone[0]:
        assert masks.codes is not None
        extra = set(alone[1])
        masks = replace(masks, codes=masks.codes[[path not in extra for path in masks]])
        watch.notes.append(f"{WARNING}{counted(len(extra), 'mask')} without an image left out: {some_of(alone[1])}")
    elif any(alone):
        refuse_unicode_forms(where, map(str, images.keys), map(str, masks.keys))
        others = [text for folder in (images.prefix, masks.prefix) for text in unread(folder)]
        raise _unpaired(where, *alone, others, fix(images, as_named) if fix else _SAME_NAME)
    return Entries(images, replace(masks, blob=images.blob, bounds=images.bounds), {"name": images.keys})


def _unpaired(where: str, images: list[str], masks: list[str], others: list[str], fix: str) -> DataError:
    """The error for images and masks without a partner. ``others``: sentences about other files in the folders."""
    problems = [f"{counted(len(images), 'file')} without a mask: {some_of(images)}"] * bool(images)
    problems += [f"{counted(len(masks), 'file')} (masks) without an image: {some_of(masks)}"] * bool(masks)
    fix += "" if images else ". To leave these masks out: data.faults=skip"
    says = f"{where}: {'; '.join(problems + others)}: {fix}"
    return DataError(says, code="files-unpaired", folder=where, images=len(images), masks=len(masks))


def name_patterns(images: Column, masks: Column, tried: Callable[[Patterns], list[str] | None]) -> str:
    """The advice for images and masks without a partner: patterns for data.pair, if some fit.

    tried: returns the patterns in the form that fits all splits, or None.
    Raises DataError if images have several masks.
    """
    names = [[str(path)[len(files.prefix) :] for path in files] for files in (images, masks)]
    found = propose(names[0], names[1])
    several = several_masks(names[0], names[1], found.patterns[0] if found else NAME)
    if several:
        raise DataError(f"{images.prefix}: {several}", code="several-masks-per-image", folder=images.prefix)
    if not found:
        return _SAME_NAME
    patterns = tried(found.patterns)
    if not patterns:
        only = f"the names differ: {list(found.patterns)} fits this split, but not the others"
        return f"{only}: name the pairs in lists (data.layout=list)"
    setting = command({"data.pair": patterns})
    return f"the names differ: {setting} pairs {found.pairs:,} of {len(images):,} images"


def by_pattern(patterns: tuple[str, str], images: str, masks: str, watch: Watch) -> Entries:
    """Pairs of files whose names match two patterns, see ``names.name_in``. Other files are left out, with a warning.

    Raises DataError for a pattern that matches no file, for two files with the same name, and for files without a
    partner.
    """
    paths = pictures(images, "data.images", watch), pictures(masks, "data.masks", watch)
    in_images, in_masks = _named(images, paths[0], patterns[0]), _named(masks, paths[1], patterns[1])
    together = os.path.realpath(images) == os.path.realpath(masks)
    if together:
        part(patterns, in_images, in_masks)
    without_mask = [os.path.join(images, in_images[name]) for name in sorted(in_images.keys() - in_masks.keys())]
    without_image = [os.path.join(masks, in_masks[name]) for name in sorted(in_masks.keys() - in_images.keys())]
    if without_mask or (without_image and not watch.skips):
        refuse_unicode_forms(images, in_images, in_masks)
        fix = f"with data.pair={list(patterns)}: add or remove files, or correct data.pair"
        raise _unpaired(images, without_mask, without_image, [], fix)
    names = sorted(in_images)
    in_masks = {name: in_masks[name] for name in names}
    others = [set(these) - set(known.values()) for these, known in zip(paths, (in_images, in_masks))]
    left = [(images, others[0] & others[1])] if together else [(images, others[0]), (masks, others[1])]
    watch.notes += _left_out(patterns, len(names), [len(these) for these in paths], left)
    image = column_of(map(in_images.get, names), os.path.join(images, ""))
    mask = column_of(map(in_masks.get, names), os.path.join(masks, ""))
    return Entries(image, mask, {"name": column_of(names)})


def _left_out(patterns: tuple[str, str], pairs: int, counts: list[int], left: list[tuple[str, set[str]]]) -> list[str]:
    """The warning about files that match no pattern, if there are any. ``counts``: all files of each folder."""
    parts = [
        f"{len(alone):,} of {count:,} files in {folder} ({', '.join(sorted(alone)[:3])}{', ...' * (len(alone) > 3)})"
        for (folder, alone), count in zip(left, counts)
        if alone
    ]
    if not parts:
        return []
    of = f" of {counts[0]:,}" if len(left) > 1 else ""
    why = "left out, because they match no pattern or have no image"
    says = f"{pairs:,}{of} images have a mask with data.pair={list(patterns)}; {why}"
    return [f"{WARNING}{says}: {', '.join(parts)}"]


def _named(folder: str, paths: list[str], pattern: str) -> dict[str, str]:
    """Name (see ``name_in``) -> path of each file that matches the pattern.

    Raises DataError if two files have the same name, or if no file matches.
    """
    found = dict[str, str]()
    for path in paths:
        key = name_in(pattern, path)
        if key is None:
            continue
        if key in found:
            file, other = os.path.join(folder, path), os.path.join(folder, found[key])
            says = f"{file}: {other} has the same name under {pattern!r}: keep one of them"
            raise DataError(says, code="name-repeated", file=file, other=other)
        found[key] = path
    if not found:
        few = ", ".join(os.path.join(folder, path) for path in paths[:3])
        says = f"{folder}: no file matches {pattern!r} of data.pair: the folder has {few or 'no images'}"
        raise DataError(says, code="pattern-matches-nothing", folder=folder, pattern=pattern)
    return found


def _without_ending(images: Column, masks: Column) -> Column:
    """Remove an ending of MASK_ENDINGS that all keys of the masks have, unless a key already equals an image's."""
    ending = next((e for e in MASK_ENDINGS if len(masks) and all(str(key).endswith(e) for key in masks.keys)), "")
    if not ending or sum(1 for _ in _without_partner(masks, images)) < len(masks):
        return masks
    assert masks.codes is not None
    rows = [f"{str(key)[: -len(ending)]}\0{chr(code)}" for key, code in zip(masks.keys, masks.codes.tolist())]
    rows.sort()
    return pack_keys(rows, masks.prefix, tuple(ending + tail for tail in masks.tails))


def _without_partner(these: Column, those: Column) -> Iterator[str]:
    """Files of the first column whose key is not in the second. Both are sorted, so one pass without a set suffices."""
    if these.same_keys(those):
        return
    others = iter(those.keys)
    other = next(others, None)
    for index, key in enumerate(these.keys):
        while other is not None and str(other) < str(key):
            other = next(others, None)
        if other != key:
            yield str(these[index])

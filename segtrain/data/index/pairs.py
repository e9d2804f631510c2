"""Which files of two folders are pairs of an image and its mask: by the same name, or by patterns of their names?"""

from __future__ import annotations

import difflib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from segtrain.config.paste import command
from segtrain.data.index.entries import Column, Entries, Texts, TextsBuilder, pack_keys
from segtrain.data.index.listing import WARNING, Watch
from segtrain.data.index.names import NAME, SUFFIXES, Pattern, is_folder, part, propose
from segtrain.data.index.unpaired import other_forms, settings_that_fit, several_masks
from segtrain.errors import DataError

# Endings that annotation tools add to a mask's name. Taken off only where every mask of the split has the same one.
MASK_ENDINGS = ("_mask", "_masks", "_label", "_labels", "_gt", "_seg", "_L", "-mask", "-label")

_NOT_READ = {".txt": " (YOLO's labels are boxes or polygons: draw them into masks of class ids)"}


def no_folder(folder: str, what: str) -> DataError:
    """The error for a missing folder, with the nearest name that exists. ``what``: what the folder should hold."""
    place = Path(folder)
    parent = next((p for p in place.parents if p.is_dir()), Path("."))
    missing = place.relative_to(parent).parts[0] if parent in place.parents else place.name
    there = sorted(p.name for p in parent.iterdir() if p.is_dir() and not p.name.startswith("."))
    near = difflib.get_close_matches(missing, there, n=1, cutoff=0.4)
    hint = (
        f"did you mean {str(parent / near[0])!r}?"
        if near
        else f"{str(parent)!r} holds {', '.join(there[:8]) or 'no folder'}"
    )
    return DataError(
        f"{folder}: {what}: no such folder: {hint}",
        code="folder-missing",
        folder=folder,
        near=near[0] if near else None,
    )


def files_under(folder: str, what: str, watch: Watch, ending: str = "") -> Column:
    """Pictures in a folder and its subfolders, sorted by key (relative path without suffix and ``ending``), which is their text.

    Raises DataError for a missing folder, for one that cannot be read, and for two files of one key.
    """
    if not os.path.isdir(folder):
        raise no_folder(folder, what)
    rows: list[str] = []  # key, "\0", number of what follows the key: sorts as the keys do, and is one object a file
    tails: dict[str, int] = {}
    _walk(folder, "", ending, rows, tails, watch, _above(folder))
    rows.sort()
    texts, codes = pack_keys(rows)
    files = Column(texts, os.path.join(folder, ""), ("", *tails), codes)
    for index in _repeated(files.texts):
        first, second = sorted((files[index] or "", files[index + 1] or ""))
        raise DataError(
            f"{second}: {first} has the same name: keep one of them (or say with data.pair which ending is meant)"
        )
    return files


Place = tuple[int, int]  # a folder's device and number there: the same by whatever name one comes to it


def _above(folder: str) -> dict[Place, str]:
    """The folders above one."""
    return {_place(str(path)): str(path) for path in Path(os.path.realpath(folder)).parents}


def _place(folder: str) -> Place:
    try:
        status = os.stat(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror or error}): check its rights") from None
    return status.st_dev, status.st_ino


def _walk(
    folder: str, below: str, ending: str, rows: list[str], tails: dict[str, int], watch: Watch, walked: dict[Place, str]
) -> None:
    """Adds the pictures of one folder and of those in it, links followed; ``below`` is its own key with a slash.

    ``walked``: folders above, and those seen so far. Raises DataError for one that is met again: its files would count twice, or,
    by a link to a folder above, for ever.
    """
    place = _place(folder)
    if place in walked:
        raise DataError(f"{folder}: is {walked[place]} once more, so that files would count twice: remove the link")
    walked[place] = folder
    inner = []
    numbers: dict[str, int | None] = {}  # suffix -> number of its tail; None: no picture
    try:
        with os.scandir(watch.look(folder)) as listing:
            for item in listing:
                name = item.name
                if is_folder(item):
                    inner.append(name)
                    continue
                stem, _, suffix = name.rpartition(".")
                if not stem or name[0] == "." or (ending and not stem.endswith(ending)):
                    continue
                if suffix not in numbers:
                    known = f".{suffix}".lower() in SUFFIXES
                    numbers[suffix] = tails.setdefault(f"{ending}.{suffix}", len(tails) + 1) if known else None
                number = numbers[suffix]
                if number is not None:
                    rows.append(f"{below}{stem[: len(stem) - len(ending)]}\0{chr(number)}")
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror or error}): check its rights") from None
    for name in inner:
        _walk(os.path.join(folder, name), f"{below}{name}/", ending, rows, tails, watch, walked)


def _repeated(texts: Texts) -> Iterator[int]:
    """Places in a sorted row of strings that the next one repeats."""
    return (place for place, (text, after) in enumerate(itertools.pairwise(texts)) if text == after)


def pair(images: Column, masks: Column, where: str, cure: Callable[[Column, Column], str] | None = None) -> Entries:
    """Entries of images and masks of the same key. Raises DataError listing those that stand alone."""
    if not len(images):
        raise DataError(
            f"{where}: the split holds no image ({', '.join(sorted(SUFFIXES))}): check the folder and data.split"
        )
    as_named = masks
    if not images.texts.same(masks.texts):
        masks = _without_ending(images, masks)
    problems = []
    for odd, what in (
        (_alone(images, masks), "without a mask"),
        (_alone(masks, images), "(masks) without an image"),
    ):
        shown = list(itertools.islice(odd, 5))
        if shown:
            rest = sum(1 for _ in odd)
            listed = ", ".join(shown) + (f" and {rest} more" if rest else "")
            count = len(shown) + rest
            problems.append(f"{count} file{'s' * (count > 1)} {what}: {listed}")
    if problems:
        cause = other_forms(map(str, images.texts), map(str, masks.texts), (images.prefix, masks.prefix))
        if cause:
            raise DataError(f"{where}: {cause}")
        for folder in (images.prefix, masks.prefix):
            problems += unread(folder)
        raise DataError(f"{where}: {'; '.join(problems)}: {(cure or same_name)(images, as_named)}")
    return Entries(images, Column(images.texts, masks.prefix, masks.tails, masks.codes), {"name": Column(images.texts)})


def unread(folder: str) -> list[str]:
    """What else lies in a folder, by endings that are not read: ``masks/ holds 3 .npy files, which are not read``."""
    endings = Counter(
        os.path.splitext(name)[1].lower()
        for _, _, names in os.walk(folder)
        for name in names
        if not name.startswith(".")
    )
    others = [(ending, count) for ending, count in endings.most_common() if ending and ending not in SUFFIXES][:3]
    return [
        f"{folder} holds {count:,} {ending} file{'s' * (count > 1)}, which are not read" + _NOT_READ.get(ending, "")
        for ending, count in others
    ]


def same_name(images: Column, masks: Column) -> str:
    """What puts images and masks that stand alone right."""
    deeper = settings_that_fit(map(str, images.texts), map(str, masks.texts))
    if deeper:
        return f"the names go together in other folders: {deeper}"
    return "an image and its mask have the same name: add or take out files"


def name_patterns(images: Column, masks: Column) -> str:
    """The same where data.pair may say how names go together. Raises DataError where an image has several masks."""
    names = [[str(path)[len(files.prefix) :] for path in files] for files in (images, masks)]
    found = propose(names[0], names[1])
    several = several_masks(names[0], names[1], found.patterns[0] if found else Pattern(NAME))
    if several:
        alone = settings_that_fit(map(str, images.texts), map(str, masks.texts))
        raise DataError(f"{images.prefix}: {several}" + (f". Or train on one of them alone: {alone}" if alone else ""))
    if not found:
        return same_name(images, masks)
    setting = command({"data.pair": [pattern.text for pattern in found.patterns]})
    return f"the names differ: {setting} pairs {found.pairs:,} of {len(images):,} images"


def by_pattern(patterns: tuple[str, str], images: str, masks: str, watch: Watch) -> Entries:
    """Pairs of files whose names fit two patterns, see ``names.Pattern``; what fits none is left out, with a warning.

    Raises DataError for patterns that fit no file, two files of one name, and files that stand alone.
    """
    found = (Pattern(patterns[0]), Pattern(patterns[1]))
    paths = pictures(images, "data.images", watch), pictures(masks, "data.masks", watch)
    in_images, in_masks = _named(images, paths[0], found[0]), _named(masks, paths[1], found[1])
    together = os.path.realpath(images) == os.path.realpath(masks)
    if together:
        part(found, in_images, in_masks)
    problems = []
    for these, those, folder, what in (
        (in_images, in_masks, images, "without a mask"),
        (in_masks, in_images, masks, "(masks) without an image"),
    ):
        odd = [os.path.join(folder, these[name]) for name in sorted(these.keys() - those.keys())]
        if odd:
            shown = ", ".join(odd[:5]) + (f" and {len(odd) - 5} more" if len(odd) > 5 else "")
            problems.append(f"{len(odd)} file{'s' * (len(odd) > 1)} {what}: {shown}")
    if problems:
        cause = other_forms(in_images, in_masks, (images, masks))
        if cause:
            raise DataError(f"{images}: {cause}")
        raise DataError(
            f"{images}: {'; '.join(problems)}: by data.pair={list(patterns)}: add or take out files, or correct it"
        )
    names = sorted(in_images)
    others = [set(these) - set(known.values()) for these, known in zip(paths, (in_images, in_masks))]
    left = [(images, others[0] & others[1])] if together else [(images, others[0]), (masks, others[1])]
    watch.notes += _left_out(patterns, len(names), [len(these) for these in paths], left)
    image, mask, shared = TextsBuilder(), TextsBuilder(), TextsBuilder()
    for key in names:
        image.append(in_images[key])
        mask.append(in_masks[key])
        shared.append(key)
    under = [os.path.join(folder, "") for folder in (images, masks)]
    return Entries(Column(image.done(), under[0]), Column(mask.done(), under[1]), {"name": Column(shared.done())})


def _left_out(patterns: tuple[str, str], pairs: int, counts: list[int], left: list[tuple[str, set[str]]]) -> list[str]:
    """The warning about pictures that fit no pattern, where there are some. ``counts``: all pictures of each folder."""
    parts = [
        f"{len(odd):,} of {count:,} pictures in {folder} ({', '.join(sorted(odd)[:3])}{', ...' * (len(odd) > 3)})"
        for (folder, odd), count in zip(left, counts)
        if odd
    ]
    if not parts:
        return []
    of = f" of {counts[0]:,}" if len(left) > 1 else ""
    return [
        f"{WARNING}{pairs:,}{of} images have a mask by data.pair={list(patterns)}; left out, since they fit "
        f"no pattern: {', '.join(parts)}"
    ]


def pictures(folder: str, what: str, watch: Watch) -> list[str]:
    """Paths of the pictures in a folder and below it, from there. Raises DataError where it cannot be listed."""
    if not os.path.isdir(folder):
        raise no_folder(folder, what)
    rows, tails = list[str](), dict[str, int]()
    _walk(folder, "", "", rows, tails, watch, _above(folder))
    endings = list(tails)
    return [row[:-2] + endings[ord(row[-1]) - 1] for row in rows]


def _named(folder: str, paths: list[str], pattern: Pattern) -> dict[str, str]:
    """The pictures of a folder that fit a pattern, by their name under it."""
    found = dict[str, str]()
    for path in paths:
        key = pattern.name_of(path)
        if key is None:
            continue
        if key in found:
            raise DataError(
                f"{os.path.join(folder, path)}: {os.path.join(folder, found[key])} has the same name under "
                f"{pattern.text!r}: keep one of them"
            )
        found[key] = path
    if not found:
        few = ", ".join(os.path.join(folder, path) for path in paths[:3])
        raise DataError(f"{folder}: no file fits {pattern.text!r} of data.pair: it holds {few or 'no image'}")
    return found


def _without_ending(images: Column, masks: Column) -> Column:
    """Masks whose keys all have one known ending lose it, if none fits an image as it is."""
    ending = next((e for e in MASK_ENDINGS if len(masks) and all(str(key).endswith(e) for key in masks.texts)), "")
    if not ending or sum(1 for _ in _alone(masks, images)) < len(masks):
        return masks
    assert masks.codes is not None
    rows = [f"{str(key)[: -len(ending)]}\0{chr(code)}" for key, code in zip(masks.texts, masks.codes.tolist())]
    rows.sort()
    texts, codes = pack_keys(rows)
    return Column(texts, masks.prefix, tuple(ending + tail for tail in masks.tails), codes)


def _alone(these: Column, those: Column) -> Iterator[str]:
    """Files of the first column whose key the second one lacks. Both are sorted, so no table is needed."""
    if these.texts.same(those.texts):
        return
    others = iter(those.texts)
    other = next(others, None)
    for place, key in enumerate(these.texts):
        while other is not None and str(other) < str(key):
            other = next(others, None)
        if other != key:
            yield str(these[place])

"""Patterns of file names: the part that an image and its mask share, and the text before and after
it.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from segtrain.data.storage import LOCAL, Store, system_folder

# Endings of the image files that ``decode`` reads, in any layout, in shards, and in folders to
# predict.
SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".gif")
)
# Masks may also be arrays, in a folder without any image file.
ARRAYS = (".npy", ".npz", ".mat")
# Where stored values of bands are kept, arrays are images, too.
IMAGE_ARRAYS = frozenset((".npy",))
NAME = "{name}"
# ``propose`` compares patterns on at most this many images and this many masks.
_LOOKED_AT = 2000
# A pattern of image names and one of mask names, such as {name}.jpg and {name}_mask.png.
Patterns = tuple[str, str]
_FIRST = re.compile(r"^[^_\-. ]*[_\-. ]")


def is_image(name: str, arrays: bool = False) -> bool:
    suffixes = SUFFIXES | IMAGE_ARRAYS if arrays else SUFFIXES
    return name[:1] != "." and os.path.splitext(name)[1].lower() in suffixes


def is_array(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in ARRAYS


def images_in(folder: str, store: Store) -> list[str]:
    """Names of the images that lie directly in a folder."""
    return list(filter(is_image, store.list(folder, "")))


def is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:  # a link that leads to itself
        return False


def folders_in(folder: str, store: Store = LOCAL) -> list[str]:
    """Names of the folders in a folder, sorted, without hidden and system folders; [] where it
    cannot be listed.
    """
    if store is not LOCAL:
        return [name[:-1] for name in store.list(folder, "/")]
    try:
        with os.scandir(folder) as listing:
            return sorted(
                item.name for item in listing if is_folder(item) and not system_folder(item.name)
            )
    except OSError:
        return []


def name_in(pattern: str, path: str) -> str | None:
    """The name that a pattern finds in a path; None without a match.

    ``{name}_mask.png`` finds the name ``town/a`` in ``town/a_mask.png``. ``{name}`` is the part
    that an image and its mask share. A pattern without a suffix matches any suffix.
    """
    folder, _, file = path.rpartition("/")
    before, _, after = pattern.partition(NAME)
    if f".{after.rpartition('.')[2]}".lower() not in SUFFIXES | IMAGE_ARRAYS:
        file = os.path.splitext(file)[0]
    if len(file) <= len(before) + len(after) or not (
        file.startswith(before) and file.endswith(after)
    ):
        return None
    name = file[len(before) : len(file) - len(after)]
    return f"{folder}/{name}" if folder else name


@dataclass(frozen=True)
class Proposal:
    """Patterns of images and masks, and the number of images that have a mask by these patterns."""

    patterns: Patterns
    pairs: int


# The files that match a pattern: name (see ``name_in``) -> path.
Named = dict[str, str]


def fitted(
    patterns: Sequence[str], images: Sequence[str], masks: Sequence[str], together: bool = False
) -> tuple[Named, Named]:
    """Images and masks that match their pattern. ``together``: both are files of one folder."""
    in_images, in_masks = (
        {name: path for path in paths if (name := name_in(pattern, path)) is not None}
        for pattern, paths in zip(patterns, (images, masks))
    )
    if together:
        part(patterns, in_images, in_masks)
    return in_images, in_masks


def part(patterns: Sequence[str], in_images: Named, in_masks: Named) -> None:
    """If a file matches both patterns, keep it for the longer pattern only. Changes the dicts in
    place.
    """
    longer = len(patterns[1]) > len(patterns[0])
    losing, keeping = (in_images, in_masks) if longer else (in_masks, in_images)
    both = set(losing.values()) & set(keeping.values())
    for name in [name for name, path in losing.items() if path in both]:
        del losing[name]


def propose(images: Sequence[str], masks: Sequence[str]) -> Proposal | None:
    """Patterns with which at least half of the images have a mask. images, masks: paths under the
    two folders.
    """
    some, others = images[:_LOOKED_AT], masks[:_LOOKED_AT]
    best, most = None, 0
    (starts, ends), (other_starts, other_ends) = _around(some), _around(others)
    for start, other_start, end, other_end in itertools.product(
        starts, other_starts, ends, other_ends
    ):
        before, other_before = _trimmed(start, other_start, -1)
        after, other_after = _trimmed(end, other_end, 0)
        patterns = (
            _with_suffix(before + NAME + after, some),
            _with_suffix(other_before + NAME + other_after, others),
        )
        if patterns[0] == patterns[1]:
            continue
        pairs = count_pairs(patterns, some, others)
        if pairs > most:
            best, most = patterns, pairs
    if best is None:
        return None
    pairs = count_pairs(best, images, masks)
    return Proposal(best, pairs) if 2 * pairs >= len(images) else None


def count_pairs(patterns: Sequence[str], images: Sequence[str], masks: Sequence[str]) -> int:
    one, other = fitted(patterns, images, masks)
    return len(one.keys() & other.keys())


def _with_suffix(pattern: str, paths: Sequence[str]) -> str:
    """A pattern with the suffix of its files: for ``a.jpg.png``, ``{name}.jpg`` becomes
    ``{name}.jpg.png``.
    """
    if os.path.splitext(pattern)[1].lower() not in SUFFIXES:
        return pattern
    return pattern + Counter(os.path.splitext(path)[1] for path in paths).most_common(1)[0][0]


def _around(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Possible beginnings of the file names, and possible endings before the suffix."""
    stems = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    return _starts(stems), [start[::-1] for start in _starts([stem[::-1] for stem in stems])]


def _starts(stems: Sequence[str]) -> list[str]:
    """Possible beginnings of names, shortest first.

    They are "", the most common text up to the first separator, and the text with which all names
    begin.
    """
    first = Counter(match[0] for stem in stems if (match := _FIRST.search(stem)))
    alike = itertools.takewhile(
        lambda pair: pair[0] == pair[1], zip(min(stems), max(stems)) if len(stems) > 1 else ()
    )
    shared = "".join(letter for letter, _ in alike)
    return sorted({"", shared, *(part for part, _ in first.most_common(1))}, key=len)


def _trimmed(one: str, other: str, side: int) -> tuple[str, str]:
    """Remove the letters and digits next to ``{name}`` that ``one`` and ``other`` share: they
    belong to the name.

    side: -1 for texts before the name, 0 for texts after it.
    """
    while one and other and one[side] == other[side] and one[side].isalnum():
        one, other = (one[1:], other[1:]) if side == 0 else (one[:-1], other[:-1])
    return one, other

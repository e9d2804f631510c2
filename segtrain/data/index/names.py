"""Patterns of file names: the part that an image and its mask share, and the text before and after
it.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from segtrain.config.label_values import Names, Patterns
from segtrain.data.storage import LOCAL, Store, system_folder

# Endings of the image files that ``decode`` reads, in any layout, in shards, and in folders to
# predict.
SUFFIXES = frozenset(
    (
        *(".jpg", ".jpeg", ".jfif", ".jp2", ".png", ".bmp", ".tif", ".tiff", ".webp"),
        *(".ppm", ".pgm", ".gif"),
    )
)
# Masks may also be arrays, in a folder without any image file.
ARRAYS = (".npy", ".npz", ".mat")
# Where stored values of bands are kept, arrays are images, too.
IMAGE_ARRAYS = frozenset((".npy",))
NAME = "{name}"
Both = tuple[str, str]  # of the images, of the masks
Paths = Sequence[str]  # below a folder
# ``propose`` compares patterns on at most this many images and this many masks.
_LOOKED_AT = 2000
# It proposes at most this many patterns for the names of one folder.
_MOST_WAYS = 4
_FIRST = re.compile(r"^[^_\-. ]*[_\-. ]")


def stem(path: str) -> str:
    """A path without its suffix."""
    return os.path.splitext(path)[0]


def suffix(path: str) -> str:
    """The suffix of a path, such as ".png", in lower case."""
    return os.path.splitext(path)[1].lower()


def in_split(root: str, template: str, split: str) -> str:
    """The path of a folder or file under the root, with the split in place of ``{split}``."""
    return os.path.join(root, template.replace("{split}", split))


def is_image(name: str, arrays: bool = False) -> bool:
    suffixes = SUFFIXES | IMAGE_ARRAYS if arrays else SUFFIXES
    return name[:1] != "." and suffix(name) in suffixes


def is_array(path: str) -> bool:
    return suffix(path) in ARRAYS


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
    if not store.local:
        return [name[:-1] for name in store.list(folder, "/")]
    try:
        with os.scandir(folder) as listing:
            return sorted(
                item.name
                for item in listing
                if is_folder(item)
                and not system_folder(item.name)
                and not store.leaves_out(item.path)
            )
    except OSError:
        return []


def ways(names: Names) -> tuple[str, ...]:
    """The patterns, of which the longest that matches a file counts, longest first."""
    return (names,) if isinstance(names, str) else tuple(sorted(names, key=len, reverse=True))


def replaced(patterns: Patterns, old: str, new: str) -> Patterns:
    """The patterns with another text, such as that of a split for ``{split}``."""
    images, masks = (
        text.replace(old, new)
        if isinstance(text, str)
        else tuple(one.replace(old, new) for one in text)
        for text in patterns
    )
    return images, masks


def name_in(names: Names, path: str) -> str | None:
    """The name that the longest matching pattern finds in a path; None without a match.

    ``{name}_mask.png`` finds the name ``town/a`` in ``town/a_mask.png``. ``{name}`` is the part
    that an image and its mask share. A pattern without a suffix matches any suffix. A pattern with
    a slash is that of the whole path; ``*/masks/{name}`` finds ``town/a`` in ``town/masks/a.png``.
    """
    matches = (_name_in(pattern, path) for pattern in ways(names))
    return next((name for name in matches if name is not None), None)


def _name_in(pattern: str, path: str) -> str | None:
    folder, _, file = path.rpartition("/")
    if pattern.startswith("*/"):
        inner, _, pattern = pattern[1:].rpartition("/")
        if not f"/{folder}".endswith(inner):
            return None
        folder = f"/{folder}".removesuffix(inner)[1:]
    elif "/" in pattern:
        folder, file = "", path
    before, _, after = pattern.partition(NAME)
    if f".{after.rpartition('.')[2]}".lower() not in SUFFIXES | IMAGE_ARRAYS:
        file = stem(file)
    if len(file) <= len(before) + len(after) or not (
        file.startswith(before) and file.endswith(after)
    ):
        return None
    name = file[len(before) : len(file) - len(after)]
    return f"{folder}/{name}" if folder else name


def siblings(patterns: Sequence[str], path: str) -> list[str]:
    """The files of an image, of which ``path`` is the first, by the patterns of their names. [] if
    it does not match the first one.
    """
    text = re.escape(patterns[0]).replace(r"\{name\}", "(?P<name>.+)")
    match = re.fullmatch("(.*/)?" + text.replace(r"\{split\}", "(?P<split>[^/]+)"), path)
    if not match:
        return []
    files = [(match[1] or "") + pattern for pattern in patterns]
    for key, value in match.groupdict().items():
        files = [file.replace(f"{{{key}}}", value) for file in files]
    return files


@dataclass(frozen=True)
class Proposal:
    """Patterns of images and masks, and the number of images that have a mask by these patterns, of
    all images.
    """

    patterns: Patterns
    pairs: int
    images: int


# The files that match a pattern: name (see ``name_in``) -> path.
Named = dict[str, str]


def fitted(
    patterns: Patterns, images: Paths, masks: Paths, together: bool = False
) -> tuple[Named, Named]:
    """Images and masks that match their pattern. ``together``: both are files of one folder."""
    in_images, in_masks = (
        {name: path for path in paths if (name := name_in(names, path)) is not None}
        for names, paths in zip(patterns, (images, masks))
    )
    if together:
        part(patterns, in_images, in_masks)
    return in_images, in_masks


def part(patterns: Patterns, in_images: Named, in_masks: Named) -> None:
    """If a file matches patterns of both, keep it for the longest one only. Changes the dicts in
    place.
    """
    for path in set(in_images.values()) & set(in_masks.values()):
        of_image, of_mask = (
            next(pattern for pattern in ways(names) if _name_in(pattern, path) is not None)
            for names in patterns
        )
        longer = len(of_mask) > len(of_image)
        losing, pattern = (in_images, of_image) if longer else (in_masks, of_mask)
        losing.pop(_name_in(pattern, path) or "")


def propose_for(listings: Mapping[str, Sequence[Sequence[str]]]) -> Proposal | None:
    """Patterns with which at least half of the images of each split have a mask. listings: split ->
    paths of its images and of its masks.

    These are the patterns of one split, maybe with ``{split}`` for its name, or those of all splits
    together.
    """
    of_splits: list[Patterns] = []
    candidates: list[Patterns] = []
    for split, (images, masks) in listings.items():
        proposal = None if same_stems(images, masks) else propose(images, masks)
        if images:
            of_splits.append(proposal.patterns if proposal else (NAME, NAME))
            candidates += [of_splits[-1], replaced(of_splits[-1], split, "{split}")]
    best = None
    for patterns in (*candidates, _joined(of_splits)):
        pairs = [
            count_pairs(replaced(patterns, "{split}", split), images, masks)
            for split, (images, masks) in listings.items()
        ]
        counts = [len(images) for images, _ in listings.values()]
        if (
            all(2 * paired >= count for paired, count in zip(pairs, counts))
            and patterns[0] != patterns[1]
            and (best is None or sum(pairs) > best.pairs)
        ):
            best = Proposal(patterns, sum(pairs), sum(counts))
    return best


def same_stems(images: Paths, masks: Paths) -> bool:
    """Whether each image has a mask of its name, and no mask is left."""
    return {*map(stem, images)} == {*map(stem, masks)}


def _joined(several: Sequence[Patterns]) -> Patterns:
    """All of the patterns together."""
    images, masks = (
        tuple(dict.fromkeys(pattern for patterns in several for pattern in ways(patterns[side])))
        for side in (0, 1)
    )
    return (
        images[0] if len(images) == 1 else images,
        masks[0] if len(masks) == 1 else masks,
    )


def propose(images: Paths, masks: Paths) -> Proposal | None:
    """Patterns with which at least half of the images have a mask. images, masks: paths under the
    two folders.
    """
    patterns, most, left = None, 0, (images, masks)
    for _ in range(_MOST_WAYS):
        more = _most_frequent(*(paths[:_LOOKED_AT] for paths in left))
        if more is None:
            break
        tried = _joined([patterns, more] if patterns else [more])
        pairs = count_pairs(tried, images, masks)
        if pairs <= most:
            break
        patterns, most = tried, pairs
        one, other = fitted(patterns, images, masks)
        paired = {named[name] for named in (one, other) for name in one.keys() & other.keys()}
        left = [p for p in images if p not in paired], [p for p in masks if p not in paired]
    if patterns is None or 2 * most < len(images):
        return None
    return Proposal(patterns, most, len(images))


def _most_frequent(images: Paths, masks: Paths) -> Patterns | None:
    """The pattern of images and that of masks with the most pairs; None if no name fits."""
    best, most = None, 0
    (starts, ends), (other_starts, other_ends) = _around(images), _around(masks)
    for start, other_start, end, other_end in itertools.product(
        starts, other_starts, ends, other_ends
    ):
        before, other_before = _trimmed(start, other_start, -1)
        after, other_after = _trimmed(end, other_end, 0)
        patterns = (
            _with_suffix(before + NAME + after, images),
            _with_suffix(other_before + NAME + other_after, masks),
        )
        if patterns[0] == patterns[1]:
            continue
        pairs = count_pairs(patterns, images, masks)
        if pairs > most:
            best, most = patterns, pairs
    return best


def count_pairs(patterns: Patterns, images: Paths, masks: Paths) -> int:
    one, other = fitted(patterns, images, masks)
    return len(one.keys() & other.keys())


def _with_suffix(pattern: str, paths: Sequence[str]) -> str:
    """A pattern with the suffix of its files: for ``a.jpg.png``, ``{name}.jpg`` becomes
    ``{name}.jpg.png``.
    """
    if suffix(pattern) not in SUFFIXES:
        return pattern
    return pattern + Counter(os.path.splitext(path)[1] for path in paths).most_common(1)[0][0]


def _around(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Possible beginnings of the file names, and possible endings before the suffix."""
    stems = [stem(os.path.basename(path)) for path in paths]
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

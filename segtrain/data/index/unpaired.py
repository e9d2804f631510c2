"""Explains why images and masks do not match: several masks per image, Unicode forms, other folders."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from segtrain.config.paste import command
from segtrain.data.index.names import NAME, fitted, name_in
from segtrain.errors import some_of

_SHOWN = 3
# Number of images that ``folders_that_fit`` looks at.
_LOOKED_AT = 2000
_TO_NFC = (
    "import pathlib, sys, unicodedata as u; [p.rename(p.with_name(u.normalize('NFC', p.name))) "
    "for p in sorted(pathlib.Path(sys.argv[1]).rglob('*'))[::-1]]"
)


def several_masks(images: Sequence[str], masks: Sequence[str], known: str, together: bool = False) -> str:
    """The message if at least half of the images have more than one mask, such as one per class; otherwise "".

    ``images``, ``masks``: paths under their folders. ``known``: the pattern of the images' names. ``together``: both
    are files of one folder.
    """
    stems = {name: path for path in images if (name := name_in(known, path)) is not None}
    owned: dict[str, list[str]] = defaultdict(list)
    for path in masks:
        stem = os.path.splitext(path)[0]
        if together or stem not in stems:
            owner = next((shorter for shorter in _shorter(stem) if shorter in stems), None)
            if owner is not None:
                owned[stems[owner]].append(path)
    used = {path for these in owned.values() for path in these} if together else set[str]()
    count = len(images) - len(used)
    many = {image: sorted(these) for image, these in owned.items() if len(these) > 1 and image not in used}
    if not many or 2 * len(many) < count:
        return ""
    image, these = min(many.items())
    shown = some_of(these, _SHOWN)
    ids = ", ".join(f"{number} where {mask} is set" for number, mask in enumerate(these[:_SHOWN], 1))
    return (
        f"{len(many):,} of {count:,} images have several masks ({image}: {shown}), and segtrain reads one mask of "
        f"class ids for each image. Merge the masks of an image into one PNG: {ids}{', ...' * (len(these) > _SHOWN)}, "
        "else 0" + _one_alone(image, these, images, masks, known, together)
    )


def _shorter(stem: str) -> Iterator[str]:
    """Yield a path without its last parts, without its first parts, and without one folder; longest first in each kind.

    ``road/p0_car`` gives ``road/p0``, ``road/car``, ``p0_car``, and ``road``.
    """
    folder, slash, name = stem.rpartition("/")
    cuts = [match.start() for match in re.finditer(r"[_\-. ]", name)]
    yield from (folder + slash + name[:cut] for cut in reversed(cuts))
    yield from (folder + slash + name[cut + 1 :] for cut in cuts)
    parts = stem.split("/")
    yield from ("/".join(parts[:index] + parts[index + 1 :]) for index in range(len(parts)) if slash)


def _one_alone(
    image: str, these: list[str], images: Sequence[str], masks: Sequence[str], known: str, together: bool
) -> str:
    """Advice to train on one mask per image; "" if no pattern selects one. Its data.pair was tried on all files."""
    name, ending = os.path.basename(name_in(known, image) or ""), os.path.splitext(image)[1]
    for mask in map(os.path.basename, these):
        stem, other_ending = os.path.splitext(mask)
        texts = [NAME + mask[len(name) :]] if mask.startswith(name) else []
        texts += [stem[: len(stem) - len(name)] + NAME + other_ending] if stem.endswith(name) else []
        for around, text in itertools.product((known + ending, known), texts):
            one, other = fitted((around, text), images, masks, together)
            if one and one.keys() == other.keys():
                left = len(masks) - len(other) - len(one) * together
                return (
                    f". Or train on one of them alone: {command({'data.pair': [around, text]})} pairs {len(one):,} "
                    f"images and leaves {left:,} masks out"
                )
    return ""


def other_forms(images: Iterable[str], masks: Iterable[str], folders: tuple[str, str]) -> str:
    """The message about names that differ only in their Unicode form; "" if there are none."""
    names = set(images), set(masks)
    by_form = {_nfc(name): name for name in names[0] - names[1]}
    pairs = [(by_form[form], name) for name in sorted(names[1] - names[0]) if (form := _nfc(name)) in by_form]
    if not pairs:
        return ""
    forms = [f"{'NFC' if _nfc(name) == name else 'NFD'} in {folder}" for name, folder in zip(pairs[0], folders)]
    fixes = []
    for these, folder in zip(names, folders):
        if any(_nfc(name) != name for name in these):
            # If two names had the same NFC form, one file would overwrite another.
            apart = len({_nfc(name) for name in these}) == len(these)
            fixes.append(f'python -c "{_TO_NFC}" {shlex.quote(folder)}' if apart else f"by hand in {folder}")
    return (
        f"names that look alike differ in their Unicode normalization ({len(pairs):,}, such as {pairs[0][0]}): "
        f"{', '.join(forms)}: rename the files to NFC: {'; '.join(fixes)}"
    )


def _nfc(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def in_other_form(path: str) -> str:
    """The path of an existing file whose name is the same text in another Unicode form; "" if there is none."""
    forms = (unicodedata.normalize(form, path) for form in ("NFC", "NFD"))
    return next((form for form in forms if form != path and os.path.isfile(form)), "")


def folders_that_fit(images: Sequence[str], masks: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of folders, below the image folder and the mask folder, in which every image has a mask of its name.

    ``images``, ``masks``: paths below the two folders, without suffixes. "" is the folder itself.
    """
    images = images[:_LOOKED_AT]
    above = os.path.commonpath([os.path.dirname(name) for name in images]) if images else ""
    # folder of masks -> the names below it
    inside: dict[str, set[str]] = defaultdict(set)
    for name in masks:
        parts = name.split("/")
        for depth in range(len(parts)):
            inside["/".join(parts[:depth])].add("/".join(parts[depth:]))
    found = []
    for folder in dict.fromkeys(("", above)):
        names = {os.path.relpath(name, folder) if folder else name for name in images}
        found += [(folder, other) for other, there in inside.items() if names and names <= there]
    return [folders for folders in found if any(folders)]


def settings_that_fit(images: Iterable[str], masks: Iterable[str]) -> str:
    """What to add to data.images and data.masks so that the names match; otherwise ""."""
    fit = folders_that_fit(list(images), list(masks))
    if not fit:
        return ""
    deeper = " or ".join(f"/{other}" for one, other in fit if one == fit[0][0] and other)
    parts = [f"/{fit[0][0]} to data.images"] * bool(fit[0][0]) + [f"{deeper} to data.masks"] * bool(deeper)
    return f"add {' and '.join(parts)}"

"""Recognizes images that have several masks, such as one per class."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from segtrain.config.label_values import Names
from segtrain.data.index.names import name_in, stem
from segtrain.errors import some_of

_SHOWN = 3
# At the end of a name: a_mask.png and a_mask_1.png.
NUMBER = re.compile(r"[_\-. ]?\d+$")


def several_masks(
    images: Sequence[str], masks: Sequence[str], known: Names, together: bool = False
) -> str:
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
    images: Sequence[str], masks: Sequence[str], known: Names, together: bool = False
) -> dict[str, list[OwnedMask]]:
    """Image -> its masks, which have its name and maybe a part of their own. See
    ``several_masks``.
    """
    stems = {name: path for path in images if (name := name_in(known, path)) is not None}
    owned: dict[str, list[OwnedMask]] = defaultdict(list)
    for path in masks:
        name = stem(path)
        whole = [] if together else [(name, "", False)]
        for shorter, part, folder in itertools.chain(whole, _shorter(name, together)):
            if shorter in stems:
                owned[stems[shorter]].append(OwnedMask(path, part, folder))
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

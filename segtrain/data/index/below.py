"""Names of images and masks that go together below other folders: ``images/a.jpg`` and ``annotations/trimaps/a.png``."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence

_LOOKED_AT = 2000  # images; a proposal needs no more


def folders_that_fit(images: Sequence[str], masks: Sequence[str]) -> list[tuple[str, str]]:
    """Folders below those of the images and of the masks, "" for these themselves, in which every image has a mask of its name.

    ``images``, ``masks``: paths below them without endings. Nothing where they go together as they are.
    """
    images = images[:_LOOKED_AT]
    above = os.path.commonpath([os.path.dirname(name) for name in images]) if images else ""
    inside: dict[str, set[str]] = defaultdict(set)  # folder of masks -> the names below it
    for name in masks:
        parts = name.split("/")
        for depth in range(len(parts)):
            inside["/".join(parts[:depth])].add("/".join(parts[depth:]))
    found = []
    for folder in dict.fromkeys(("", above)):
        names = {os.path.relpath(name, folder) if folder else name for name in images}
        found += [(folder, other) for other, there in inside.items() if names and names <= there]
    return [] if ("", "") in found else found


def settings_that_fit(images: Iterable[str], masks: Iterable[str]) -> str:
    """What to add to data.images and data.masks, where names go together below these; else ""."""
    fit = folders_that_fit(list(images), list(masks))
    if not fit:
        return ""
    deeper = " or ".join(f"/{other}" for one, other in fit if one == fit[0][0] and other)
    parts = [f"/{fit[0][0]} to data.images"] * bool(fit[0][0]) + [f"{deeper} to data.masks"] * bool(deeper)
    return f"add {' and '.join(parts)}"

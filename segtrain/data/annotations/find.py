"""Finds annotation files and the images that they name, to detect a layout."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from segtrain.data.bucket.tree import local_copy
from segtrain.data.index.detect_pairs import SPLITS, folders_below
from segtrain.data.index.layout import Detected
from segtrain.data.storage import Store

# The first bytes of a file say what it is.
_HEAD = 1 << 16
# At most this many files of a folder are looked at.
_FEW = 3
_SPLIT = re.compile(rf"(?<![a-z])({'|'.join(sorted(SPLITS, key=len, reverse=True))})(?![a-z])")


def files(root: str, store: Store, ending: str) -> Iterator[tuple[str, str]]:
    """The path under the root and the first 64 KiB of files with an ending, such as ".json"; only
    the first files of a folder.
    """
    for folder in ("", *folders_below(root, store)):
        for name in store.list(os.path.join(root, folder), ending)[:_FEW]:
            path = os.path.join(folder, name)
            with open(local_copy(os.path.join(root, path)), "rb") as stream:
                yield path, stream.read(_HEAD).decode("utf-8", "replace")


def by_split(paths: Sequence[str]) -> tuple[str, list[str]]:
    """A path for all splits, with ``{split}`` in place of the name of the split, and the splits of
    the most files that differ only in it. A path without the name of a split: itself, and "all".
    """
    templates: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        names = _SPLIT.findall(path.lower())
        if not names:
            templates[path].append("all")
            continue
        at = path.lower().index(names[-1])
        split = path[at : at + len(names[-1])]
        templates[path.replace(split, "{split}")].append(split)
    return max(templates.items(), key=lambda item: len(item[1]))


def folder_of(images: Sequence[str], near: str, root: str, store: Store) -> str | None:
    """The folder under the root that holds images with the names written in an annotation file.

    images: some of these names. near: the folder of the annotation file under the root. The folder
    next to it comes first, then any other.
    """
    names = {os.path.splitext(re.split(r"[/\\]", image)[-1])[0].lower() for image in images}
    for folder in (near, *sorted(folders_below(root, store), key=lambda f: not f.startswith(near))):
        here = (os.path.splitext(n)[0].lower() for n in store.list(os.path.join(root, folder), ""))
        if names & set(here):
            return folder
    return None


def detected(
    root: str, store: Store, paths: Sequence[str], images: Callable[[str], Sequence[str]]
) -> Detected | None:
    """Settings and splits for annotations at these paths under the root; None without any.

    images: the names of some images in the annotations at a path.
    """
    if not paths:
        return None
    template, splits = by_split(paths)
    first = template.replace("{split}", splits[0])
    folder = folder_of(images(os.path.join(root, first)), os.path.dirname(first), root, store)
    if folder is None:
        folder = os.path.dirname(first)
    split = re.search(rf"(?<![A-Za-z]){re.escape(splits[0])}(?![A-Za-z])", folder)
    if split and "{split}" in template:
        folder = f"{folder[: split.start()]}{{split}}{folder[split.end() :]}"
    return {"annotations": template, "images": folder or "."}, splits

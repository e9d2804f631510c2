"""Finds annotation files and the images that they name, to detect a layout."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

from segtrain.config.paste import command
from segtrain.data.annotations.read import reading
from segtrain.data.bucket.tree import local_copy
from segtrain.data.index.detect_pairs import SPLITS, folders_below
from segtrain.data.index.layout import Detected
from segtrain.data.index.names import is_image
from segtrain.data.index.skeleton import is_dir
from segtrain.data.index.split_by import POOL
from segtrain.data.storage import Store
from segtrain.errors import DataError

# The first bytes of a file say what it is.
_HEAD = 1 << 16
# At most this many files of a folder are looked at, and this many that are not empty.
_MANY, _FEW = 20, 3
_SPLIT = re.compile(
    rf"(?<![a-z])({'|'.join(sorted(SPLITS, key=len, reverse=True))})(?![a-z])", re.IGNORECASE
)


def files(root: str, store: Store, ending: str) -> Iterator[tuple[str, str]]:
    """The path under the root and the first 64 KiB of files with an ending, such as ".json"; of a
    folder only the first files, up to the third that is not empty.
    """
    for folder in ("", *folders_below(root, store)):
        full = 0
        for name in store.list(os.path.join(root, folder), ending)[:_MANY]:
            path = os.path.join(folder, name)
            with open(local_copy(os.path.join(root, path)), "rb") as stream:
                head = stream.read(_HEAD).decode("utf-8-sig", "replace")
            yield path, head
            full += bool(head)
            if full == _FEW:
                break


def files_above(folder: str, root: str, store: Store, endings: Sequence[str]) -> list[str]:
    """The files with these endings in the nearest folder that has any, from a folder up to the
    root; those of the first ending first. An ending with a slash is a whole name.
    """
    while True:
        names = store.list(folder, "")
        files = [os.path.join(folder, n) for end in endings for n in names if f"/{n}".endswith(end)]
        if files or folder in (root, os.path.dirname(folder)):
            return files
        folder = os.path.dirname(folder)


def by_split(paths: Sequence[str]) -> tuple[str, list[str]]:
    """A path for all splits, with ``{split}`` in place of the name of the split, and the splits of
    the most files that differ only in it. A path without the name of a split: itself, and "all".
    """
    templates: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        split = [POOL, *_SPLIT.findall(path)][-1]
        for template in _templates(path, split):
            templates[template].append(split)
    return max(templates.items(), key=lambda item: (len(item[1]), "{split}" in item[0]))


def _templates(path: str, split: str) -> list[str]:
    """A path with ``{split}`` for each name of a split, and for the last one: ``train/train.json``
    has it twice, of ``train_data/train`` the first may be a part of a name.
    """
    parts = _SPLIT.split(path)
    at = [number for number in range(1, len(parts), 2) if parts[number] == split]
    texts = [
        "".join("{split}" if n in some else part for n, part in enumerate(parts))
        for some in (at, at[-1:])
    ]
    return [*dict.fromkeys(texts)]


def folder_of(
    images: Sequence[str],
    near: str,
    root: str,
    store: Store,
    split: str,
    masks: Sequence[str] = (),
) -> str:
    """The folder under the root that holds images with the names written in an annotation file.

    images: some of these names. near: the folder of the annotation file under the root. This folder
    comes first, then those with the name of the split, then those in it, then any other. masks:
    folders that hold masks of these names. ``near`` if there is none.
    """
    names = {_stem(re.split(r"[/\\]", image)[-1]) for image in images}
    others = sorted(
        folders_below(root, store),
        key=lambda folder: (
            split.lower() not in _SPLIT.findall(folder.lower()),
            not folder.startswith(near),
        ),
    )
    for folder in (near, *others):
        if folder in masks:
            continue
        there = store.list(os.path.join(root, folder), "")
        if names & {_stem(name) for name in there if is_image(name)}:
            return folder
    return near


def _stem(name: str) -> str:
    return os.path.splitext(name)[0].lower()


def detected(
    root: str,
    store: Store,
    paths: Sequence[str],
    images: Callable[[str], Sequence[str]],
    masks: Sequence[str] = (),
) -> Detected | None:
    """Settings and splits for annotations at these paths under the root; None without any.

    images: the names of some images in the annotations at a path. masks: as in ``folder_of``.
    Raises DataError if paths remain that could be read instead.
    """
    if not paths:
        return None

    def settings(paths: Sequence[str]) -> Detected:
        template, splits = by_split(paths)
        first = template.replace("{split}", splits[0])
        with reading(os.path.join(root, first)):
            names = images(os.path.join(root, first))
        folder = folder_of(names, os.path.dirname(first), root, store, splits[0], masks)
        return _settings(root, store, template, splits, folder)

    way = settings(paths)
    read = {way[0]["annotations"].replace("{split}", split) for split in way[1]}
    others = [settings([path]) for path in sorted({*paths} - read)]
    if others:
        ways = {found["annotations"]: (found, splits) for found, splits in (way, *others)}
        pasted = "".join(f"\n  {command({'data.annotations': path})}" for path in ways)
        message = f"{root}: has several annotation files: say which to read, with one of{pasted}"
        raise DataError(message, code="annotations-ambiguous", folder=root, ways=ways)
    return way


def detected_in_folders(
    root: str, store: Store, folders: Collection[str], ending: str
) -> Detected | None:
    """As ``detected``, for folders of annotation files that have the names of their images, with
    ``ending`` in place of the suffix.

    Several folders of one split are read together, as are all folders without splits.
    """
    if not folders:
        return None
    paths = sorted({*map(_split_folder, folders)} - {""}) or [os.path.commonpath(folders)]
    together = len(paths) < len(folders)
    template, splits = by_split(paths if together else sorted(folders))
    first = template.replace("{split}", splits[0])
    images = [
        folder_of(store.list(os.path.join(root, folder), ending), folder, root, store, splits[0])
        for folder in folders
        if f"{folder}/".startswith(os.path.join(first, ""))
    ]
    shared = os.path.commonpath(images)
    return _settings(root, store, template, splits, (together and _split_folder(shared)) or shared)


def _split_folder(folder: str) -> str:
    """The part of a path up to the folder with the name of a split; "" without one."""
    match = re.match(rf".*{_SPLIT.pattern}[^/]*", folder, re.IGNORECASE)
    return match[0] if match else ""


def _settings(root: str, store: Store, template: str, splits: list[str], images: str) -> Detected:
    """images: the folder of the images of the first split."""
    images, *others = _templates(images, splits[0])
    for text in others:
        folders = (os.path.join(root, text.replace("{split}", split)) for split in splits)
        if all(is_dir(folder, store) for folder in folders):
            images = text
    return {"annotations": template or ".", "images": images or "."}, splits

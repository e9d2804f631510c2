"""Finds annotation files and the images that they name, to detect a layout."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from segtrain.data.annotations.read import reading
from segtrain.data.bucket.tree import local_copy
from segtrain.data.index.detect_pairs import SPLITS, folders_below
from segtrain.data.index.layout import Detected
from segtrain.data.index.names import is_image
from segtrain.data.index.skeleton import is_dir
from segtrain.data.storage import Store

# The first bytes of a file say what it is.
_HEAD = 1 << 16
# At most this many files of a folder are looked at, and this many that are not empty.
_MANY, _FEW = 20, 3
_SPLIT = re.compile(
    rf"(?<![a-z])({'|'.join(sorted(SPLITS, key=len, reverse=True))})(?![a-z])", re.I
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
        names = _SPLIT.findall(path)
        if not names:
            templates[path].append("all")
        for template in _templates(path, names[-1]) if names else ():
            templates[template].append(names[-1])
    return max(templates.items(), key=lambda item: (len(item[1]), "{split}" in item[0]))


def _templates(path: str, split: str) -> list[str]:
    """A path with ``{split}`` for each name of a split, and for the last one: ``train/train.json``
    has it twice, of ``train_data/train`` the first may be a part of a name.
    """
    parts = _SPLIT.split(path)
    at = [number for number, part in enumerate(parts) if part == split]
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
) -> str | None:
    """The folder under the root that holds images with the names written in an annotation file.

    images: some of these names. near: the folder of the annotation file under the root. This folder
    comes first, then those with the name of the split, then those in it, then any other. masks:
    folders that hold masks of these names.
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
    return None


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
    Raises Several if paths remain that could be read instead.
    """
    if not paths:
        return None
    template, splits = by_split(paths)
    rest = sorted({*paths} - {template.replace("{split}", split) for split in splits})
    if rest:
        ways = [(template, splits), *(by_split([path]) for path in rest)]
        raise Several([_one(root, store, *way, images, masks) for way in ways])
    return _one(root, store, template, splits, images, masks)


class Several(Exception):
    """Annotations of one format that could each be read. ways: the settings and splits of each."""

    def __init__(self, ways: list[Detected]) -> None:
        super().__init__(ways)
        self.ways = ways


def _one(
    root: str,
    store: Store,
    template: str,
    splits: list[str],
    images: Callable[[str], Sequence[str]],
    masks: Sequence[str],
) -> Detected:
    first = template.replace("{split}", splits[0])
    near, path = os.path.dirname(first), os.path.join(root, first)
    with reading(path):
        names = images(path)
    folder = folder_of(names, near, root, store, splits[0], masks)
    return _settings(root, store, template, splits, near if folder is None else folder)


def detected_in_folders(
    root: str, store: Store, folders: Sequence[str], ending: str
) -> Detected | None:
    """As ``detected``, for folders of annotation files that have the names of their images, with
    ``ending`` in place of the suffix.

    Several folders of one split are read together, as are all folders without splits.
    """
    if not folders:
        return None
    of_split = {folder: _split_folder(folder) for folder in folders}
    paths = sorted({*of_split.values()} - {""}) or [os.path.commonpath(folders)]
    together = len(paths) < len(folders)
    if not together:
        paths = [*folders]
    template, splits = by_split(paths)
    first = template.replace("{split}", splits[0])
    images = []
    for folder in folders:
        if f"{folder}/".startswith(os.path.join(first, "")):
            names = store.list(os.path.join(root, folder), ending)[:_MANY]
            near = folder_of(names, folder, root, store, splits[0])
            images.append(folder if near is None else near)
    shared = os.path.commonpath(images)
    return _settings(root, store, template, splits, (together and _split_folder(shared)) or shared)


def _split_folder(folder: str) -> str:
    """The part of a path up to the folder with the name of a split; "" without one."""
    parts = folder.split("/")
    last = max((n for n, part in enumerate(parts, 1) if _SPLIT.search(part)), default=0)
    return "/".join(parts[:last])


def _settings(root: str, store: Store, template: str, splits: list[str], images: str) -> Detected:
    """images: the folder of the images of the first split."""
    if "{split}" in template:
        templates = _templates(images, splits[0])
        images = templates[0]
        for text in templates[1:]:
            folders = (os.path.join(root, text.replace("{split}", split)) for split in splits)
            if all(is_dir(folder, store) for folder in folders):
                images = text
    return {"annotations": template or ".", "images": images or "."}, splits

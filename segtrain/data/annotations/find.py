"""Finds annotation files and the images that they name, to detect a layout."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from segtrain.data.annotations.read import reading
from segtrain.data.bucket.tree import local_copy
from segtrain.data.index.detect_pairs import MASK_WORDS, SPLITS, folders_below, is_drawn
from segtrain.data.index.layout import OTHER_IMAGES, Detected
from segtrain.data.index.names import is_image
from segtrain.data.index.split_by import POOL
from segtrain.data.index.walk import images_below, is_dir, several
from segtrain.data.storage import Store

# The first bytes of a file say what it is.
_HEAD = 1 << 16
# At most this many files of a folder are looked at, and this many that are not empty.
_MANY, _FEW = 20, 8
_SPLIT = re.compile(
    rf"(?<![a-z])({'|'.join(sorted(SPLITS, key=len, reverse=True))})(?![a-z])", re.IGNORECASE
)
_WORD = re.compile("[a-z]+")
_OF_MASKS = {*MASK_WORDS, "panoptic"}
# Tools whose files are not read, by what only these contain.
_TOOLS = {
    "Labelbox": 'labelbox|"data_row"',
    "QuPath": r'"objectType"\s*:\s*"(annotation|detection)',
    "Segments.ai": "segmentation_bitmap",
    "SuperAnnotate": '"(lastAction|pointLabels)"',
    "V7 Darwin": r"v7labs\.com|darwin_json",
    "VIA 3": '"vid_list"',
    "VoTT": '"(securityToken|vottVersion)"',
}


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


def content_of(path: str) -> object:
    return Path(local_copy(path)).read_bytes()


def by_content(
    fits: Callable[[str, str], object],
    *endings: str,
    images: Callable[[str], Iterable[str]] | None = None,
    same: Callable[[str], object] = content_of,
) -> Callable[[str, Store], Detected | None]:
    """A function that detects annotation files with the first of these endings that any has.

    fits: whether a path and the first bytes of a file are those of an annotation file. images,
    same: as in ``detected``; without images, each annotation file has the name of its image.
    """

    def detect(root: str, store: Store) -> Detected | None:
        for ending in endings:
            heads = files(root, store, ending)
            paths = [path for path, head in heads if fits(os.path.join(root, path), head)]
            if paths and images:
                return detected(root, store, paths, images, same)
            if paths:
                return detected_in_folders(root, store, {*map(os.path.dirname, paths)}, ending)
        return None

    return detect


def tool_of(head: str) -> str:
    """The tool that wrote a file and whose files are not read; "" for others."""
    return next((tool for tool, text in _TOOLS.items() if re.search(text, head)), "")


def of_other_tool(root: str, store: Store) -> str:
    """What to do with the first file of a tool whose files are not read; "" without one."""
    for ending in (".json", ".ndjson", ".geojson"):
        for path, head in files(root, store, ending):
            if tool := tool_of(head):
                return (
                    f"\n  {path} is an export of {tool}, which is not read: export the set as "
                    "COCO, or as masks of class ids"
                )
    return ""


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


def folders_of(
    images: Sequence[str],
    near: str,
    root: str,
    store: Store,
    split: str,
) -> list[str]:
    """The folder under the root that holds the most images with the names written in an annotation
    file; several if they hold equally many, and nothing says which is meant.

    images: these names. near: the folder of the annotation file under the root. Of folders
    with equally many, those with more of the suffixes come first, then this folder, then those with
    the name of the split, then those in this folder. Folders whose names say that they hold masks
    or drawn pictures come last. ``[near]`` if there is none. Without a folder that holds all, it is
    the one above the images, if no two have a name.
    """
    names = {re.split(r"[/\\]", image)[-1].lower() for image in images}
    stems = {*map(_stem, names)}
    ranks: dict[str, tuple[int, ...]] = {}
    for folder in (near, *folders_below(root, store)):
        there = {n.lower() for n in store.list(os.path.join(root, folder), "") if is_image(n)}
        held = len(stems & {*map(_stem, there)})
        of_masks = is_drawn(folder) or bool(_OF_MASKS & {*_WORD.findall(folder.lower())})
        if held:
            ranks[folder] = (
                of_masks,
                -held,
                -len(names & there),
                folder != near,
                split.lower() not in _SPLIT.findall(folder.lower()),
                not folder.startswith(near),
            )
        # Another folder may have images of the same names, and of more of them.
        if folder == near and 2 * held > len(stems) and not of_masks:
            break
    first = min(ranks.values(), default=None)
    if first and -first[1] < len(stems):
        # Maybe all lie below one folder, each once.
        above = os.path.commonpath([folder for folder in ranks if not ranks[folder][0]] or [near])
        below = Counter(map(_stem, images_below(os.path.join(root, above), store)))
        if all(below[stem] == 1 for stem in stems):
            return [above]
    return sorted(folder for folder in ranks if ranks[folder] == first) or [near]


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0].lower()


def detected(
    root: str,
    store: Store,
    paths: Sequence[str],
    images: Callable[[str], Iterable[str]],
    same: Callable[[str], object] = content_of,
) -> Detected:
    """Settings and splits for annotations at these paths under the root.

    images: the names of the images in the annotations at a path. same: what equal files share.
    Raises DataError if paths remain that could be read instead.
    """
    ways, unlike, seen = dict[str, Detected](), list[str](), set[object]()
    rest = [*paths]
    while rest:
        template, splits = by_split(rest)
        first = template.replace("{split}", splits[0])
        with reading(os.path.join(root, first)):
            names = [*images(os.path.join(root, first))]
        folders = folders_of(names, os.path.dirname(first), root, store, splits[0])
        ways[template] = _settings(root, store, template, splits, folders)
        read = {template.replace("{split}", split) for split in splits}
        # Of equal files, only the first one is shown.
        contents = {same(os.path.join(root, path)) for path in read if len(read) < len(paths)}
        unlike += [template] * bool(contents - seen)
        seen |= contents
        rest = sorted({*rest} - read)
    return _only(root, ways, unlike)


def _only(root: str, ways: dict[str, Detected], unlike: Collection[str]) -> Detected:
    """The first way to read annotations. ways: their path -> settings. Raises DataError if several
    differ.
    """
    if len(unlike) > 1:
        pasted = ({"data.annotations": path} for path in unlike)
        what = "has several annotation files, or folders of them"
        raise several(root, what, pasted, code="annotations-ambiguous", ways=ways)
    return next(iter(ways.values()))


def detected_in_folders(root: str, store: Store, folders: Collection[str], ending: str) -> Detected:
    """As ``detected``, for folders of annotation files that have the names of their images, with
    ``ending`` in place of the suffix.

    Several folders of one split are read together, as are all folders without splits. Raises
    DataError if these annotate the same images.
    """
    paths = sorted({*map(_split_folder, folders)} - {""}) or [os.path.commonpath(folders)]
    together = len(paths) < len(folders)
    template, splits = by_split(paths if together else sorted(folders))

    def below(split: str) -> list[str]:
        first = os.path.join(template.replace("{split}", split), "")
        return [folder for folder in sorted(folders) if f"{folder}/".startswith(first)]

    # The split of the most folders shows what they share.
    splits.sort(key=lambda split: -len(below(split)))
    names = {folder: store.list(os.path.join(root, folder), ending) for folder in below(splits[0])}
    images = {folder: folders_of(names[folder], folder, root, store, splits[0]) for folder in names}
    if len(images) == 1:
        return _settings(root, store, template, splits, *images.values())
    repeated = max(Counter(itertools.chain(*names.values())).values()) > 1
    if repeated and splits == [POOL] and len({*itertools.chain(*images.values())}) < len(names):
        ways = {name: _settings(root, store, name, splits, images[name]) for name in names}
        return _only(root, ways, ways)
    shared = os.path.commonpath([first for first, *_ in images.values()])
    shared = (together and _split_folder(shared)) or shared
    return _settings(root, store, template, splits, [shared])


def _split_folder(folder: str) -> str:
    """The part of a path up to the folder with the name of a split; "" without one."""
    match = re.match(rf".*{_SPLIT.pattern}[^/]*", folder, re.IGNORECASE)
    return match[0] if match else ""


def _settings(
    root: str, store: Store, template: str, splits: list[str], folders: Sequence[str]
) -> Detected:
    """folders: those that may hold the images of the first split."""
    images, *others = (_image_template(root, store, splits, folder) for folder in folders)
    settings = {"annotations": template or ".", "images": images}
    return settings | ({OTHER_IMAGES: others} if others else {}), splits


def _image_template(root: str, store: Store, splits: list[str], folder: str) -> str:
    first, *others = _templates(folder, splits[0])
    fitting = (
        text
        for text in others
        if all(is_dir(os.path.join(root, text.replace("{split}", s)), store) for s in splits)
    )
    return next(fitting, first) or "."

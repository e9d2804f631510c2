"""Layouts whose masks are drawn from annotations: one ``Format`` for each kind of file."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shlex
import urllib.parse
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from segtrain import config
from segtrain.base.files import cache_folder, digest_of
from segtrain.base.json_text import cache_json, read_json
from segtrain.base.terminal import counted
from segtrain.bucket import is_bucket
from segtrain.data.annotations.dataset import SHAPES, AnnotatedDataset
from segtrain.data.annotations.draw import Paint
from segtrain.data.annotations.find import files_above
from segtrain.data.annotations.read import BOX, reading
from segtrain.data.annotations.shapes import UNNAMED, Annotated, Annotations, Order, to_text
from segtrain.data.index.entries import Entries, column_of
from segtrain.data.index.layout import Detected, Layout, root_store
from segtrain.data.index.listing import WARNING, Watch, entries_of
from segtrain.data.index.walk import is_dir, pictures, question
from segtrain.data.labels.class_file import ClassRow, is_background, is_ignored, space_of
from segtrain.data.labels.classes import label_space
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels.reading import Reading
from segtrain.data.storage import FileStat, Store
from segtrain.errors import ConfigError, DataError, closest, file_error, some_of

# If more than this share of the images has no shape, the note about them is a warning.
_EMPTY = 0.5
# So many shapes of a class with four corners, and no others, are probably boxes.
_BOXES = 10
_UPLOAD = re.compile("^[0-9a-f]{8}-")


class Where(NamedTuple):
    """Where the annotations of a split are: paths in ``store``. label_key, rle_order: settings of
    ``data``. others: files that are read, too.
    """

    annotations: str
    images: str
    root: str
    store: Store
    label_key: str
    rle_order: Order
    others: tuple[str, ...] = ()


class Format(NamedTuple):
    """A kind of annotation files.

    name, example, detect: as in ``Layout``. read: the annotations of a split; what it raises
    becomes a DataError. paint: the shape that wins where several overlap, if ``data.paint`` is
    auto. others: endings of files above the annotations that ``read`` reads, too, see
    ``find.files_above``. background: the class of the pixels in no shape, if it has a name.
    """

    name: str
    example: str
    detect: Callable[[str, Store], Detected | None]
    read: Callable[[Where], Annotations]
    paint: Paint = "file"
    others: Sequence[str] = ()
    background: str = ""

    @property
    def layout(self) -> Layout:
        return Layout(
            self.name,
            self.example,
            self.detect,
            lister=partial(_entries, self),
            open=partial(_open, self),
            class_files=(),
            needs=lambda data: (data.images, data.annotations),
        )


def _where(form: Format, data: config.Data, split: str, store: Store) -> Where:
    root = data.root if is_bucket(data.root) else os.path.normpath(data.root)
    annotations, images = (
        os.path.join(root, os.path.normpath(text.replace("{split}", split))).removesuffix("/.")
        for text in (data.annotations, data.images)
    )
    others = files_above(annotations, root, store, form.others) if form.others else []
    return Where(annotations, images, root, store, data.label_key, data.rle_order, tuple(others))


def _classes(form: Format, where: Where) -> dict[str, dict[str, int]]:
    """How many "shapes" each class of a split has, and the key "order" by which the classes are
    sorted. They are kept until a file changes, since to parse a file of 65 MB takes seconds, at
    each start and on each rank.
    """
    stamps = tuple(map(where.store.stat, _files(where)))
    digest = digest_of(repr((form.name, where.annotations, where[4:], stamps)), 24)
    path = cache_folder() / f"listing-orders-{digest}.json"
    if cached := read_json(path):
        return cached
    read = _unchanged(form, where, stamps)
    # Shapes may have classes that the file does not list.
    order = dict.fromkeys(read.names, len(read.classes)) | read.classes
    classes: dict[str, dict[str, int]] = {"shapes": read.names, "order": order}
    with contextlib.suppress(OSError):  # the listing says that the cache is not writable
        cache_json(path, classes)
    return classes


def _files(where: Where) -> list[str]:
    store, path = where.store, where.annotations
    files = [path]
    if is_dir(path, store):
        files = [os.path.join(path, name) for name in store.walk(path)]
    return [*files, *where.others]


@lru_cache(4)
def _unchanged(form: Format, where: Where, stamps: tuple[FileStat, ...]) -> Annotations:
    # The garbage collector would look at millions of new objects again and again: a third more
    # CPU time for 140,000 polygons.
    gc.disable()
    try:
        with reading(where.annotations):
            annotations = form.read(where)
    finally:
        gc.enable()
    if not annotations.names and any(BOX in image.parts for image in annotations.images):
        reason = "the labels are boxes alone, without polygons: export them for segmentation"
        raise file_error(where.annotations, reason, code="boxes-alone")
    return annotations


def _open(form: Format, layout: Layout, data: config.Data, split: str) -> AnnotatedDataset:
    store = root_store(data)
    if not data.annotations:
        raise ConfigError(
            f"data.annotations is empty, but layout {form.name!r} reads annotations: "
            f"`segtrain data check {shlex.quote(data.root)}` proposes the settings",
            code="annotations-unset",
            layout=form.name,
        )
    # All splits of a run have the same classes, in the order of the first of these files.
    splits = data.train_split, data.split, split
    *others, where = (_where(form, data, name, store) for name in splits)
    read = {
        place: _classes(form, place)
        for place in (*others, where)
        for folder, name in (os.path.split(place.annotations),)
        if name in store.list(folder, "") or is_dir(place.annotations, store)
    }
    if where not in read:
        reason = f"the annotations of split {split!r} are missing: check data.annotations"
        raise file_error(where.annotations, f"{reason} and the split", code="annotations-missing")
    keys: dict[str, int] = {}
    for each in reversed(read.values()):
        keys |= each["order"]
    labels, ids, rest = _labels(data, sorted(keys, key=lambda n: (keys[n], n)), form.background)
    _refuse_unknown(read[where]["shapes"], where, ids, labels)
    entries, notes = entries_of(data, split, partial(_entries, form), store)
    return AnnotatedDataset(
        os.path.basename(store.place(data.root)),
        split,
        labels,
        entries,
        store.place(data.root),
        (*notes, *(() if data.classes else _alike(labels.names))),
        Reading.from_data(data),
        store,
        train_ids_of=ids,
        background=rest,
        paint=form.paint if data.paint == "auto" else data.paint,
    )


def _labels(
    data: config.Data, names: list[str], background: str
) -> tuple[LabelSpace, dict[str, int], int]:
    """The label space, the train id of each class name, and that of pixels in no shape.

    Without data.classes, the classes are the names in the files, after the background; their
    places in this list are the raw ids of data.label_map. In data.classes, each name of the files
    must occur, in any order. Pixels in no shape are ignored if no class is a background. Shapes
    without a class belong to the only one that there is.
    """
    background = background or next(filter(is_background, names), "background")
    own = [background, *(name for name in names if name not in (background, UNNAMED))]
    own += ["object"] * (len(own) == 1)
    if data.classes and not data.label_map:
        space = label_space(data)
        ids = {name: train_id for train_id, name in enumerate(space.names)}
        ids |= {name: space.ignore_index for name in own if is_ignored(name)}
    else:
        space = label_space(data, space_of([ClassRow(name) for name in own], data.ignore_index))
        table = space.raw_to_train
        ids = {name: table[raw] for raw, name in enumerate(own) if raw in table}
    other = next((name for name in space.names if is_background(name) and name in ids), "")
    rest = ids.get(background, ids.get(other, space.ignore_index))
    drawn = {train_id for train_id in ids.values() if train_id not in (rest, space.ignore_index)}
    return space, {**ids, UNNAMED: drawn.pop()} if len(drawn) == 1 else ids, rest


def _alike(names: Sequence[str]) -> list[str]:
    """Notes about names that differ only by case or blanks."""
    by_form = defaultdict[str, list[str]](list)
    for name in names:
        by_form[re.sub(r"[\s_-]", "", name).casefold()].append(name)
    return [
        f"{WARNING}the classes {alike} differ only by case or blanks"
        for alike in by_form.values()
        if len(alike) > 1
    ]


def _refuse_unknown(
    counts: Mapping[str, int], where: Where, ids: Mapping[str, int], labels: LabelSpace
) -> None:
    """Raise DataError for shapes of a class that the run does not have. counts: class -> shapes."""
    unknown = sorted(counts.keys() - ids.keys())
    if unknown:
        near = closest(unknown[0], labels.names)
        message = (
            f"{where.annotations}: {counted(sum(counts[name] for name in unknown), 'shape')} of "
            f"{counted(len(unknown), 'class')} that data.classes and data.label_map do "
            f"not name: {some_of(unknown)}: "
            + (f"did you mean {near!r}? " if near else "")
            + "Add them, or name them 'void' in the annotations to ignore their pixels"
        )
        raise DataError(message, code="annotation-class-unknown", found=unknown, near=near)


def _entries(form: Format, data: config.Data, split: str, watch: Watch) -> Entries:
    """The annotated images of a split, sorted by name. Raises DataError for annotations of missing
    images, and for several of one image.
    """
    where = _where(form, data, split, watch.store)
    files = _files(where)
    for changed in {where.annotations, *files, *map(os.path.dirname, files)}:
        watch.look(changed)
    annotations = _unchanged(form, where, tuple(map(watch.store.stat, files)))
    watch.notes += annotations.notes
    masks = {
        shape.area["pixels"].get("file")
        for image in annotations.images
        for shape in image.shapes
        if "pixels" in shape.area
    }
    there = pictures(where.images, "data.images", watch)
    there = [path for path in there if os.path.join(where.images, path) not in masks]
    by_name = _by_name(there)
    annotated: dict[str, Annotated] = {}
    missing, repeated = [], []
    for image in annotations.images:
        if watch.store.leaves_out(os.path.join(where.images, image.image)):
            continue
        path = next((by_name[key] for key in _keys(image.image) if by_name.get(key)), None)
        if path is None:
            missing.append(image.image)
        elif path in annotated:
            repeated.append(path)
        else:
            annotated[path] = image
    if repeated:
        raise DataError(
            f"{where.annotations}: {counted(len(repeated), 'image')} annotated twice: "
            f"{some_of(repeated)}: merge or remove annotations",
            code="image-annotated-twice",
            found=repeated[:5],
        )
    if missing and not watch.skips:
        raise question(
            f"{where.images}: {counted(len(missing), 'image')} of {len(annotations.images):,} in "
            f"{where.annotations} missing: {some_of(missing)}: add them, correct data.images, or "
            "leave them out",
            [{"data.faults": "skip"}],
            code="annotated-image-missing",
            found=missing[:5],
        )
    if missing:
        watch.notes.append(
            f"{WARNING}{counted(len(missing), 'annotation')} without an image left out: "
            f"{some_of(missing)}"
        )
    _describe(annotated.values(), watch)
    annotated = {
        path: image for path, image in annotated.items() if image.shapes or not image.parts
    }
    stems = {os.path.splitext(path)[0] for path in annotated}
    absent, beside = list[str](), list[str]()
    for path in sorted(set(there) - annotated.keys()):
        (beside if os.path.splitext(path)[0] in stems else absent).append(path)
    if beside:
        watch.notes.append(
            f"{WARNING}{counted(len(beside), 'file')} in {where.images} with the names of "
            f"annotated images not read: {some_of(beside)}: are they masks?"
        )
    if absent:
        annotated |= _absent(absent, where, data, watch)
    return _columns(dict(sorted(annotated.items())), where.images)


def _absent(
    images: list[str], where: Where, data: config.Data, watch: Watch
) -> dict[str, Annotated]:
    """What takes the place of missing annotations, by ``data.absent_mask``."""
    what = f"{counted(len(images), 'image')} in {where.images} without an annotation that is drawn"
    if data.absent_mask == "error":
        message = f"{what}: {some_of(images)}: annotate them, or set data.absent_mask=leave-out"
        raise DataError(message, code="annotation-absent", found=images[:5])
    if data.absent_mask != "background":
        fix = "data.absent_mask=background takes them as all background"
        watch.notes.append(f"{WARNING}{what} left out: {some_of(images)}; {fix}")
        return {}
    watch.notes.append(f"{what}: all background (data.absent_mask)")
    return {image: Annotated(image, where.annotations) for image in images}


def _describe(images: Collection[Annotated], watch: Watch) -> None:
    """Add notes about images without shapes, and about what is not drawn."""
    empty = sum(not image.parts for image in images)
    if empty:
        warning = WARNING if empty > _EMPTY * len(images) else ""
        watch.notes.append(
            f"{warning}{counted(empty, 'image')} of {len(images):,} without a shape: all background"
        )
    shapes = [shape for image in images for shape in image.shapes]
    corners = defaultdict[str, list[int]](list)
    for shape in shapes:
        corners[shape.name].append(sum(map(len, shape.area.get("polygons", ()))) // 2)
    boxes = {name: len(of) for name, of in corners.items() if len(of) >= _BOXES and {*of} == {4}}
    if boxes:
        names = some_of(sorted(name or "objects" for name in boxes))
        watch.notes.append(
            f"{WARNING}all {sum(boxes.values()):,} shapes of {names} have 4 corners: are they "
            "boxes around objects?"
        )
    if lines := sum("line" in shape.area for shape in shapes):
        watch.notes.append(f"{counted(lines, 'line')} drawn as areas, since the ends meet")
    left_out = defaultdict[str, list[Annotated]](list)
    for image in images:
        for what in image.parts:
            if isinstance(what, str):
                left_out[what].append(image)
    watch.notes += (
        f"{WARNING}{len(these):,} x not drawn: {what} (the first: {these[0].image} in "
        f"{these[0].file})"
        for what, these in sorted(left_out.items(), key=lambda item: -len(item[1]))
    )


def _columns(annotated: Mapping[str, Annotated], folder: str) -> Entries:
    """The entries of annotated images: path below ``folder`` -> annotation."""
    names = column_of(os.path.splitext(path)[0] for path in annotated)
    meta = {"name": names, SHAPES: column_of(map(to_text, annotated.values()))}
    files = column_of(image.file for image in annotated.values())
    return Entries(column_of(annotated, os.path.join(folder, "")), files, meta)


def _by_name(paths: Sequence[str]) -> dict[str, str]:
    """Image files by the keys of ``_keys``; "" where several fit."""
    files: dict[str, str] = {}
    for path in paths:
        for end in {path, os.path.splitext(path)[0]}:
            for key in (f"/{end}", os.path.basename(end)):
                files[key] = "" if files.get(key, path) != path else path
    return files


def _keys(written: str) -> Iterator[str]:
    """What may name the file of an image that an annotation names: an end of the path, whole (after
    a slash), then the name in any folder; each as it is, then without its suffix.
    """
    # A file of the server of Label Studio is /data/local-files/?d=folder/a.png.
    text = urllib.parse.unquote(written.partition("?d=")[2]) or written
    parts = [part for part in re.split(r"[/\\]", text) if part not in ("", ".", "..")]
    ends = ["/" + "/".join(parts[first:]) for first in range(len(parts))]
    # An upload of Label Studio has 8 hex digits before its name.
    names = [name for part in parts[-1:] for name in (part, _UPLOAD.sub("", part))]
    for texts in (ends, names):
        yield from texts
        yield from (os.path.splitext(each)[0] for each in texts)

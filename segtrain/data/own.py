"""Adapter for a map-style dataset written in Python: items of (image, mask, id)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from segtrain.base.cores import cores
from segtrain.config import Data
from segtrain.data.dataset import Dataset
from segtrain.data.generated import GeneratedDataset
from segtrain.data.index.entries import Entry, LazyEntries
from segtrain.data.labels.class_file import ClassRow, space_of
from segtrain.data.labels.classes import label_space
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels.reading import PLAIN, Reading
from segtrain.errors import ConfigError, DataError, SegtrainError, kind_of, reason_of

# Each thread keeps the last item that it read, because name, size, and pixels of a sample are
# requested in turn.
_LAST = threading.local()


@dataclass(frozen=True, eq=False)
class _Items:
    """``items`` as a function from index to (image uint8 (H, W, 3) or float32 (H, W, bands), mask
    uint8 (H, W) of train ids). Picklable.
    """

    items: Any
    labels: LabelSpace
    split: str
    names: dict[int, str]
    sizes: dict[int, tuple[int, int]]
    reading: Reading = PLAIN

    def __call__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        owner, last, *sample = getattr(_LAST, "item", (None, -1))
        if owner is not self or last != index:
            *sample, name = self._item(index)
            if self.names.setdefault(index, name) != name:
                raise DataError(
                    f"{type(self.items).__name__}[{index}] has the id {name!r}, but had "
                    f"{self.names[index]!r} before, or in `ids`: give each item one id",
                    code="item-id-differs",
                    index=index,
                )
            self.sizes[index] = sample[1].shape
            _LAST.item = (self, index, *sample)
        image, mask = sample
        return image, mask

    def _item(self, index: int) -> tuple[np.ndarray, np.ndarray, str]:
        where = f"{type(self.items).__name__}[{index}]"
        item = _answer(where, lambda: self.items[index], code="item-raised", index=index)
        listed = isinstance(item, (tuple, list))
        if not listed or len(item) != 3:
            form = f"{len(item)} values" if listed else f"a {type(item).__name__}"
            message = f"{where} is {form}: return a tuple (image, mask, id)"
            raise DataError(message, code="item-form", index=index, found=form)
        *arrays, item_id = item
        # for example, a tensor on a GPU
        what = f"{where}: the image or the mask is not an array: np.asarray"
        image, mask = _answer(
            what, lambda: [*map(np.asarray, arrays)], code="item-form", index=index
        )
        where = f"{where} ({item_id})"
        pixels = self.reading.pixels
        if not pixels.fits(image):
            message = f"{where}: the image is {image.dtype} {image.shape}: return {pixels.wanted}"
            raise DataError(
                message, code="item-image", index=index, image=image.shape, dtype=str(image.dtype)
            )
        if image.shape[:2] != mask.shape[:2]:
            raise DataError(
                f"{where}: the image is {image.shape}, the mask {mask.shape}: the mask "
                "must have the image's size",
                code="item-shape",
                index=index,
                image=image.shape,
                mask=mask.shape,
            )
        name = item_id if isinstance(item_id, str) else f"{self.split}/{item_id}"
        mask = self.labels.remap(mask, where)
        if pixels.stored:
            image, void = pixels.filled(pixels.marked(image))
            mask = np.where(void, self.labels.mask_dtype(self.labels.ignore_index), mask)
        return np.ascontiguousarray(image), mask, name

    def name(self, index: int) -> str:
        if index not in self.names:
            self(index)
        return self.names[index]

    def entry(self, index: int) -> Entry:
        name = self.name(index)
        return Entry(name, name, {"name": name})

    def size(self, index: int) -> tuple[int, int]:
        if index not in self.sizes:
            self(index)
        return self.sizes[index]


@dataclass(frozen=True, kw_only=True)
class OwnDataset(GeneratedDataset):
    """A split whose samples come from a dataset that was passed in. Nothing shows whether they have
    changed.
    """

    make: _Items

    @property
    def changes_show(self) -> bool:
        return False

    def size(self, index: int) -> tuple[int, int]:
        return self.make.size(index)


def _answer(what: str, ask: Callable[[], Any], code: str, **values: Any) -> Any:
    """What the user's code returns. Raises DataError with what it raises; ``code`` and ``values``
    are its own.
    """
    try:
        return ask()
    except SegtrainError:
        raise
    except Exception as error:
        raise DataError(f"{what} raised {reason_of(error)}", code=code, **values) from error


def _listed(items: Any, attribute: str) -> Any:
    """The elements of an attribute, or []."""

    def read() -> list[Any]:
        values = getattr(items, attribute, None)
        return [] if values is None else list(values)

    what = f"the attribute {attribute} of {type(items).__name__}"
    return _answer(what, read, code="dataset-raised")


def own_labels(items: Any, data: Data, default: LabelSpace | None = None) -> LabelSpace:
    """Classes of ``data.classes``, of ``items.classes``, or ``default``. Raises ConfigError or
    DataError.
    """
    given = data.classes or data.label_map
    names = [] if given else _listed(items, "classes")
    if names:
        default = space_of([ClassRow(str(name)) for name in names], data.ignore_index)
    if default is None and not given:
        raise ConfigError(
            f"{type(items).__name__} does not name its classes: set data.classes=[NAME, "
            "...] in the config, or give "
            "the dataset an attribute `classes`, a list of names in the order of the mask's ids",
            code="classes-missing",
        )
    return label_space(data, default)


def own_dataset(items: Any, labels: LabelSpace, split: str, reading: Reading = PLAIN) -> Dataset:
    """A map-style dataset as a split.

    items: has ``len(items)``, and ``items[i]`` = (image uint8 (H, W, 3) RGB, mask of ids (H, W),
    id). With bands in ``reading``, images are (H, W, bands) of any number type.
    Several threads read it at once. A string id identifies the image in all splits: if the
    training and the validation split have the same id, the image counts as one that is in both. The
    optional attribute ``ids`` gives all ids at once. Without it, every item is read here, because a
    resumed run compares the ids. Raises DataError for an item that cannot be used.
    """
    name = type(items).__name__
    if isinstance(items, type) or not (hasattr(items, "__len__") and hasattr(items, "__getitem__")):
        message = f"the dataset is {kind_of(items)}: pass an instance with len(data) and data[i]"
        raise DataError(message, code="dataset-form")
    count = _answer(f"len() of the dataset {name}", lambda: len(items), code="dataset-raised")
    if not count:
        raise DataError(
            f"the dataset {name} has no items: len() is 0", code="dataset-empty", dataset=name
        )
    ids = _listed(items, "ids")
    names = {i: k if isinstance(k, str) else f"{split}/{k}" for i, k in enumerate(ids)}
    read = _Items(items, labels, split, names, {}, reading)
    if not ids:
        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(read.name, range(count)))
    indices: dict[str, int] = {}
    for index in range(count):
        earlier = indices.setdefault(read.name(index), index)
        if earlier != index:
            raise DataError(
                f"{name}[{earlier}] and {name}[{index}] have the id {read.name(index)!r}: "
                "give each item its own",
                code="ids-repeated",
                indexes=(earlier, index),
            )
    entries = LazyEntries(count, read.entry)
    return OwnDataset(name, split, labels, entries, reading=reading, make=read)

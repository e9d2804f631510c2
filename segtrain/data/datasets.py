"""A data set: the images and masks of a split, and how they are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from segtrain import config
from segtrain.data.bucket import store_of
from segtrain.data.index.entries import Entry, LazyEntries
from segtrain.data.index.layouts import LAYOUTS
from segtrain.data.index.listing import entries_of
from segtrain.data.index.stamps import listing_text, stamps
from segtrain.data.index.walk import no_folder
from segtrain.data.labels import presets
from segtrain.data.labels.classes import label_space
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels import decode
from segtrain.data.pixels.crop import StoredSample, size_error
from segtrain.data.pixels.reading import PLAIN, Reading
from segtrain.data.scenes import scene as scenes
from segtrain.data.stages import DECODE, READ, took
from segtrain.data.storage import LOCAL, Range, Store
from segtrain.errors import DataError

# ``reading_ahead`` has no batches: this many samples per thread take the place of a batch.
_READ_AHEAD = 4
# index -> image, mask
Draw = Callable[[int], "tuple[np.ndarray, np.ndarray]"]


@dataclass(frozen=True)
class Dataset:
    """One split: pairs of image and mask files, or of arrays that ``draw`` generates.

    Reading has no state: any thread may read any index at any time. notes: sentences for the user about the listing.
    """

    name: str
    split: str
    labels: LabelSpace
    entries: Sequence[Entry]
    root: str = ""
    draw: Draw | None = field(default=None, compare=False)
    drawn_size: tuple[int, int] = (0, 0)
    notes: tuple[str, ...] = field(default=(), compare=False)
    reading: Reading = PLAIN
    store: Store = field(default=LOCAL, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.entries)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Image uint8 (H, W, 3) RGB and mask uint8 (H, W) of train ids. Raises DataError that names the file."""
        if self.draw:
            return self.draw(index)
        image, mask = self.read_image(index), self.read_mask(index)
        if image.shape[:2] != mask.shape:
            raise self.other_size(index, image.shape[:2], mask.shape)
        return image, mask

    def record(self, index: int) -> StoredSample:
        """The bytes of the files without decoding, or the generated arrays. Raises DataError that names the file."""
        entry = self.entries[index]
        if self.draw:
            with DECODE:
                image, ids = self.draw(index)
            return StoredSample(image, ids, entry.image, entry.mask or "", "train")
        mask = self._content(entry.mask) if entry.mask else None
        image = self.ready(self._content(entry.image), entry.image)
        return StoredSample(image, mask, entry.image, entry.mask or "", "raw")

    def ranges(self, index: int) -> list[Range]:
        """The files that ``record`` reads from the store, so that they can be fetched ahead."""
        entry = self.entries[index]
        return [] if self.draw else [Range(path) for path in (entry.image, entry.mask) if path]

    @contextmanager
    def reading_ahead(self, indices: Sequence[int], workers: int) -> Iterator[None]:
        """Fetch samples from a bucket before ``record`` needs them, in this order. workers: threads that call it."""
        ahead = self.store.read_ahead((self.ranges(int(index)) for index in indices), _READ_AHEAD * workers, workers)
        try:
            yield
        finally:
            if ahead is not None:
                ahead.close()

    def _content(self, path: str) -> bytes | memoryview:
        """The bytes of a file. Raises DataError if it cannot be read or is empty."""
        with READ:
            content = self.store.content(path)
        took(len(content))
        return content if len(content) else decode.load(b"", path)[0]

    def ready(self, content: Any, name: str) -> Any:
        """The image of a StoredSample: its bytes, or its decoded pixels if ``write_crop`` cannot apply ``reading``."""
        if self.reading == PLAIN:
            return content
        with DECODE:
            return decode.ready(content, name, self.reading)

    def stored_image(self, index: int) -> Any:
        """The bytes of an image file, or an array for an image that is stored as an array or generated.

        Raises DataError.
        """
        return self.draw(index)[0] if self.draw else self._content(self.entries[index].image)

    def stored_mask(self, index: int) -> Any:
        """The bytes of a mask file, or an array for a mask that is stored as an array or generated.

        Raises DataError.
        """
        return self.draw(index)[1] if self.draw else self._content(self._mask_path(index))

    def read_image(self, index: int) -> np.ndarray:
        """The decoded image, uint8 (H, W, 3) RGB."""
        stored, path = self.stored_image(index), self.entries[index].image
        return stored if isinstance(stored, np.ndarray) else decode.decode_image(stored, path, self.reading)

    def read_mask(self, index: int) -> np.ndarray:
        """The mask as train ids, uint8 (H, W)."""
        stored, path = self.stored_mask(index), str(self.entries[index].mask)
        raw = stored if isinstance(stored, np.ndarray) else decode.decode_mask(stored, path)
        return raw if self.draw else self.labels.remap(raw, path)

    def image_bytes(self, index: int, begin: int, size: int) -> bytes:
        """Up to ``size`` stored bytes of an image, from ``begin`` on. Raises DataError."""
        path = self.entries[index].image
        return self.store.read(path, begin, max(0, min(size, self.store.stat(path).size - begin)))

    def _mask_path(self, index: int) -> str:
        path = self.entries[index].mask
        if path is None:
            image = self.entries[index].image
            says = f"{image}: has no mask: only `segtrain predict` can use it"
            raise DataError(says, code="mask-missing", file=image)
        return path

    def size(self, index: int) -> tuple[int, int]:
        """Height and width of the image, from its header."""
        if self.draw:
            return self.drawn_size
        path = self.entries[index].image
        with self.store.open(path) as stream:
            header = decode.read_header(stream, path)
        return header.height, header.width

    def header(self, index: int) -> decode.Header:
        """The header of the image file. Raises DataError for a file that is cut off."""
        if self.draw:
            return decode.Header("drawn", *self.drawn_size)
        path = self.entries[index].image
        with self.store.open(path) as stream:
            return decode.check_whole(stream, path)

    def other_size(self, index: int, image: tuple[int, ...], mask: tuple[int, ...]) -> DataError:
        """The error for a mask whose size differs from that of its image."""
        entry = self.entries[index]
        rotated = self.header(index).orientation >= 5 and tuple(mask) == tuple(image[::-1])
        return size_error(str(entry.mask), tuple(mask), entry.image, tuple(image), rotated)

    def stamps(self) -> np.ndarray:
        """Current size and etag of each image and mask, int64 [n, (image, mask), (bytes, etag)]; 0 if generated.

        On the local disk, the sum of mtime and ctime in ns takes the place of the etag.
        """
        return np.zeros((len(self), 2, 2), np.int64) if self.draw else stamps(self.entries, self.store)

    def fingerprint(self, stamped: np.ndarray | None = None) -> str:
        """A digest of the file names (relative to the root), their sizes in bytes, and the labels: 12 hex digits.

        It is the same on every machine that has the same split, and is shown beside each score. ``stamped``: the result
        of ``stamps``, if it is known. Raises DataError for a missing file.
        """
        digest = hashlib.sha256(self.labels.identity())
        sizes = (self.stamps() if stamped is None else stamped)[:, :, 0]
        for begin in range(0, len(self), 4096):
            digest.update(listing_text(self.entries, self.root, sizes, begin, min(begin + 4096, len(self))))
        return digest.hexdigest()[:12]


def open_dataset(data: config.Data, split: str) -> Dataset:
    """The data set of a split, in any layout of ``config.Data.layout``.

    Raises DataError for a missing folder, images without masks and masks without images, a split without images, and
    lists with missing columns, missing files, or repeated rows; ConfigError if the classes are not described.
    """
    if data.split_by.on:
        from segtrain.data.index.split_by import divided

        return divided(data, split, open_dataset)
    if data.layout == "scenes":
        return _scenes(data, split)
    layout, store = LAYOUTS[data.layout], store_of(data.root, data.outage_s, data)
    if store is LOCAL and not os.path.isdir(data.root):
        raise no_folder(data.root, "data.root", store)
    if layout.lister is None:
        from segtrain.data.shards.reader import open_shards

        return open_shards(data, split, layout.own_labels(data), store)
    entries, notes = entries_of(data, split, layout.lister, store)
    labels = label_space(data, layout.own_labels(data), layout.other_classes)
    root = store.place(data.root)
    name, reading = os.path.basename(root), Reading.of(data)
    return Dataset(name, split, labels, entries, root, notes=tuple(notes), reading=reading, store=store)


def _drawn_entry(kind: str, split: str, index: int) -> Entry:
    """The entry of a generated scene: names without files."""
    name = f"{kind}/{index:05d}"
    return Entry(name, name, {"name": f"{split}_{index:05d}"})


def _scenes(data: config.Data, split: str) -> Dataset:
    """Generated street scenes: ``data.scenes`` for training, a quarter as many different ones for any other split."""
    count = data.scenes if split == data.train_split else max(1, data.scenes // 4)
    count = min(count, data.limit or count)
    seed = int.from_bytes(hashlib.sha256(split.encode()).digest()[:4], "big")
    height, width = data.scene_size
    kind = f"scene{scenes.VERSION}:{split}:{height}x{width}"
    entries = LazyEntries(count, partial(_drawn_entry, kind, split))
    labels = label_space(data, presets.SCENES)
    draw = partial(_drawn_scene, seed, data.scene_size, labels)
    return Dataset("scenes", split, labels, entries, "", draw, data.scene_size)


def _drawn_scene(seed: int, size: tuple[int, int], labels: LabelSpace, index: int) -> tuple[np.ndarray, np.ndarray]:
    image, raw = scenes.scene(seed, index, size)
    if labels.raw_to_train == presets.SCENES.raw_to_train:  # the generated ids are train ids already
        return image, raw
    return image, labels.remap(raw, f"generated scene {index}")

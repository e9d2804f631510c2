"""A data set whose images and masks are separate files, on a disk or in a bucket."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from segtrain.data.dataset import Dataset
from segtrain.data.index.entries import Entry, files, stamps
from segtrain.data.index.names import is_array
from segtrain.data.labels.class_file import is_background
from segtrain.data.labels.mask_code import decoded
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels import decode, native
from segtrain.data.pixels.array_mask import array_mask
from segtrain.data.pixels.bands import BandImage
from segtrain.data.stages import DECODE, READ, took
from segtrain.data.storage import Range

# A TIFF of more bytes in a bucket is read in windows, if stored values are kept.
_LARGE = 1 << 22


def _background(labels: LabelSpace) -> int:
    """The raw id of the class that is named background; 0 without one."""
    train_ids = {number for number, name in enumerate(labels.names) if is_background(name)}
    return min((raw for raw, train in labels.raw_to_train.items() if train in train_ids), default=0)


@dataclass(frozen=True)
class FileDataset(Dataset):
    """A split of files. The ``image`` and the ``mask`` of an entry are paths in ``store``; no mask
    file ("") stands for the background.
    """

    @property
    def separate_files(self) -> bool:
        return True

    def folders(self) -> set[str]:
        paths = itertools.chain.from_iterable(files(self.entries, 0, len(self)))
        return {self.root, *(os.path.dirname(path) for path in paths if path)}

    def _content(self, path: str) -> bytes | memoryview:
        """The bytes of a file. Raises DataError if it cannot be read or is empty."""
        with READ:
            mine = native.read(path) if self.store.local else None
            content = self.store.content(path) if mine is None else mine
        took(len(content))
        return content if len(content) else decode.load(b"", path)[0]

    def stored_image(self, index: int) -> Any:
        if self.reading.pixels.stored:
            path = self.entries[index].image
            names = self.reading.files_of(path) or [path]
            return BandImage([self._source(name) for name in names], names, self.reading.pixels)
        return self._content(self.entries[index].image)

    def _source(self, path: str) -> Any:
        """An image file as BandImage takes it."""
        if self._in_windows(path):
            return self.store.open(path)
        return path if self.store.local else self._content(path)

    def _in_windows(self, path: str) -> bool:
        """Whether only the parts of a file in a bucket are fetched that a crop needs."""
        if self.store.local or self.store.keeps or not self.reading.pixels.stored:
            return False
        return path.lower().endswith((".tif", ".tiff")) and self.store.stat(path).size > _LARGE

    def stored_mask(self, index: int) -> Any:
        path = self.mask_path(index)
        if not path:  # data.absent_mask=background
            return np.full(self.size(index), _background(self.labels), np.uint16)
        content = self._content(path)
        array = is_array(path)
        if self.mask_code == "none" and not array:
            return content
        with DECODE:
            raw = array_mask(content, path) if array else decode.decode_mask(content, path)
            return raw if self.mask_code == "none" else decoded(raw, self.mask_code, path)

    def size(self, index: int) -> tuple[int, int]:
        header = self._header(index, decode.read_header)
        return header.height, header.width

    def header(self, index: int) -> decode.Header:
        return self._header(index, decode.check_whole)

    def _header(self, index: int, read: Callable[..., decode.Header]) -> decode.Header:
        if self.reading.pixels.stored:
            header: decode.Header = self.stored_image(index).header
            return header
        path = self.entries[index].image
        with self.store.open(path) as stream:
            return read(stream, path)

    def stamps(self, indices: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        some = self.entries if indices is None else [self.entries[int(index)] for index in indices]
        stamped = stamps(some, self.store)
        for number in range(1, len(self.reading.files)):
            files = [self.reading.files_of(entry.image)[number] for entry in some]
            more = stamps([Entry(file, None, {}) for file in files], self.store)
            stamped[:, 0, 0] += more[:, 0, 0]
            stamped[:, 0, 1] ^= more[:, 0, 1]
        return stamped

    def image_bytes(self, index: int, begin: int, size: int) -> bytes:
        path = self.entries[index].image
        return self.store.read(path, begin, max(0, min(size, self.store.stat(path).size - begin)))

    def ranges(self, index: int) -> list[Range]:
        entry = self.entries[index]
        images = self.reading.files_of(entry.image)
        whole = [path for path in images if not self._in_windows(path)]
        return [Range(path) for path in (*whole, entry.mask) if path]

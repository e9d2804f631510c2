"""A data set whose images and masks are separate files, on a disk or in a bucket."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from segtrain.data.dataset import Dataset
from segtrain.data.index.names import is_array
from segtrain.data.index.stamps import files, stamps
from segtrain.data.labels.mask_code import decoded
from segtrain.data.pixels import decode
from segtrain.data.pixels.array_mask import array_mask
from segtrain.data.pixels.bands import BandImage
from segtrain.data.stages import DECODE, READ, took
from segtrain.data.storage import Range


@dataclass(frozen=True)
class FileDataset(Dataset):
    """A split of files. The ``image`` and the ``mask`` of an entry are paths in ``store``."""

    @property
    def separate_files(self) -> bool:
        return True

    def folders(self) -> set[str]:
        paths = itertools.chain.from_iterable(files(self.entries, 0, len(self)))
        return {self.root, *(os.path.dirname(path) for path in paths if path)}

    def _content(self, path: str) -> bytes | memoryview:
        """The bytes of a file. Raises DataError if it cannot be read or is empty."""
        with READ:
            content = self.store.content(path)
        took(len(content))
        return content if len(content) else decode.load(b"", path)[0]

    def stored_image(self, index: int) -> Any:
        path = self.entries[index].image
        if self.reading.bands:
            source = path if self.store.local else self._content(path)
            return BandImage(source, path, self.reading.bands)
        return self._content(path)

    def stored_mask(self, index: int) -> Any:
        path = self.mask_path(index)
        content = self._content(path)
        array = is_array(path)
        if self.mask_code == "none" and not array:
            return content
        with DECODE:
            raw = array_mask(content, path) if array else decode.decode_mask(content, path)
            return raw if self.mask_code == "none" else decoded(raw, self.mask_code, path)

    def size(self, index: int) -> tuple[int, int]:
        if self.reading.bands:
            header = self.stored_image(index).header
            return header.height, header.width
        path = self.entries[index].image
        with self.store.open(path) as stream:
            header = decode.read_header(stream, path)
        return header.height, header.width

    def header(self, index: int) -> decode.Header:
        if self.reading.bands:
            return self.stored_image(index).header
        path = self.entries[index].image
        with self.store.open(path) as stream:
            return decode.check_whole(stream, path)

    def stamps(self, indices: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        some = self.entries if indices is None else [self.entries[int(index)] for index in indices]
        return stamps(some, self.store)

    def image_bytes(self, index: int, begin: int, size: int) -> bytes:
        path = self.entries[index].image
        return self.store.read(path, begin, max(0, min(size, self.store.stat(path).size - begin)))

    def ranges(self, index: int) -> list[Range]:
        entry = self.entries[index]
        return [Range(path) for path in (entry.image, entry.mask) if path]

"""What others ask of a data set: the class ``Dataset``, of which every way of storing a split is a
subclass.

A new way of storing samples needs the methods that raise NotImplementedError, and the facts that
differ from the defaults. The existing ones: separate files (file_dataset.py), shards
(shards/reader.py), samples that code makes (generated.py, and own.py for datasets that users pass
in), and views of another data set (index/subset.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from segtrain.data.index.entries import Entry, listing_text
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels import decode
from segtrain.data.pixels.crop import StoredSample, pixels_of, size_error
from segtrain.data.pixels.reading import PLAIN, Reading
from segtrain.data.stages import DECODE
from segtrain.data.storage import LOCAL, Range, Store
from segtrain.errors import DataError, file_error

# ``reading_ahead`` has no batches: this many samples per thread take the place of a batch.
_READ_AHEAD = 4


class SampleSource(Protocol):
    """The part of a ``Dataset`` that the loaders ask for. A RAM cache has it, too."""

    @property
    def labels(self) -> LabelSpace: ...
    @property
    def entries(self) -> Sequence[Entry]: ...
    @property
    def store(self) -> Store: ...
    @property
    def stored(self) -> bool: ...
    @property
    def reading(self) -> Reading: ...

    def __len__(self) -> int: ...
    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]: ...
    def size(self, index: int) -> tuple[int, int]: ...
    def record(self, index: int) -> StoredSample: ...
    def ranges(self, index: int) -> list[Range]: ...


@dataclass(frozen=True)
class Dataset:
    """One split: its samples, numbered from 0 in the order of their names, and how they are read.

    Reading has no state: any thread may read any index at any time. A data set must pickle to few
    bytes, since each worker process gets a copy: keep large tables in memory-mapped files. Every
    method raises DataError, which names the file.

    entries: image, mask, and metadata of each sample, see ``Entry``. root: the folder to which
    names are relative in fingerprints; "" if there is none. notes: sentences for the user about the
    listing. reading: how images of more than 8 bits or 3 bands become RGB, or keep their values.
    store: where the bytes are. mask_code: ``data.mask_code``.
    """

    name: str
    split: str
    labels: LabelSpace
    entries: Sequence[Entry]
    root: str = ""
    notes: tuple[str, ...] = field(default=(), compare=False)
    reading: Reading = PLAIN
    store: Store = field(default=LOCAL, compare=False, repr=False)
    mask_code: str = "none"

    # Facts about a way of storing samples. A subclass overrides those that differ.

    @property
    def ids(self) -> Literal["raw", "train"]:
        """What the values of masks are: "raw" ids or colors, which ``labels`` maps to train ids, or
        train ids.
        """
        return "raw"

    @property
    def stored(self) -> bool:
        """Whether images and masks are stored bytes. False: code makes the pixels, and the files in
        entries are names.

        Then ``record`` and the ``stored_`` methods return arrays, and a sample has neither stamps
        nor checksums.
        """
        return True

    @property
    def separate_files(self) -> bool:
        """Whether every image and every mask is a file of its own, at the path in its entry."""
        return False

    @property
    def sizes_known(self) -> bool:
        """Whether ``stamps`` of all samples are known without a look at each file."""
        return not self.stored

    @property
    def changes_show(self) -> bool:
        """Whether ``stamps`` or ``fingerprint`` change with the samples, so that results about them
        can be cached.
        """
        return True

    @property
    def packed_from(self) -> str | None:
        """The fingerprint of the files of which these samples are a copy with the same pixels; ""
        if it is not known.

        None: the samples were not packed.
        """
        return None

    def folders(self) -> set[str]:
        """The folders that hold the bytes."""
        return set()

    # What a way of storing samples must answer.

    def stored_image(self, index: int) -> Any:
        """The bytes of an image file, a file of bands, or an array uint8 (H, W, 3) RGB."""
        raise NotImplementedError

    def stored_mask(self, index: int) -> Any:
        """The bytes of a mask file, or an array of ids or colors. Raises DataError if the sample
        has no mask.
        """
        raise NotImplementedError

    def size(self, index: int) -> tuple[int, int]:
        """Height and width of the image, without decoding it."""
        raise NotImplementedError

    def header(self, index: int) -> decode.Header:
        """The header of the image. Raises DataError for a file that is cut off."""
        raise NotImplementedError

    def stamps(self, indices: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """Size and etag of image and mask now, of all samples or of some: int64 [n, (image, mask),
        (bytes, etag)].

        On the local disk, the sum of mtime and ctime in ns takes the place of the etag. 0 for what
        is not stored.
        """
        return np.zeros((len(self) if indices is None else len(indices), 2, 2), np.int64)

    def image_bytes(self, index: int, begin: int, size: int) -> bytes:
        """Up to ``size`` stored bytes of an image, from ``begin`` on. Only asked if ``stored``."""
        raise NotImplementedError

    def ranges(self, index: int) -> list[Range]:
        """The ranges that ``record`` reads from the store, so that they can be fetched ahead."""
        return []

    def verify(self) -> tuple[tuple[str, str], ...]:
        """(file, message) of damage that reading each sample does not show."""
        return ()

    # What follows from the methods above.

    def __len__(self) -> int:
        return len(self.entries)

    def record(self, index: int) -> StoredSample:
        """Image and mask as they are stored, without decoding. The mask is None if the sample has
        none.
        """
        entry = self.entries[index]
        mask = None if entry.mask is None else self.stored_mask(index)
        image = self.ready(self.stored_image(index), entry.image)
        return StoredSample(image, mask, entry.image, entry.mask or "", self.ids)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Image uint8 (H, W, 3) RGB, or float32 (H, W, bands), and mask uint8 (H, W) of train
        ids.
        """
        return pixels_of(self.record(index), self.labels)

    def read_image(self, index: int) -> np.ndarray:
        """The decoded image, uint8 (H, W, 3) RGB, or float32 (H, W, bands)."""
        name = self.entries[index].image
        return decode.decode_image(self.stored_image(index), name, self.reading)

    def read_mask(self, index: int, strict: bool = True) -> np.ndarray:
        """The mask as train ids, uint8 (H, W), by ``LabelSpace.remap``."""
        return self.train_ids(self.stored_mask(index), index, strict)

    def train_ids(self, stored: Any, index: int, strict: bool = True) -> np.ndarray:
        """The train ids, uint8 (H, W), of what ``stored_mask`` returned."""
        path = str(self.entries[index].mask)
        mask = stored if isinstance(stored, np.ndarray) else decode.decode_mask(stored, path)
        return mask if self.ids == "train" else self.labels.remap(mask, path, strict)

    def ready(self, content: Any, name: str) -> Any:
        """The image of a StoredSample: its bytes, or its decoded pixels if ``write_crop`` cannot
        apply ``reading``.
        """
        with DECODE:
            return decode.ready(content, name, self.reading)

    @contextmanager
    def reading_ahead(self, indices: Sequence[int], workers: int) -> Iterator[None]:
        """Fetch samples from a bucket before ``record`` needs them, in this order. workers: threads
        that call it.
        """
        ahead = self.store.read_ahead(
            (self.ranges(int(index)) for index in indices), _READ_AHEAD * workers, workers
        )
        try:
            yield
        finally:
            if ahead is not None:
                ahead.close()

    def mask_path(self, index: int) -> str:
        """The name of a mask. Raises DataError if the sample has none."""
        path = self.entries[index].mask
        if path is None:
            image = self.entries[index].image
            message = "has no mask: only `segtrain predict` can use it"
            raise file_error(image, message, code="mask-missing")
        return path

    def other_size(self, index: int, image: tuple[int, ...], mask: tuple[int, ...]) -> DataError:
        """The error for a mask whose size differs from that of its image."""
        entry = self.entries[index]
        rotated = self.header(index).orientation >= 5 and tuple(mask) == tuple(image[::-1])
        return size_error(str(entry.mask), tuple(mask), entry.image, tuple(image), rotated)

    def fingerprint(self, stamped: np.ndarray | None = None) -> str:
        """A digest of the names (relative to the root), sizes in bytes, and labels: 12 hex digits.

        It is the same on every machine that has the same split.
        ``stamped``: the result of ``stamps``, if it is known.
        """
        digest = hashlib.sha256(self.labels.identity())
        if self.mask_code != "none":
            digest.update(self.mask_code.encode())
        sizes = (self.stamps() if stamped is None else stamped)[:, :, 0]
        for begin in range(0, len(self), 4096):
            digest.update(
                listing_text(self.entries, self.root, sizes, begin, min(begin + 4096, len(self)))
            )
        return digest.hexdigest()[:12]

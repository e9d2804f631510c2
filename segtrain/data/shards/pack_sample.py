"""Samples to pack: the bytes to store, and digests of the pixels that decoding these bytes must
give.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import cv2
import numpy as np

from segtrain.base.terminal import counted
from segtrain.data.audit.audit import audit
from segtrain.data.dataset import Dataset
from segtrain.data.labels.space import LabelSpace, plain_space
from segtrain.data.pixels import decode
from segtrain.data.pixels.crop import StoredSample
from segtrain.data.shards import png_strips
from segtrain.data.shards.reader import array
from segtrain.errors import DataError, MissingExtra, file_error

Form = Literal["keep", "recompress", "png", "raw"]
Ids = Literal["raw", "train"]


@dataclass(frozen=True)
class Packing:
    """How images are stored. Masks are stored as PNGs in strips (see png_strips), or as arrays if
    images are "raw".
    """

    image: Form = "keep"
    quality: int = 95  # of JPEGs that are encoded again
    cap: int = 0  # longest side in pixels; 0: none


@dataclass(frozen=True)
class Packed:
    """One sample to store, with digests of the pixels that decoding it must give.

    ``pixels``: the digest of the image, or "" if JPEG compression changes the pixels. It is None if
    the bytes are a copy of the source's, because then the pixels need no comparison. ``ids``: the
    digest of the mask.
    """

    image: tuple[str, bytes]  # ending, content
    mask: tuple[str, bytes]
    size: tuple[int, int]  # height, width
    pixels: str | None
    ids: str

    def refuse_change(self, image: memoryview, mask: memoryview, name: str) -> None:
        """Decode the written bytes. Raises DataError if the pixels differ from the sample's."""
        ids = array(mask, name) if self.mask[0] == "mask.npy" else decode.decode_mask(mask, name)
        same = self.ids == _digest(ids) and ids.shape == self.size
        if same and self.pixels is None:
            header = decode.read_header(image, name)
            same = (header.height, header.width) == self.size
        elif same:
            seen = (
                array(image, name) if self.image[0] == "npy" else decode.decode_image(image, name)
            )
            same = self.pixels in ("", _digest(seen)) and seen.shape[:2] == self.size
        if not same:
            raise file_error(
                name,
                "the packed sample differs from the source in pixels: report this, with the file",
                code="packed-pixels-differ",
            )


def sound(dataset: Dataset, workers: int, skip_faults: bool) -> tuple[np.ndarray, Ids]:
    """Indices of the samples without faults, int64, and the ids in their packed masks. Reads all
    samples.

    The ids are "raw" as in the files, or "train" ids if the raw ones do not fit into 8 bits.
    Raises DataError if there are faults and ``skip_faults`` is false, or if no sample is left.
    """
    report, title = audit(dataset, workers), f"{dataset.name} {dataset.split}"
    if report.faults and not skip_faults:
        files, reasons = zip(*report.faults)
        head = f"{title}: {counted(len(files), 'fault')}, nothing is packed"
        text = "\n  ".join(
            [head, *reasons, "repair or remove these files, or leave them out with --skip-faults"]
        )
        raise DataError(text, code="pack-faults", split=dataset.split, files=list(files))
    good = np.setdiff1d(np.arange(len(dataset)), report.bad)
    if not good.size:
        reason = f"{title}: every sample is faulty: {report.faults[0][1]}"
        raise DataError(
            reason, code="pack-nothing-sound", split=dataset.split, found=len(report.faults)
        )
    labels = dataset.labels
    fits = dataset.ids == "raw" and all(0 <= raw < 256 for raw in labels.raw_to_train)
    return good, "raw" if fits and not (labels.colors and report.values.colors) else "train"


def probe(indices: np.ndarray) -> list[int]:
    """Up to 32 evenly spaced indices: samples from which sizes and times of all others are
    estimated.
    """
    count = min(32, len(indices))
    return indices[np.arange(count) * len(indices) // count].tolist()


def packed_labels(labels: LabelSpace, ids: Ids) -> LabelSpace:
    """The label space of packed masks. Raw ids keep their mapping. If the masks hold train ids,
    each maps to itself.
    """
    if ids == "train":
        return plain_space(labels.names, labels.ignore_index, labels.palette)
    return LabelSpace(labels.names, labels.palette, labels.ignore_index, labels.raw_to_train)


def pack_sample(dataset: Dataset, index: int, choice: Packing, ids: Ids) -> Packed:
    """Encode one sample as ``choice`` describes. Raises DataError naming the file."""
    record = dataset.record(index)
    mask = _ids(dataset, record, ids)
    size = _capped(mask.shape, choice.cap)
    shrunk = size != mask.shape
    if shrunk:
        mask = cv2.resize(mask, size[::-1], interpolation=cv2.INTER_NEAREST_EXACT)
    ending, content, pixels = _image(dataset, record, choice, size if shrunk else None)
    stored = (
        ("mask.npy", _npy(mask)) if choice.image == "raw" else ("mask.png", png_strips.encode(mask))
    )
    return Packed((ending, content), stored, size, pixels, _digest(mask))


def _image(
    dataset: Dataset, record: StoredSample, choice: Packing, size: tuple[int, int] | None
) -> tuple[str, bytes, str | None]:
    """Ending, content, and digest of the pixels, as in Packed. ``size``: to shrink to; None: do not
    shrink.
    """
    drawn = isinstance(record.image, np.ndarray)
    form = "png" if drawn else decode.read_header(bytes(record.image), record.image_name).format
    if size is None and choice.image == "keep" and not drawn:
        return _ending(form, record.image_name), bytes(record.image), None
    pixels = _pixels(dataset, record)
    if size is not None:
        pixels = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA)
    if choice.image == "raw":
        return "npy", _npy(pixels), _digest(pixels)
    if choice.image == "recompress":
        return "jpg", _jpeg(pixels, choice.quality), ""
    if choice.image == "png" or drawn or form != "jpeg":
        return "png", png_strips.encode(np.ascontiguousarray(pixels)), _digest(pixels)
    return "jpg", _jpeg(pixels, choice.quality), ""


def _pixels(dataset: Dataset, record: StoredSample) -> np.ndarray:
    """The decoded image of a record: uint8 (H, W, 3) RGB."""
    if isinstance(record.image, np.ndarray):
        return record.image
    return decode.decode_image(record.image, record.image_name, dataset.reading)


def _ids(dataset: Dataset, record: StoredSample, ids: Ids) -> np.ndarray:
    """The mask to store: uint8 (H, W), or uint16 with more than 254 classes."""
    if record.mask is None:
        raise file_error(
            record.image_name, "has no mask: take it out of the split", code="mask-missing"
        )
    raw = (
        record.mask
        if isinstance(record.mask, np.ndarray)
        else decode.decode_mask(record.mask, record.mask_name)
    )
    has_train_ids = isinstance(record.mask, np.ndarray) and record.ids == "train"
    # an unknown id is refused here
    train = raw if has_train_ids else dataset.labels.remap(raw, record.mask_name)
    if ids == "train":
        return np.ascontiguousarray(train)
    if has_train_ids:
        reason = "holds train ids among masks of raw ids: save it as uint8 (H, W)"
        raise file_error(record.mask_name, reason, code="mixed-ids")
    return np.ascontiguousarray(raw[..., 0] if raw.ndim == 3 else raw).astype(np.uint8)


def _capped(size: tuple[int, ...], cap: int) -> tuple[int, int]:
    height, width = size
    if not cap or max(size) <= cap:
        return height, width
    return max(1, round(height * cap / max(size))), max(1, round(width * cap / max(size)))


def _ending(form: str, name: str) -> str:
    endings = {"jpeg": "jpg", "png": "png"}
    return endings.get(form) or os.path.splitext(name)[1].lstrip(".").lower() or form


def _digest(pixels: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16).hexdigest()


def _npy(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.ascontiguousarray(values), allow_pickle=False)
    return stream.getvalue()


def _jpeg(pixels: np.ndarray, quality: int) -> bytes:
    try:
        import simplejpeg
    except ImportError:
        raise MissingExtra("simplejpeg", "", "writing JPEGs") from None
    encode = cast("Callable[..., bytes]", simplejpeg.encode_jpeg)
    # fastdct=False: exact, but slower
    return encode(np.ascontiguousarray(pixels), quality, "RGB", "420", False)

"""Arrays in files of NumPy (.npy, .npz), MATLAB (.mat), and HDF5, and masks among them."""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from segtrain.data.pixels.header import MAX_PIXELS
from segtrain.errors import MissingExtra, SegtrainError, file_error

# Files that may hold several arrays.
HOLDERS = (".npz", ".mat", ".h5", ".hdf5")
# The begin of a file of MATLAB 7.3, which is one of HDF5 with axes in reverse order.
_MATLAB_73 = b"MATLAB 7.3"
# Bytes of the largest array in a file of masks.
_MOST = 8 * MAX_PIXELS
# Words in the names of arrays that are masks.
MASK_WORDS = {
    *("mask", "masks", "label", "labels", "seg", "segs", "segmentation", "segmentations", "gt"),
    *("annotation", "annotations", "truth", "groundtruth", "target", "targets", "y"),
}


def words_in(name: str) -> set[str]:
    """The words in the last part of a name such as ``cjdata/tumorMask``, in lower case."""
    last = name.rpartition("/")[2]
    return {word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", last)}


def array_mask(content: Any, name: str) -> np.ndarray:
    """Integers (H, W), or colors uint8 (H, W, 3), of a file with the name ``name``.

    Raises DataError for other content, and MissingExtra without SciPy or h5py.
    """
    try:
        if name.lower().endswith(".npy"):
            return ids_in(np.load(io.BytesIO(content), allow_pickle=False))
        arrays = dict(arrays_in(io.BytesIO(content), name, _MOST))
        masks = [key for key in arrays if len(arrays) == 1 or MASK_WORDS & words_in(key)]
        if len(masks) != 1:
            raise ValueError(f"it has the arrays {', '.join(arrays) or 'of no image'}")
        return ids_in(arrays[masks[0]])
    except SegtrainError:
        raise
    except Exception as error:  # such as zipfile.BadZipFile, zlib.error, MatReadError
        reason = f"cannot be read as a mask ({error or type(error).__name__}): save ids as PNG"
        raise file_error(name, reason, code="mask-array-invalid") from None


def arrays_in(
    stream: BinaryIO, name: str, most: float = math.inf
) -> Iterator[tuple[str, np.ndarray]]:
    """Pairs (name, array) of the arrays of numbers with two axes or more in a file of HOLDERS.

    The order of axes is that of NumPy or MATLAB. Raises MissingExtra; for other content, and
    arrays of more than ``most`` bytes, ValueError or an error of the library that reads it.
    """
    if name.lower().endswith(".npz"):
        arrays = _numpy(stream, most)
    elif name.lower().endswith(".mat") and stream.read(len(_MATLAB_73)) != _MATLAB_73:
        arrays = _matlab(stream, name)
    else:
        arrays = _hdf5(stream, name, most)
    stream.seek(0)
    for key, array in arrays:
        if array.dtype.kind in "buif" and sum(size > 1 for size in array.shape) > 1:
            yield key, array


def _numpy(stream: BinaryIO, most: float) -> Iterator[tuple[str, np.ndarray]]:
    archive = zipfile.ZipFile(stream)
    for member in archive.infolist():
        _refuse_large(member.filename, member.file_size, most)
        with archive.open(member) as inner:
            yield member.filename.removesuffix(".npy"), np.load(inner, allow_pickle=False)


def _matlab(stream: BinaryIO, name: str) -> Iterator[tuple[str, np.ndarray]]:
    try:
        from scipy.io import loadmat
    except ImportError:
        raise MissingExtra("scipy", "arrays", f"reading {name}") from None
    values = [*loadmat(stream, simplify_cells=True).items()]
    for key, value in values:
        if isinstance(value, dict):  # a structure
            values += [(f"{key}/{field}", inner) for field, inner in value.items()]
        elif isinstance(value, list) and not key.startswith("__"):
            raise ValueError(f"{len(value)} annotations, as in BSDS, whose regions have no class")
        elif isinstance(value, np.ndarray):
            yield key, value


def _hdf5(stream: BinaryIO, name: str, most: float) -> Iterator[tuple[str, np.ndarray]]:
    try:
        import h5py
    except ImportError:
        raise MissingExtra("h5py", "arrays", f"reading {name}") from None
    found: list[Any] = []
    with h5py.File(stream) as file:
        file.visititems(lambda _, item: found.append(item) if hasattr(item, "dtype") else None)
        for item in found:
            if item.ndim > 1:
                _refuse_large(item.name, item.nbytes, most)
                array = item[()]
                yield item.name[1:], array.T if name.lower().endswith(".mat") else array


def _refuse_large(name: str, size: int, most: float) -> None:
    if size > most:
        raise ValueError(f"{name} has {size:,} bytes")


def ids_in(array: np.ndarray) -> np.ndarray:
    """Integers (H, W), or colors uint8 (H, W, 3), of an array, which may have a plane per class.

    Raises ValueError.
    """
    if array.ndim == 3 and 1 in array.shape:
        array = array.squeeze(array.shape.index(1))
    if array.dtype.kind not in "buif":
        raise ValueError(f"values of type {array.dtype}")
    if array.ndim == 3:
        for axis in sorted((0, 2), key=lambda axis: array.shape[axis]):
            planes = np.moveaxis(array, axis, 0) != 0
            if (planes.sum(0) == 1).all():
                return planes.argmax(0).astype(np.uint8)
        if array.dtype != np.uint8 or array.shape[2] != 3:
            raise ValueError("planes of classes that overlap, or leave pixels without a class")
        return np.ascontiguousarray(array)
    if array.ndim != 2 or not array.size:
        raise ValueError(f"an array of the shape {array.shape}")
    low, high = array.min(), array.max()
    if not (low >= 0 and high < 1 << 16 and (array == np.floor(array)).all()):
        raise ValueError(f"values from {low} to {high} that are not all whole numbers of 16 bits")
    return np.ascontiguousarray(array.astype(np.uint8 if high < 256 else np.uint16))

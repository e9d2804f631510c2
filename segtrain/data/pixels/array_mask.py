"""Masks in files of NumPy (.npy, .npz) and MATLAB (.mat)."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np

from segtrain.data.pixels.header import MAX_PIXELS
from segtrain.errors import MissingExtra, SegtrainError, file_error

_MATLAB_73 = b"MATLAB 7.3"


def array_mask(content: Any, name: str) -> np.ndarray:
    """Integers (H, W), or colors uint8 (H, W, 3), of a file with the name ``name``.

    Raises DataError for other content, and MissingExtra without SciPy.
    """
    try:
        return ids_in(_matlab(content, name) if name.lower().endswith(".mat") else _numpy(content))
    except SegtrainError:
        raise
    except Exception as error:  # such as zipfile.BadZipFile, zlib.error, MatReadError
        reason = f"cannot be read as a mask ({error or type(error).__name__}): save ids as PNG"
        raise file_error(name, reason, code="mask-array-invalid") from None


def _numpy(content: Any) -> np.ndarray:
    stream: Any = io.BytesIO(content)
    if bytes(content[:2]) == b"PK":
        members = zipfile.ZipFile(stream).infolist()
        if len(members) != 1:
            names = ", ".join(member.filename for member in members[:5])
            raise ValueError(f"{len(members)} arrays, {names}, where one is expected")
        if members[0].file_size > 8 * MAX_PIXELS:
            raise ValueError(f"an array of {members[0].file_size:,} bytes")
        stream = io.BytesIO(zipfile.ZipFile(stream).read(members[0]))
    return np.load(stream, allow_pickle=False)


def _matlab(content: Any, name: str) -> np.ndarray:
    try:
        from scipy.io import loadmat
    except ImportError:
        raise MissingExtra("scipy", "", f"reading {name}") from None
    if bytes(content[: len(_MATLAB_73)]) == _MATLAB_73:
        raise ValueError("a file of MATLAB 7.3: save it in MATLAB with the option -v7")
    values = {key: value for key, value in loadmat(io.BytesIO(content)).items() if key[:2] != "__"}
    arrays, annotations = [], 0
    for value in values.values():
        if value.dtype.names and "Segmentation" in value.dtype.names and value.size == 1:
            arrays.append(value["Segmentation"].item())  # CrackForest, SBD
        elif value.dtype.kind in "buif" and min(value.shape) > 1:
            arrays.append(value)
        elif value.dtype == object:
            annotations = value.size
    if annotations and not arrays:
        raise ValueError(f"{annotations} annotations, as in BSDS, whose regions are not classes")
    if len(arrays) != 1:
        raise ValueError(f"no single array among {', '.join(values) or 'no variables'}")
    return arrays[0]


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

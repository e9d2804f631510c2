"""The C structures of the native decoder, mirrored in ctypes."""

from __future__ import annotations

import ctypes

_pointer = ctypes.c_void_p


class Stored(ctypes.Structure):
    """A file's bytes, or pixels. Mirrors StStored of sample.h."""

    _fields_ = (
        ("data", _pointer),
        ("size", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("kind", ctypes.c_int32),
        ("height", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class Request(ctypes.Structure):
    """One sample to make. Mirrors StRequest of sample.h."""

    _fields_ = (
        ("image", Stored),
        ("mask", Stored),
        ("size", ctypes.c_int32 * 2),
        ("scaled", ctypes.c_int32 * 2),
        ("crop", ctypes.c_int32 * 2),
        ("top", ctypes.c_int32),
        ("left", ctypes.c_int32),
        ("flip", ctypes.c_int32),
        ("colors", ctypes.c_float * 4),
        ("fill", ctypes.c_uint8 * 4),
        ("lut", _pointer),
        ("known", _pointer),
        ("index", _pointer),
        ("index_size", ctypes.c_int64),
        ("out_image", _pointer),
        ("out_mask", _pointer),
        ("unknown_id", ctypes.c_int32),
        ("image_done", ctypes.c_int32),
    )


class FloatForm(ctypes.Structure):
    """The form of a normalized image. Mirrors StFloats of sample.h."""

    _fields_ = (
        ("bfloat16", ctypes.c_int32),
        ("planar", ctypes.c_int32),
        ("shift", ctypes.c_float * 3),
        ("scale", ctypes.c_float * 3),
    )

"""Calls the native decoder: the C functions of sample.cpp, through ctypes, which releases the GIL.

Without the library (not built, not loadable, or SEGTRAIN_NATIVE=0) ``available()`` is False,
``describe()`` says why, and the callers use other packages.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, Union

import numpy as np

from segtrain.data.pixels.header import damaged
from segtrain.data.pixels.native.structures import FloatForm, Request, Stored

# The environment variable names another library, such as one that was built for the image of a
# job's container.
LIBRARY = Path(
    os.environ.get("SEGTRAIN_NATIVE_LIBRARY") or Path(__file__).parent / "libsegtrain_data.so"
)
PIXELS, JPEG, PNG = 0, 1, 2
Content = Union[bytes, bytearray, memoryview, np.ndarray]
_MESSAGE = 256
_AGAIN = "and install segtrain again"
_CURES = {
    "linux": f": apt-get install g++ libjpeg-dev libdeflate-dev, {_AGAIN}",
    "darwin": (
        f": brew install jpeg-turbo libdeflate, set CFLAGS and LDFLAGS to their folders, {_AGAIN}"
    ),
}
# Bytes that ``read`` makes room for before it knows the size of a file: it grows up to _MOST_ROOM.
_room, _MOST_ROOM = 1 << 16, 1 << 25
_pointer, _number, _text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p


@cache
def _load(path: str) -> tuple[ctypes.CDLL | None, str]:
    """Load the library. Returns it and its description, or None and the reason why it cannot be
    used.
    """
    if not os.path.exists(path):
        return None, f"the native decoder was not built{_CURES.get(sys.platform, '')}"
    try:
        # Load the libraries that a code bundle brings along, so that the dynamic linker finds them
        # by name.
        for part in sorted((Path(path).parent / "carried").glob("*.so*")):
            ctypes.CDLL(str(part))
        library = ctypes.CDLL(path)
    except OSError as error:
        return (
            None,
            (
                f"the native decoder cannot be loaded ({error}): install segtrain again on "
                "this machine"
            ),
        )
    try:
        _declare(library, path)
    except AttributeError:  # it lacks a function
        return None, f"{path} is of another version of segtrain: install segtrain again"
    return library, library.st_libraries().decode()


def _declare(library: ctypes.CDLL, path: str) -> None:
    """Set the types of the functions. Raises AttributeError for a library of another version."""
    if library.st_layout() != ctypes.sizeof(Request):
        raise AttributeError("another layout of the request")
    form = ctypes.POINTER(FloatForm)
    library.st_crop_floats.argtypes = [ctypes.POINTER(Request), form, _text]
    library.st_floats.argtypes = [_pointer, _number, _number, form, _pointer, _text]
    library.st_whole.argtypes = [ctypes.POINTER(Stored), _number, _pointer, _number, _number, _text]
    # Reading a header takes less time than releasing the GIL: this call keeps it.
    library.st_size = ctypes.PyDLL(path).st_size  # type: ignore[attr-defined]
    library.st_size.argtypes = [ctypes.POINTER(Stored), ctypes.c_int32 * 2, _text]
    made: list[Any] = [ctypes.POINTER(_pointer), ctypes.POINTER(ctypes.c_int64), _text]
    library.st_check.argtypes = [ctypes.POINTER(Stored), _number, *made]
    library.st_jpeg_index.argtypes = [_pointer, ctypes.c_int64, *made]
    long = ctypes.c_int64
    library.st_read.argtypes, library.st_read.restype = [_text, long, long, _pointer, long], long
    library.st_free.argtypes, library.st_free.restype = [_pointer], None
    library.st_libraries.restype = _text


def _library() -> ctypes.CDLL | None:
    return None if os.environ.get("SEGTRAIN_NATIVE") == "0" else _load(str(LIBRARY))[0]


def use(path: Path) -> None:
    """Use another library from now on, here and in processes that are started later."""
    global LIBRARY
    LIBRARY = path
    os.environ["SEGTRAIN_NATIVE_LIBRARY"] = str(path)


def available() -> bool:
    """Whether the native decoder is in use."""
    return _library() is not None


def describe() -> str:
    """One line: which decoders are in use, and why."""
    if os.environ.get("SEGTRAIN_NATIVE") == "0":
        return "packages (SEGTRAIN_NATIVE=0)"
    library, text = _load(str(LIBRARY))
    return f"native ({text})" if library else f"packages: {text}"


def read(path: str, offset: int = 0, length: int = -1) -> memoryview | None:
    """``length`` bytes of a regular file (negative: all). None if it cannot be read here: then
    Python's own functions read it, or name the reason.

    It gives up the GIL once; os.open, os.fstat, os.pread, and os.close do so four times. With many
    threads, each time costs more than the call, since another thread takes the GIL.
    """
    global _room
    library, room = _library(), _room if length < 0 else length
    if library is None or "\0" in path:  # C would read the file whose name ends there
        return None
    out = np.empty(room, np.uint8)
    size = library.st_read(os.fsencode(path), offset, length, _address(out)[0], room)
    if size > room:
        _room = min(size, _MOST_ROOM)
        return read(path, offset, size)
    return out[:size].data if size >= 0 else None


def kind_of(content: Content) -> int | None:
    """PIXELS, JPEG, or PNG; None if other packages must decode it."""
    if isinstance(content, np.ndarray):
        return PIXELS
    start = bytes(content[:8])
    if start.startswith(b"\xff\xd8\xff"):
        return JPEG
    return PNG if start == b"\x89PNG\r\n\x1a\n" else None


def _address(content: Content) -> tuple[int, int]:
    """The address of the content and its size in bytes. The caller must keep the content alive
    during the C call.
    """
    array = content if isinstance(content, np.ndarray) else np.frombuffer(content, np.uint8)
    return array.__array_interface__["data"][0], array.nbytes


def _fill(stored: Stored, content: Content, kind: int) -> None:
    stored.data, stored.size = _address(content)
    stored.kind = kind
    if isinstance(content, np.ndarray):
        stored.height, stored.width = content.shape[:2]
        stored.stride = content.strides[0]


def _plain(array: np.ndarray, channels: int) -> bool:
    """Whether the decoder can read the pixels without a copy: uint8, without gaps within a row."""
    shape, inner = ((3,), (3, 1)) if channels == 3 else ((), (1,))
    return array.dtype == np.uint8 and array.shape[2:] == shape and array.strides[1:] == inner


def _done(code: int, message: Any, name: str) -> bool:
    """Whether a C function succeeded; False: other packages must do it. Raises DataError for a
    damaged file.
    """
    if code == 1:
        reason = message.value.decode(errors="replace")
        raise damaged(name, reason, found=reason)
    return bool(code == 0)


def crop(
    image: Content,
    mask: Content,
    geometry: Any,
    crop_size: tuple[int, int],
    lut: np.ndarray,
    known: np.ndarray,
    fill: tuple[int, int, int],
    ignore_index: int,
    image_out: np.ndarray,
    mask_out: np.ndarray | None,
    names: tuple[str, str],
    index: bytes = b"",
    floats: FloatForm | None = None,
) -> int | None:
    """Write one sample: ``image_out`` uint8 (h, w, 3), ``mask_out`` uint8 (h, w), both contiguous.
    ``mask_out`` None: only the image.

    ``floats``: the form of ``image_out`` if it is an array for normalized values, see
    ``pixels.floats``. ``geometry``: augment.Geometry. ``lut``, ``known``: uint8 [256], the train id
    of each raw id, and 1 if it has one. ``index``: the ``jpeg_index`` of this image. Returns None
    if other packages must do it (no library, another format), else the first unknown raw id, or -1
    if all ids are known. Raises DataError.
    """
    library = _library()
    parts = ((image, 3), (mask, 1))[: 1 if mask_out is None else 2]
    kinds = [kind_of(content) for content, _ in parts]
    if library is None or None in kinds or JPEG in kinds[1:]:
        return None
    for content, channels in parts:
        if isinstance(content, np.ndarray) and not _plain(content, channels):
            return None
    request = Request(
        size=geometry.size,
        scaled=geometry.scaled,
        crop=crop_size,
        top=geometry.top,
        left=geometry.left,
        flip=geometry.flip,
        colors=geometry.colors,
        fill=(*fill, 0),
        lut=_address(lut)[0],
        known=_address(known)[0],
        out_image=_address(image_out)[0],
    )
    _fill(request.image, image, kinds[0] or PIXELS)
    if mask_out is not None:
        request.out_mask = _address(mask_out)[0]
        request.fill[3] = ignore_index
        _fill(request.mask, mask, kinds[1] or PIXELS)
    if index:
        request.index, request.index_size = _address(index)
    message = ctypes.create_string_buffer(_MESSAGE)
    code = library.st_crop_floats(request, floats, message)
    return int(request.unknown_id) if _done(code, message, names[request.image_done]) else None


def to_floats(levels: np.ndarray, form: FloatForm, out: np.ndarray) -> bool:
    """Normalize ``levels`` uint8 (H, W, 3) into ``out``, both contiguous. False if other packages
    must do it.
    """
    library = _library()
    if library is None:
        return False
    message = ctypes.create_string_buffer(_MESSAGE)
    return bool(
        library.st_floats(_address(levels)[0], *levels.shape[:2], form, _address(out)[0], message)
        == 0
    )


def size(content: Content, name: str) -> tuple[int, int] | None:
    """Height and width in a file's header. None if other packages must read it. Raises
    DataError.
    """
    library, kind = _library(), kind_of(content)
    if library is None or kind is None:
        return None
    stored, height_width = Stored(), (ctypes.c_int32 * 2)()
    _fill(stored, content, kind)
    message = ctypes.create_string_buffer(_MESSAGE)
    return (
        (height_width[0], height_width[1])
        if _done(library.st_size(stored, height_width, message), message, name)
        else None
    )


def _file(content: Content, channels: int) -> Stored | None:
    """The content of a file as an argument for the C functions; None if other packages must decode
    it.
    """
    kind = kind_of(content)
    if not available() or kind is None or kind == PIXELS or (channels == 1 and kind == JPEG):
        return None
    stored = Stored()
    _fill(stored, content, kind)
    return stored


def whole(
    content: Content, channels: int, size: tuple[int, int], name: str, out: np.ndarray | None = None
) -> np.ndarray | None:
    """Decode a whole file. Returns uint8 (H, W, 3) RGB if ``channels`` is 3, or uint8 (H, W) ids if
    it is 1.

    ``out``: a contiguous array for the result. Returns None if other packages must do it. Raises
    DataError.
    """
    library, stored = _library(), _file(content, channels)
    if library is None or stored is None:
        return None
    out = np.empty((*size, 3) if channels == 3 else size, np.uint8) if out is None else out
    message = ctypes.create_string_buffer(_MESSAGE)
    code = library.st_whole(stored, channels, out.ctypes.data, *size, message)
    return out if _done(code, message, name) else None


def check(content: Content, channels: int, name: str) -> bytes | None:
    """Look for damage in a whole file without keeping pixels. Returns its ``jpeg_index``, or b"".

    None if other packages must do it. Raises DataError.
    """
    stored = _file(content, channels)
    return None if stored is None else _made("st_check", name, stored, channels)


def jpeg_index(content: Content, name: str = "the JPEG") -> bytes | None:
    """The start of each tile of a JPEG (12 bytes per 4 MCUs), so that later only the needed tiles
    are read.

    None for a file that cannot use an index or needs none (progressive, with restart markers, not a
    JPEG). Raises DataError if damaged.
    """
    return _made("st_jpeg_index", name, *_address(content)) if kind_of(content) == JPEG else None


def _made(function: str, name: str, *arguments: Any) -> bytes | None:
    """Bytes that a C function makes: b"" if it made none, None if other packages must do it."""
    library = _library()
    if library is None:
        return None
    out, size, message = _pointer(), ctypes.c_int64(), ctypes.create_string_buffer(_MESSAGE)
    code = getattr(library, function)(*arguments, ctypes.byref(out), ctypes.byref(size), message)
    if not _done(code, message, name):
        return None
    try:
        return ctypes.string_at(out, size.value) if out else b""
    finally:
        library.st_free(out)

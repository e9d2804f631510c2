"""The native decoder for images that do not hold it: the library that was built on this machine, with the libraries it needs.

AWS's images have a C++ compiler but no headers of libjpeg, so nothing can be compiled there. The library has no Python in it,
and asks its C library for little, so that one built on an ordinary Linux loads in AWS's images. Whether it did, the run says.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from pathlib import Path

from launch.aws.images import Image, version
from launch.job import PACKAGE

FOLDER = "segtrain/data/pixels/native"
NAME = "libsegtrain_data.so"
_X86_64 = 62  # e_machine of an ELF file
_COMPANIONS = re.compile(r"(/\S*/lib(?:jpeg|deflate)\.so\.\S+)$", re.MULTILINE)
# The C library of AWS's images: Amazon Linux 2023 from torch 2.11 on; Ubuntu 22.04 from 2.4 on, 20.04 before.
AL2023, UBUNTU_22, UBUNTU_20 = 34, 35, 31


def carried(root: Path) -> tuple[dict[str, Path], str]:
    """Name in the bundle -> file, and ""; or nothing, and why no library can be brought."""
    package = root / "segtrain" if (root / "segtrain").is_dir() else PACKAGE
    library = Path(os.environ.get("SEGTRAIN_NATIVE_LIBRARY") or package / "data/pixels/native" / NAME)
    if not _fits(library):
        there = "is not a library for Linux on x86-64" if library.is_file() else "was not built on this machine"
        return {}, f"{library.name} {there}"
    companions, problem = _loaded(library)
    if problem:
        return {}, problem
    return {f"{FOLDER}/carried/{path.name}": path for path in companions} | {f"{FOLDER}/{NAME}": library}, ""


def _fits(library: Path) -> bool:
    try:
        with library.open("rb") as file:
            head = file.read(20)
    except OSError:
        return False
    return head[:5] == b"\x7fELF\x02" and int.from_bytes(head[18:20], "little") == _X86_64


@cache
def _loaded(library: Path) -> tuple[tuple[Path, ...], str]:
    """The libraries besides the system's own that this one needs, as this machine finds them; or why it does not load."""
    try:
        ctypes.CDLL(str(library))
        maps = Path("/proc/self/maps").read_text()
    except OSError as error:
        return (), f"{library.name} cannot be loaded on this machine ({error})"
    return tuple(Path(path) for path in sorted(set(_COMPANIONS.findall(maps)))), ""


def glibc(files: dict[str, Path]) -> int:
    """The C library that files need: 32 for glibc 2.32."""
    found = [int(minor) for path in files.values() for minor in re.findall(rb"GLIBC_2\.(\d+)", path.read_bytes())]
    return max(found, default=0)


def of_image(image: Image) -> int:
    """The C library of one of AWS's images, as ``glibc`` counts."""
    if "amzn2023" in image.tag:
        return AL2023
    return UBUNTU_22 if version(image.torch) >= (2, 4) else UBUNTU_20

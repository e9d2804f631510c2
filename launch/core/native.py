"""Puts the native decoder that was built on this machine, and the libraries that it needs, into the
code bundle.

A container image often has a C++ compiler but no libjpeg headers, so that it cannot compile the
decoder. The decoder does not link to Python and needs little of glibc, so that a build from an
ordinary Linux loads in most images. The run reports whether it loaded.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from pathlib import Path

from launch.core.job import PACKAGE, ROOT

FOLDER = "segtrain/data/pixels/native"
NAME = "libsegtrain_data.so"
_X86_64 = 62  # e_machine of an ELF file
_COMPANIONS = re.compile(r"(/\S*/lib(?:jpeg|deflate)\.so\.\S+)$", re.MULTILINE)


def carried() -> tuple[dict[str, Path], str]:
    """The libraries for the bundle (name in the bundle -> file) and ""; or {} and the reason why
    there are none.
    """
    package = ROOT / "segtrain" if (ROOT / "segtrain").is_dir() else PACKAGE
    library = Path(
        os.environ.get("SEGTRAIN_NATIVE_LIBRARY") or package / "data/pixels/native" / NAME
    )
    if not _fits(library):
        there = (
            "is not a library for Linux on x86-64"
            if library.is_file()
            else "was not built on this machine"
        )
        return {}, f"{library.name} {there}"
    companions, problem = _loaded(library)
    if problem:
        return {}, problem
    return {f"{FOLDER}/carried/{path.name}": path for path in companions} | {
        f"{FOLDER}/{NAME}": library
    }, ""


def _fits(library: Path) -> bool:
    try:
        with library.open("rb") as file:
            head = file.read(20)
    except OSError:
        return False
    return head[:5] == b"\x7fELF\x02" and int.from_bytes(head[18:20], "little") == _X86_64


@cache
def _loaded(library: Path) -> tuple[tuple[Path, ...], str]:
    """The libjpeg and libdeflate files that ``library`` loads on this machine, and ""; or why it
    does not load.
    """
    try:
        ctypes.CDLL(str(library))
        maps = Path("/proc/self/maps").read_text()
    except OSError as error:
        return (), f"{library.name} cannot be loaded on this machine ({error})"
    return tuple(Path(path) for path in sorted(set(_COMPANIONS.findall(maps)))), ""


def glibc(files: dict[str, Path]) -> int:
    """The lowest minor version of glibc with which all files load: 32 for glibc 2.32."""
    minors = [
        int(minor)
        for path in files.values()
        for minor in re.findall(rb"GLIBC_2\.(\d+)", path.read_bytes())
    ]
    return max(minors, default=0)

"""Compiles the native decoder where the package is not installed, such as in the code bundle of a
cloud job.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from segtrain.base.files import replacing

SOURCES = Path(__file__).parent
# the same as in setup.py
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-g0")


def build(target: Path) -> str:
    """Compile the library to ``target``. Returns "" on success, else what is missing or what
    failed.
    """
    compiler = next(
        (which for name in ("c++", "g++", "clang++") if (which := shutil.which(name))), None
    )
    if compiler is None:
        return "there is no C++ compiler"
    if not _has(compiler, "#include <cstdio>\n#include <jpeglib.h>\n"):
        return "there are no headers of libjpeg-turbo (jpeglib.h)"
    if _has(compiler, "#include <libdeflate.h>\n"):
        inflate = ["-DST_LIBDEFLATE=1", "-ldeflate"]
    elif _has(compiler, "#include <zlib.h>\n"):
        inflate = ["-lz"]
    else:
        return "there are no headers of libdeflate or zlib"
    target.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted(str(path) for path in SOURCES.glob("*.cpp"))
    try:
        with replacing(target) as partial:
            command = [compiler, *FLAGS, *sources, "-o", str(partial), "-ljpeg", *inflate]
            subprocess.run(command, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        return (
            f"{Path(compiler).name} failed: "
            f"{error.stderr.strip().splitlines()[-1:] or error.returncode}"
        )
    return ""


def _has(compiler: str, includes: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "try.cpp")
        source.write_text(includes)
        return subprocess.run([compiler, "-E", str(source)], capture_output=True).returncode == 0

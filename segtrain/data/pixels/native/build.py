"""Compiles the native decoder where the code runs: for code that came without being installed, as the bundle of a cloud job."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-g0")  # those of setup.py


def build(target: Path) -> str:
    """Write the library to ``target``. Returns "", or what is missing or went wrong."""
    compiler = next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)
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
    partial = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    sources = sorted(str(path) for path in SOURCES.glob("*.cpp"))
    done = subprocess.run(
        [compiler, *FLAGS, *sources, "-o", str(partial), "-ljpeg", *inflate], capture_output=True, text=True
    )
    if done.returncode:
        partial.unlink(missing_ok=True)
        return f"{Path(compiler).name} failed: {done.stderr.strip().splitlines()[-1:] or done.returncode}"
    os.replace(partial, target)
    return ""


def _has(compiler: str, includes: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "try.cpp")
        source.write_text(includes)
        return subprocess.run([compiler, "-E", str(source)], capture_output=True).returncode == 0

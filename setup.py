"""Build of the native decoder (segtrain/data/pixels/native), and of wheels that contain the
launcher.

The decoder is optional: without it, reading images takes more CPU time. By default it is built if
its libraries are installed. SEGTRAIN_NATIVE=0 leaves it out. With SEGTRAIN_NATIVE=1, a failed build
is an error. The launcher is launch/, configs/, and the files that it sends into containers.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
NATIVE = Path("segtrain/data/pixels/native")
WANTED = os.environ.get("SEGTRAIN_NATIVE", "")
FIX = "apt-get install g++ libjpeg-dev libdeflate-dev"
if sys.platform == "darwin":
    FIX = (
        "brew install jpeg-turbo libdeflate, and set CFLAGS and LDFLAGS to their folders (brew "
        "--prefix)"
    )


class BuildNative(build_ext):
    """Builds a shared library that does not use Python: ctypes loads it, so one build is enough for
    all versions.
    """

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return ext.export_symbols

    def build_extension(self, ext: Extension) -> None:
        problem = self._configure(ext)
        if not problem:
            try:
                return super().build_extension(ext)
            except Exception as error:
                problem = f"it did not compile: {error}"
        if WANTED == "1":
            raise RuntimeError(f"the native decoder cannot be built: {problem}")
        print(
            f"segtrain: without the native decoder ({problem}); reading images takes more CPU",
            file=sys.stderr,
        )

    def copy_extensions_to_source(self) -> None:
        """For editable installs. Leaves out a library that was not built, which would be an
        error.
        """
        self.extensions = [
            ext for ext in self.extensions if os.path.exists(self.get_ext_fullpath_built(ext))
        ]
        super().copy_extensions_to_source()

    def get_ext_fullpath_built(self, ext: Extension) -> str:
        return os.path.join(self.build_lib, self.get_ext_filename(self.get_ext_fullname(ext.name)))

    def get_outputs(self) -> list[str]:
        return [path for path in super().get_outputs() if os.path.exists(path)]

    def _configure(self, ext: Extension) -> str:
        """Adds the libraries that are installed. Returns what is missing, or ""."""
        if not self._compiles(
            "#include <cstdio>\n#include <jpeglib.h>\nint main() { return JPEG_LIB_VERSION == 0; }"
        ):
            return f"no C++ compiler, or no libjpeg-turbo headers: {FIX}"
        if self._compiles(
            "#include <libdeflate.h>\nint main() { return LIBDEFLATE_VERSION_MAJOR < 0; }"
        ):
            ext.define_macros.append(("ST_LIBDEFLATE", "1"))
            ext.libraries.append("deflate")
        elif self._compiles("#include <zlib.h>\nint main() { return 0; }"):
            ext.libraries.append("z")
            print(
                f"segtrain: PNG by zlib; faster with libdeflate: {FIX}, and install again",
                file=sys.stderr,
            )
        else:
            return f"no headers of libdeflate or zlib: {FIX}"
        return ""

    def _compiles(self, code: str) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "try.cpp")
            source.write_text(code)
            try:
                self.compiler.compile([str(source)], output_dir=folder)
            except Exception:
                return False
            return True


class WithLauncher(build_py):
    """Adds the files of `segtrain launch` to a wheel, in segtrain/_checkout. segtrain/launch.py
    says why.
    """

    def carried(self) -> list[Path]:
        patterns = (
            "launch/**/*.py",
            "configs/**/*.yaml",
            "configs/**/*.sh",
            "docker/sagemaker/*",
            "docker/vertex/*",
        )
        found = [path for pattern in patterns for path in HERE.glob(pattern)]
        return sorted(
            path.relative_to(HERE) for path in [*found, HERE / "pyproject.toml"] if path.is_file()
        )

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # an editable install uses the checkout
        for path in self.carried():
            target = Path(self.build_lib, "segtrain/_checkout", path)
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(HERE / path), str(target))

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *(str(path) for path in self.carried())]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        carried = [
            os.path.join(self.build_lib, "segtrain/_checkout", path) for path in self.carried()
        ]
        return [*super().get_outputs(include_bytecode), *([] if self.editable_mode else carried)]


class AnyPython(bdist_wheel):
    """Tags one wheel per platform for all versions of Python, because the library does not use
    Python.
    """

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return ("py3", "none", platform) if self.root_is_pure is False else (python, abi, platform)


ext_modules = []
if WANTED != "0" and os.name == "posix":
    ext_modules = [
        Extension(
            "segtrain.data.pixels.native.libsegtrain_data",
            sources=sorted(str(path.relative_to(HERE)) for path in (HERE / NATIVE).glob("*.cpp")),
            depends=sorted(str(path.relative_to(HERE)) for path in (HERE / NATIVE).glob("*.h")),
            libraries=["jpeg"],
            extra_compile_args=["-std=c++17", "-O3", "-fvisibility=hidden", "-g0"],
            language="c++",
        )
    ]
setup(
    ext_modules=ext_modules,
    cmdclass={"build_ext": BuildNative, "build_py": WithLauncher, "bdist_wheel": AnyPython},
)

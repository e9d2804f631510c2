"""Virtual environments for the input pipelines, one each.

    python bench/rivals_data.py --install all --envs DIR [--base PYTHON]

One environment, DIR/base, holds what nearly all of them use: torch, torchvision, albumentations and OpenCV (about 5 GB
with the CUDA libraries of the PyPI wheels). Each rival has its own environment DIR/NAME with its own packages, which
reads those of the base by one line in a .pth file; what it installs itself goes before them. With --base another
interpreter's packages are the base.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

BASE = ("torch==2.15.0", "torchvision==0.29.2", "albumentations==2.0.8", "opencv-python-headless", "simplejpeg")


@dataclass(frozen=True)
class Environment:
    """What pip installs: ``plain`` with requirements, ``bare`` without; ``shown`` are the packages that the table names."""

    shown: tuple[str, ...]
    plain: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()


ENVIRONMENTS = {
    "torch": Environment(("torch", "torchvision", "albumentations", "opencv-python-headless"), ("torchdata==0.11.0",)),
    "spdl": Environment(("spdl-core", "albumentations"), ("spdl-core",)),
    "streaming": Environment(("mosaicml-streaming", "albumentations"), ("mosaicml-streaming",)),
    "litdata": Environment(("litdata", "albumentations"), ("litdata",)),
    "grain": Environment(("grain", "albumentations"), ("grain",)),
    "webdataset": Environment(("webdataset", "albumentations"), ("webdataset",)),
    "s3torch": Environment(("s3torchconnector",), ("s3torchconnector",)),
    "dali": Environment(("nvidia-dali-cuda120",), ("nvidia-dali-cuda120",)),
    # mmsegmentation's transforms need mmcv's Python part alone; a full mmcv would be compiled for an hour.
    "mmseg": Environment(
        ("mmsegmentation", "mmcv-lite"),
        ("addict", "yapf", "termcolor", "rich", "pyyaml", "matplotlib", "packaging", "prettytable", "scipy", "ftfy",
         "regex", "setuptools<81"),
        ("mmengine==0.10.7", "mmcv-lite==2.1.0", "mmsegmentation==1.2.2"),
    ),
    "hf": Environment(("datasets", "albumentations"), ("datasets",)),
}  # fmt: skip


def python_of(envs: Path, name: str) -> Path:
    """The interpreter of an environment."""
    return envs.absolute() / name / "bin" / "python"


def install(name: str, envs: Path, base: str = "") -> None:
    """Make or complete one environment, and the base where none is given. Raises CalledProcessError where pip fails."""
    found, python = ENVIRONMENTS[name], python_of(envs, name)
    if not base:
        base = str(python_of(envs, "base"))
        if not Path(base).exists():
            venv.create(envs / "base", with_pip=True)
            subprocess.run([base, "-m", "pip", "install", "-q", *BASE], check=True)
    venv.create(envs / name, with_pip=True)
    (theirs,) = _ask(base, "import sysconfig; print(sysconfig.get_path('purelib'))")
    (own,) = _ask(str(python), "import sysconfig; print(sysconfig.get_path('purelib'))")
    Path(own, "base.pth").write_text(theirs + "\n", encoding="utf-8")
    for packages, flags in ((found.plain, []), (found.bare, ["--no-deps"])):
        if packages:
            subprocess.run([str(python), "-m", "pip", "install", "-q", *flags, *packages], check=True)
    print(f"{name}: {versions(python, found.shown)}", flush=True)


def versions(python: Path | str, packages: tuple[str, ...]) -> dict[str, str]:
    """{package: version}; empty where there is no such interpreter."""
    if not Path(python).exists():
        return {}
    code = (
        "import importlib.metadata as m, json\n"
        "def version(p):\n"
        "    try: return m.version(p)\n"
        "    except m.PackageNotFoundError: return 'absent'\n"
        f"print(json.dumps({{p: version(p) for p in {packages!r}}}))"
    )
    return json.loads(_ask(str(python), code)[-1])


def _ask(python: str, code: str) -> list[str]:
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    sys.exit("this is a part of bench/rivals_data.py: run that with --install")

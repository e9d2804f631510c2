"""Virtual environments for the libraries that segtrain is compared with, one each.

    python bench/rivals_data.py --install all --envs DIR [--base PYTHON]
    python bench/rivals_train.py --install lightning,hf --envs DIR [--base PYTHON]

One environment, DIR/base, holds what nearly all of them use: torch, torchvision, SMP,
albumentations, and OpenCV (about 5 GB with the CUDA libraries of the PyPI wheels). Each library has
its own environment DIR/NAME with its own packages, which reads those of the base by one line in a
.pth file; what it installs itself goes before them. With --base another interpreter's packages are
the base.

Composer pins torch below 2.7.1 and mmengine asks for a second OpenCV, although both run without:
such packages are installed bare (``--no-deps``), and what they need in fact is listed. pip then
warns of conflicts; that is expected.
"""

from __future__ import annotations

import json
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

BASE = (
    "torch==2.15.0",
    "torchvision==0.29.2",
    "segmentation-models-pytorch==0.6.0",
    "albumentations==2.0.8",
    "opencv-python-headless",
    "simplejpeg",
)
MMENGINE = (
    "addict",
    "yapf",
    "termcolor",
    "rich",
    "pyyaml",
    "matplotlib",
    "packaging",
    "setuptools<81",
)


@dataclass(frozen=True)
class Environment:
    """What pip installs: ``plain`` with requirements, ``bare`` without; ``shown`` are the packages
    that the table names.
    """

    shown: tuple[str, ...]
    plain: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()


PIPELINES = {
    "torch": Environment(("torch", "torchvision", "albumentations", "opencv-python-headless")),
    "spdl": Environment(("spdl-core", "albumentations"), ("spdl-core",)),
    "litdata": Environment(("litdata", "albumentations"), ("litdata",)),
    "webdataset": Environment(("webdataset", "albumentations"), ("webdataset",)),
    "s3torch": Environment(("s3torchconnector",), ("s3torchconnector",)),
    "dali": Environment(("nvidia-dali-cuda120",), ("nvidia-dali-cuda120",)),
}
TRAINERS = {
    "torchvision": Environment(("torch", "torchvision")),
    "lightning": Environment(("torch", "lightning", "albumentations"), ("lightning==2.6.6",)),
    "mmengine": Environment(
        ("torch", "mmengine", "mmcv-lite"), MMENGINE, ("mmengine==0.10.7", "mmcv-lite==2.1.0")
    ),
    "composer": Environment(
        ("torch", "mosaicml", "torchmetrics"),
        (
            "torchmetrics==1.7.4",
            "importlib-metadata==8.7.0",
            "mosaicml-cli<0.8",
            "py-cpuinfo",
            "coolname",
            "tabulate",
            "tenacity",
            "tqdm",
            "psutil",
            "pyyaml",
            "requests",
            "packaging",
            "backoff",
            "rich",
        ),
        ("mosaicml==0.32.1", "torch_optimizer==0.3.0", "pytorch_ranger==0.1.1"),
    ),
    "hf": Environment(
        ("torch", "transformers", "accelerate", "albumentations"),
        ("transformers==5.23.0", "accelerate==1.15.0"),
    ),
}


def python_of(envs: Path, name: str) -> Path:
    """The interpreter of an environment."""
    return envs.absolute() / name / "bin" / "python"


def install(name: str, packages: Environment, envs: Path, base: str = "") -> None:
    """Make or complete one environment, and the base where none is given. Raises CalledProcessError
    where pip fails.
    """
    python = python_of(envs, name)
    if not base:
        base = str(python_of(envs, "base"))
        if not Path(base).exists():
            venv.create(envs / "base", with_pip=True)
            subprocess.run([base, "-m", "pip", "install", "-q", *BASE], check=True)
    venv.create(envs / name, with_pip=True)
    (theirs,) = _ask(base, "import sysconfig; print(sysconfig.get_path('purelib'))")
    (own,) = _ask(str(python), "import sysconfig; print(sysconfig.get_path('purelib'))")
    Path(own, "base.pth").write_text(theirs + "\n", encoding="utf-8")
    for requirements, flags in ((packages.plain, []), (packages.bare, ["--no-deps"])):
        if requirements:
            subprocess.run(
                [str(python), "-m", "pip", "install", "-q", *flags, *requirements], check=True
            )
    print(f"{name}: {versions(python, packages.shown)}", flush=True)


def versions(python: Path | str, packages: tuple[str, ...]) -> str:
    """'package version, ...' of an interpreter; empty where there is no such interpreter."""
    if not Path(python).exists():
        return ""
    code = (
        "import importlib.metadata as m, json\n"
        "def version(p):\n"
        "    try: return m.version(p)\n"
        "    except m.PackageNotFoundError: return 'absent'\n"
        f"print(json.dumps({{p: version(p) for p in {packages!r}}}))"
    )
    found = json.loads(_ask(str(python), code)[-1])
    return ", ".join(f"{package} {version}" for package, version in found.items())


def _ask(python: str, code: str) -> list[str]:
    return subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True
    ).stdout.splitlines()

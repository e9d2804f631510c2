"""Virtual environments for the rivals, one each.

    python bench/rivals_train.py --install lightning,hf --envs DIR [--base PYTHON]

Makes DIR/NAME, a virtual environment, for each rival. A complete one downloads its own torch (about 5 GB with the CUDA
libraries of the PyPI wheels). With --base it reads torch, torchvision, SMP, ... from the site-packages of that
interpreter, by one line in a .pth file: the same torch for all, and minutes and gigabytes saved.

Composer pins torch below 2.7.1 and mmengine asks for a second OpenCV, although both run without: such packages are
installed bare (``--no-deps``), and what they need in fact is listed here. pip then warns of conflicts; that is
expected.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

TORCH = ("torch==2.15.0", "torchvision==0.29.2", "segmentation-models-pytorch==0.6.0", "opencv-python-headless")
ALBUMENTATIONS = "albumentations==2.0.8"


@dataclass(frozen=True)
class Rival:
    """A script of this folder and what pip installs for it: ``plain`` with requirements, ``bare`` without any."""

    script: str
    shown: tuple[str, ...]  # packages whose versions stand in the table
    plain: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()


RIVALS = {
    "torchvision": Rival("torchvision_reference.py", ("torchvision",)),
    "lightning": Rival("lightning_smp.py", ("lightning", "albumentations"), ("lightning==2.6.6", ALBUMENTATIONS)),
    "mmengine": Rival(
        "mmengine_runner.py",
        ("mmengine", "mmcv-lite"),
        ("addict", "yapf", "termcolor", "rich", "pyyaml", "matplotlib", "packaging", "setuptools<81"),
        ("mmengine==0.10.7", "mmcv-lite==2.1.0"),
    ),
    "composer": Rival(
        "composer_trainer.py",
        ("mosaicml", "torchmetrics"),
        ("torchmetrics==1.7.4", "importlib-metadata==8.7.0", "mosaicml-cli<0.8", "py-cpuinfo", "coolname", "tabulate",
         "tenacity", "tqdm", "psutil", "pyyaml", "requests", "packaging", "backoff", "rich"),
        ("mosaicml==0.32.1", "torch_optimizer==0.3.0", "pytorch_ranger==0.1.1"),
    ),
    "hf": Rival(
        "hf_trainer.py",
        ("transformers", "accelerate", "albumentations"),
        ("transformers==5.23.0", "accelerate==1.15.0", ALBUMENTATIONS),
    ),
    "plain": Rival("plain_loop.py", ("torch",)),
}  # fmt: skip


def python_of(envs: Path, name: str) -> Path:
    """The interpreter of a rival's environment."""
    return envs.absolute() / name / "bin" / "python"


def install(name: str, envs: Path, base: str = "") -> None:
    """Make or complete one environment. Raises subprocess.CalledProcessError where pip fails."""
    rival, python = RIVALS[name], python_of(envs, name)
    venv.create(envs / name, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "-q"]
    if base:
        (site,) = _ask(base, "import sysconfig; print(sysconfig.get_path('purelib'))")
        (own,) = _ask(str(python), "import sysconfig; print(sysconfig.get_path('purelib'))")
        Path(own, "base.pth").write_text(site + "\n", encoding="utf-8")
    else:
        subprocess.run([*pip, *TORCH], check=True)
    for packages, flags in ((rival.plain, []), (rival.bare, ["--no-deps"])):
        if packages:
            subprocess.run([*pip, *flags, *packages], check=True)
    print(f"{name}: {versions(name, envs)}")


def versions(name: str, envs: Path) -> dict[str, str]:
    """{package: version} of what a table should name; empty where there is no such environment."""
    python = python_of(envs, name)
    if not python.exists():
        return {}
    packages = [*RIVALS[name].shown, "torch", "segmentation-models-pytorch"]
    code = f"import importlib.metadata as m, json; print(json.dumps({{p: m.version(p) for p in {packages!r}}}))"
    return json.loads(_ask(str(python), code)[-1])


def _ask(python: str, code: str) -> list[str]:
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    sys.exit("this is a part of bench/rivals_train.py: run that with --install")

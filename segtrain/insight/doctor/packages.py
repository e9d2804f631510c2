"""Checks of Python, the packages, and the GPU driver, without importing torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from segtrain.base.terminal import counted
from segtrain.insight.doctor.line import NOTE, OK, PROBLEM, CheckLine
from segtrain.observe.trackers import TRACKERS

LEAST_PYTHON = (3, 10)
NEEDED = {  # package -> minimum version, as in pyproject.toml
    "torch": "2.4",
    "torchvision": "0.19",
    "segmentation-models-pytorch": "0.5",
    "numpy": "1.23",
    "pillow": "10.1",
    "psutil": "5.9",
    "pycocotools": "2.0.7",
    "pydantic": "2.5",
    "pyyaml": "6",
    "safetensors": "0.4",
    "tensorboard": "2.12",
}
OPTIONAL = {  # package -> (extra of segtrain that installs it, its purpose)
    "albumentations": ("albumentations", "custom augmentation (data.transforms)"),
    "onnx": ("export", "ONNX files"),
    "onnxruntime": ("export", "verifying ONNX files"),
    "pandas": ("pandas", "data frames of runs"),
    "matplotlib": ("plot", "plots of runs"),
    **{
        kind.package: (kind.extra, f"tracking (log.{kind.setting})")
        for kind in TRACKERS
        if kind.extra
    },
    "google-auth": ("vertex", "tracking (log.vertex), and Vertex AI jobs"),
    "nvidia-ml-py": ("gpu", "GPUs in the system profile"),
    "boto3": ("sagemaker", "SageMaker jobs"),
}
OPENCV = (
    "opencv-python-headless",
    "opencv-python",
    "opencv-contrib-python",
    "opencv-contrib-python-headless",
)
# no run starts without these
FATAL = ("torch", "numpy", "pillow", "pydantic", "pyyaml", "safetensors")
SECONDS = 20.0  # time limit for the process in which torch looks for GPUs

_SEE_GPU = """
import torch
ready = torch.cuda.is_available()
names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())] if ready else []
print(",".join(names))
"""


def checks() -> Iterator[CheckLine]:
    python_version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < LEAST_PYTHON:
        yield CheckLine(PROBLEM, "python", python_version, "use Python 3.10 or later", fatal=True)
    else:
        yield CheckLine(OK, "python", f"{python_version}, {platform.system()} {platform.machine()}")
    if sys.platform == "win32":
        yield CheckLine(
            PROBLEM,
            "system",
            "Windows: training does not run",
            "use WSL 2: wsl --install",
            fatal=True,
        )
    yield from needed()
    yield gpu(sorted(map(str, Path("/dev").glob("nvidia[0-9]*"))))
    yield from torchvision()
    yield from opencv()
    yield from optional()


def version(package: str) -> str | None:
    """The installed version. None if the package is missing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(text: str) -> tuple[int, ...]:
    """``2.15.0+cu132`` as (2, 15, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0]))


def needed() -> Iterator[CheckLine]:
    """One line if all required packages are installed, else one line per missing or outdated
    package.
    """
    wrong = [
        name for name, least in NEEDED.items() if numbers(version(name) or "0") < numbers(least)
    ]
    for package in wrong:
        least = NEEDED[package]
        fix = f"pip install '{package}>={NEEDED[package]}'"
        text = f"{version(package) or 'missing'}; {least} or later is required"
        yield CheckLine(PROBLEM, package, text, fix, fatal=package in FATAL)
    if not wrong:
        yield CheckLine(OK, "packages", f"all {len(NEEDED)} required packages are installed")
    if version("simplejpeg") is None:
        yield CheckLine(
            NOTE,
            "simplejpeg",
            "missing: OpenCV decodes JPEG, at half the speed",
            "pip install simplejpeg",
        )


def built_for_cuda() -> str | None:
    """The CUDA version that torch was built for, read from its files: "" for a CPU build, None if
    it is unknown.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=\n]*=\s*(?:'([\d.]+)'|None)", text, re.MULTILINE)
    return None if match is None else match[1] or ""


def driver(proc: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The version of the NVIDIA driver. "" without a driver, "?" if the file names no version."""
    try:
        match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", proc.read_text())
    except OSError:
        return ""
    return match[1] if match else "?"


def gpu(files: list[str]) -> CheckLine:
    """Check whether the installed build of torch can use the GPUs. ``files``: device files of the
    GPUs.
    """
    torch_version = version("torch")
    if torch_version is None:
        return CheckLine(NOTE, "gpu", "not checked without torch")
    cuda = built_for_cuda()
    built = f"torch {torch_version} for CUDA {cuda}" if cuda else f"torch {torch_version}"
    if not files:
        return CheckLine(OK, "gpu", f"{built}; no NVIDIA GPU: training runs on the CPU")
    gpus = counted(len(files), "NVIDIA GPU")
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return CheckLine(
            NOTE, "gpu", f"{built}; CUDA_VISIBLE_DEVICES hides {gpus}", "unset it to use them"
        )
    if cuda == "":
        fix = "install a CUDA build of torch that fits the driver: pytorch.org/get-started"
        return CheckLine(PROBLEM, "gpu", f"{built} is a CPU build, but this host has {gpus}", fix)
    try:
        command = [sys.executable, "-c", _SEE_GPU]
        seen = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS
        ).stdout.strip()
    except subprocess.TimeoutExpired:
        return CheckLine(
            PROBLEM, "gpu", f"{built}: the GPU did not answer in {SECONDS:.0f} s", "run nvidia-smi"
        )
    if not seen:
        fix = (
            f"driver {driver() or 'missing'}: install one for CUDA {cuda}, or a torch build "
            "for an older CUDA"
        )
        return CheckLine(PROBLEM, "gpu", f"{built} cannot use {gpus}", fix)
    return CheckLine(OK, "gpu", f"{built}, driver {driver()}: {seen}")


def torchvision() -> Iterator[CheckLine]:
    """Report a problem if torch and torchvision are builds for different targets (the CPU, or a
    version of CUDA).

    In that case, importing torchvision fails.
    """
    torch, vision = version("torch") or "", version("torchvision") or ""
    local = [release.partition("+")[2] for release in (torch, vision)]
    if torch and vision and all(local) and local[0] != local[1]:
        said = (
            f"{vision} with torch {torch}: the import fails (operator torchvision::nms does "
            "not exist)"
        )
        yield CheckLine(
            PROBLEM, "torchvision", said, "install both from the same index with one command"
        )


def opencv() -> Iterator[CheckLine]:
    there = [name for name in OPENCV if version(name)]
    if not there:
        yield CheckLine(
            PROBLEM, "opencv", "missing", "pip install opencv-python-headless", fatal=True
        )
        return
    if len(there) > 1:
        fix = f"pip uninstall {' '.join(there)}; pip install opencv-python-headless"
        yield CheckLine(NOTE, "opencv", f"{' and '.join(there)} overwrite each other's files", fix)
    import cv2

    yield CheckLine(
        OK, "opencv", f"{cv2.__version__}, {cv2.getNumThreads()} threads (1 while data are loaded)"
    )


def optional() -> Iterator[CheckLine]:
    there = [f"{name} {version(name)}" for name in OPTIONAL if version(name)]
    if there:
        yield CheckLine(OK, "optional", ", ".join(there))
    for name, (extra, purpose) in OPTIONAL.items():
        if version(name) is None:
            yield CheckLine(
                NOTE, name, f"missing: needed for {purpose}", f"pip install 'segtrain[{extra}]'"
            )

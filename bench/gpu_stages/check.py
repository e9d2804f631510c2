"""Packages, driver, and GPU of this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys

from gpu_stages.rig import NEEDED, OPTIONAL, Rig


def run(rig: Rig) -> None:
    import torch

    rig.note("Python", f"{sys.version.split()[0]} at {sys.executable}")
    for module, name in {**NEEDED, **OPTIONAL}.items():
        there = importlib.util.find_spec(module) is not None
        rig.note(name, _version(name) if there else "not installed")
    from segtrain.data.pixels import native

    rig.note("decoder", native.describe())
    if not rig.on_gpu:
        rig.note("GPU", "none, a rehearsal on the CPU")
        return
    built = f"torch {torch.__version__} is built for {torch.version.cuda or torch.version.hip or 'CPUs only'}"
    if not torch.cuda.is_available():
        fix = "install a build of torch for the driver (nvidia-smi shows it), or rehearse with --device cpu --tiny"
        rig.note("GPU", f"torch sees none: {built}: {fix}", False)
        return
    facts = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info(0)
    rig.note("GPU", f"{facts.name}, {torch.cuda.device_count()} x {total / 2**30:.0f} GiB")
    rig.note(
        "compute capability",
        f"{facts.major}.{facts.minor}, {facts.multi_processor_count} multiprocessors",
    )
    rig.note("CUDA", f"{built}, cuDNN {torch.backends.cudnn.version()}")
    if not torch.version.hip:
        nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else "none"
        rig.note("NCCL", nccl)
    rig.note("free memory", f"{free / 2**30:.1f} GiB", free > 4 * 2**30, "4 GiB")
    smi = [
        "nvidia-smi",
        "--query-gpu=driver_version,clocks.sm,temperature.gpu,power.limit",
        "--format=csv,noheader",
    ]
    try:
        rig.note(
            "nvidia-smi",
            subprocess.run(smi, capture_output=True, text=True, timeout=30).stdout.strip(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        rig.note("nvidia-smi", f"{type(error).__name__}: {error}")
    product = torch.ones(256, 256, device="cuda") @ torch.ones(256, 256, device="cuda")
    rig.note("a first product", "right", bool((product == 256).all()))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "installed under another name"

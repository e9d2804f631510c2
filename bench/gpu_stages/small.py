"""Training steps that the host limits: small networks, crops, and batches, with and without CUDA
graphs.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gpu_stages.rig import Rig
from gpu_stages.speed import Case, race
from segtrain.base.precision import fitting


def run(rig: Rig) -> None:
    best, networks = fitting(torch.device(rig.device))[0], rig.networks()
    sizes = {"DeepLabV3+ R50": ((360, 480), 16), "pico": ((96, 128), 8)}
    found = []
    for name in [name for name in sizes if name in networks]:
        size, images = ((32, 32), 2) if rig.tiny else sizes[name]
        case = Case(name, size, images, 11, best)
        found.append((f"{name}, {size[0]}x{size[1]}, {images} images, 11 classes, {best}", case))
        if rig.on_gpu:
            found.append((f"  {name}, CUDA graphs", replace(case, graph=True)))
    race(rig, networks, found, 8)

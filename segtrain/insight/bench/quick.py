"""Cost of a sample with the decoder of this process (see bench/child.py), measured on one generated
street scene.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from segtrain.config import Data
from segtrain.data.datasets import open_dataset
from segtrain.data.labels.presets import SCENES
from segtrain.data.sample import SampleMaker, Task
from segtrain.data.scenes.scene import scene
from segtrain.insight.bench.child import answer_with, decoder

SIZE = (512, 1024)  # of the scene
CROP = (512, 512)


def quick(seconds: float) -> dict[str, Any]:
    """Make the same 8 random crops in rounds, until about ``seconds`` of CPU time are used.

    Returns the median CPU milliseconds per sample over all rounds, and the decoder.
    """
    image, mask = scene(1, 0, SIZE)
    files = {
        "images/train/0.jpg": cv2.cvtColor(image, cv2.COLOR_RGB2BGR),
        "masks/train/0.png": mask,
    }
    with tempfile.TemporaryDirectory(prefix="segtrain-quick-") as root:
        for name, pixels in files.items():
            (Path(root) / name).parent.mkdir(parents=True)
            cv2.imwrite(f"{root}/{name}", pixels)
        data = Data(layout="folders", root=root, classes=SCENES.names, crop=CROP)
        make = SampleMaker(open_dataset(data, "train"), data, seed=0)
        out = np.empty((*CROP, 3), np.uint8), np.empty(CROP, np.uint8)
        rounds: list[float] = []
        make(Task(0, 0, CROP, (0.5, 2.0)), *out)
        while not rounds or sum(rounds) < seconds:
            begin = time.thread_time()
            # the same eight crops each time, so that both decoders do the same work
            for epoch in range(8):
                make(Task(0, epoch, CROP, (0.5, 2.0)), *out)
            rounds.append(time.thread_time() - begin)
    return decoder() | {"cpu_ms": 1000 * statistics.median(rounds) / 8}


if __name__ == "__main__":
    answer_with(lambda config, request: quick(request["seconds"]))

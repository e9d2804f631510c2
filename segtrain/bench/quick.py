"""What does a sample cost in this process's path of decoding? A fraction of a second on one generated street scene.

Runs as a process of its own (``python -m segtrain.bench.quick``): a request as JSON comes in, the result as JSON goes out.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

import cv2
import numpy as np

from segtrain.bench.held import Held, jpeg, png
from segtrain.bench.paths import path
from segtrain.config import Data
from segtrain.data.index.entries import Entry
from segtrain.data.labels.presets import SCENES
from segtrain.data.record import StoredSample
from segtrain.data.sample import SampleMaker, Task
from segtrain.data.scenes.scene import scene

SIZE = (512, 1024)  # of the scene
CROP = (512, 512)


def quick(seconds: float) -> dict[str, Any]:
    """Mean CPU milliseconds a sample over the same draws in whole rounds, for about ``seconds`` of CPU."""
    image, mask = scene(1, 0, SIZE)
    drawn = StoredSample(jpeg(image), png(mask), "the generated JPEG", "the generated PNG", "raw")
    sampler = SampleMaker(
        Held(drawn, SCENES, [Entry("the generated JPEG", "the generated PNG")]), Data(crop=CROP), seed=0
    )
    out = np.empty((*CROP, 3), np.uint8), np.empty(CROP, np.uint8)
    rounds: list[float] = []
    sampler(Task(0, 0, CROP, (0.5, 2.0)), *out)
    while not rounds or sum(rounds) < seconds:
        begin = time.thread_time()
        for epoch in range(8):  # the same eight draws each time, so that two paths do the same work
            sampler(Task(0, epoch, CROP, (0.5, 2.0)), *out)
        rounds.append(time.thread_time() - begin)
    name, says = path()
    return {"path": name, "path_says": says, "cpu_ms": 1000 * statistics.median(rounds) / 8}


def main() -> None:
    cv2.setNumThreads(1)
    seconds = json.load(sys.stdin)["seconds"]
    with tempfile.TemporaryDirectory(prefix="segtrain-bench-") as scratch:
        os.environ["SEGTRAIN_CACHE"] = scratch
        json.dump(quick(seconds), sys.stdout)


if __name__ == "__main__":
    main()

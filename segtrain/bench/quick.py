"""Cost of a sample with the decoder of this process (see bench/child.py), measured on one generated street scene."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from segtrain.bench.child import answer_with, decoder
from segtrain.bench.held import Held, jpeg, png
from segtrain.config import Data
from segtrain.data.index.entries import Entry
from segtrain.data.labels.presets import SCENES
from segtrain.data.pixels.crop import StoredSample
from segtrain.data.sample import SampleMaker, Task
from segtrain.data.scenes.scene import scene

SIZE = (512, 1024)  # of the scene
CROP = (512, 512)


def quick(seconds: float) -> dict[str, Any]:
    """Make the same 8 random crops in rounds, until about ``seconds`` of CPU time are used.

    Returns the median CPU milliseconds per sample over all rounds, and the decoder.
    """
    image, mask = scene(1, 0, SIZE)
    drawn = StoredSample(jpeg(image), png(mask), "the generated JPEG", "the generated PNG", "raw")
    held = Held(drawn, SCENES, [Entry("the generated JPEG", "the generated PNG")])
    make = SampleMaker(held, Data(crop=CROP), seed=0)
    out = np.empty((*CROP, 3), np.uint8), np.empty(CROP, np.uint8)
    rounds: list[float] = []
    make(Task(0, 0, CROP, (0.5, 2.0)), *out)
    while not rounds or sum(rounds) < seconds:
        begin = time.thread_time()
        for epoch in range(8):  # the same eight crops each time, so that both decoders do the same work
            make(Task(0, epoch, CROP, (0.5, 2.0)), *out)
        rounds.append(time.thread_time() - begin)
    return decoder() | {"cpu_ms": 1000 * statistics.median(rounds) / 8}


if __name__ == "__main__":
    answer_with(lambda config, request: quick(request["seconds"]))

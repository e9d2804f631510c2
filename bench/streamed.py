"""The second account's way to feed a device: Ray Data makes the batches, on all cores of a Ray
cluster.

    RAY_ADDRESS=HOST:PORT python bench/streamed.py FOLDER MARKS DEVICE_S BATCH

FOLDER has images/train and masks/train. MARKS gets a line for each step, as a run's journal has. A
device takes DEVICE_S seconds for each batch, as that of buckets/trained.py. It runs until it is
ended.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

SIDE = 224
CHUNK = 16  # samples of a task: a fourth of a batch
EPOCHS = 200


def main() -> None:
    folder, marks, device_s, batch = (
        kind(word) for kind, word in zip((Path, Path, float, int), sys.argv[1:])
    )
    import ray
    import ray.data

    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level=logging.ERROR)
    while len([node for node in ray.nodes() if node["Alive"]]) < 2:
        time.sleep(0.1)

    # Defined here, so that it travels to the other host by value.
    def read_and_blur(rows: dict[str, Any]) -> dict[str, Any]:
        import blurs
        import cv2
        import numpy as np
        import torch

        torch.set_num_threads(1)
        images = np.empty((len(rows["image"]), SIDE, SIDE, 3), np.uint8)
        masks = np.empty(images.shape[:3], np.uint8)
        for k, (image, mask, seed) in enumerate(zip(rows["image"], rows["mask"], rows["seed"])):
            rng = np.random.default_rng(int(seed))
            pixels, ids = (
                cv2.imread(str(image))[..., ::-1],
                cv2.imread(str(mask), cv2.IMREAD_UNCHANGED),
            )
            top, left = (int(rng.integers(side - SIDE + 1)) for side in ids.shape)
            window = slice(top, top + SIDE), slice(left, left + SIDE)
            images[k], masks[k] = blurs.ten(np.ascontiguousarray(pixels[window]), ids[window], rng)
        return {"image": images, "mask": masks}

    names = sorted(path.stem for path in (folder / "images/train").iterdir())
    rows = [
        {
            "image": f"{folder}/images/train/{name}.jpg",
            "mask": f"{folder}/masks/train/{name}.png",
            "seed": k,
        }
        for k, name in enumerate(names * EPOCHS)
    ]
    ray.data.DataContext.get_current().enable_progress_bars = False
    data = ray.data.from_items(rows, override_num_blocks=len(rows) // CHUNK)
    data = data.map_batches(read_and_blur, batch_size=CHUNK, num_cpus=1)
    # what ray.train.get_dataset_shard gives the one worker of the account
    shard = data.streaming_split(1)[0]
    free_at = 0.0
    with open(marks, "a", encoding="utf-8") as out:
        for step, content in enumerate(
            shard.iter_torch_batches(batch_size=batch, prefetch_batches=2), 1
        ):
            assert tuple(content["image"].shape) == (batch, SIDE, SIDE, 3)
            time.sleep(max(0.0, free_at - time.perf_counter()))
            free_at = time.perf_counter() + device_s
            out.write(json.dumps({"event": "step", "step": step, "ts": time.time()}) + "\n")
            out.flush()


if __name__ == "__main__":
    main()

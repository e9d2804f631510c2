"""What a sample costs the training host: made by its own workers, or received from helpers. CPU time, and the speed.

    python bench/helpers.py [SECONDS]

Helpers are processes on this machine, and their bytes come through loopback. The ways alternate, three times each. Files
are generated: JPEG images of 2048x1024 and 224x224 with PNG masks.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helper_hosts import Hosts, InProcess  # noqa: E402

from segtrain.config import Data  # noqa: E402
from segtrain.data.datasets import open_dataset  # noqa: E402
from segtrain.data.helpers import balance  # noqa: E402
from segtrain.data.helpers import pool as helped  # noqa: E402
from segtrain.data.loader import TrainLoader  # noqa: E402
from segtrain.data.scenes.scene import scene  # noqa: E402
from segtrain.data.workers.pool import WorkerPool  # noqa: E402

BLURS = [{"GaussianBlur": {"blur_limit": [11, 11], "sigma_limit": [2, 2], "p": 1.0}}] * 10
CASES: dict[str, tuple[tuple[int, int], dict[str, Any], int]] = {
    "512x1024, built in": ((1024, 2048), {"crop": (512, 1024)}, 8),
    "224x224, built in": ((224, 224), {"crop": (224, 224), "scale": (1.0, 1.0)}, 32),
    "224x224, ten blurs": ((224, 224), {"crop": (224, 224), "scale": (1.0, 1.0), "transforms": BLURS}, 32),
}


def files(root: Path, size: tuple[int, int], count: int = 16) -> None:
    for part in ("images", "masks"):
        (root / part / "train").mkdir(parents=True)
    for k in range(count):
        image, mask = scene(1, k, (size[0] // 2, size[1] // 2))
        image = cv2.resize(image, size[::-1], interpolation=cv2.INTER_CUBIC)
        noise = np.random.default_rng(k).integers(0, 12, image.shape, np.uint8)
        cv2.imwrite(str(root / f"images/train/{k:03}.jpg"), cv2.add(image, noise), [cv2.IMWRITE_JPEG_QUALITY, 95])
        cv2.imwrite(
            str(root / f"masks/train/{k:03}.png"), cv2.resize(mask, size[::-1], interpolation=cv2.INTER_NEAREST)
        )


def measure(data: Data, pool: WorkerPool, batch: int, seconds: float) -> tuple[float, float, float, float]:
    """Samples per second, the share of helpers, CPU ms of a sample that was made here, and of one that was received."""
    source = open_dataset(data, "train")
    with pool, TrainLoader(source, data, seed=1, batch_size=batch, last_step=10**6, pool=pool) as loader:
        steps = iter(loader)
        until = time.perf_counter() + 60
        while isinstance(pool, helped.HelpedPool) and len(pool._gave) < 2 and time.perf_counter() < until:
            next(steps)
        there = sum(getattr(pool, "helped", {}).values())
        samples, made, cpu, begin = 0, pool.tally.samples, time.process_time(), time.perf_counter()
        own = pool.tally.cost.cpu_s
        while time.perf_counter() - begin < seconds:
            next(steps)
            samples += batch
        took, cpu, own = time.perf_counter() - begin, time.process_time() - cpu, pool.tally.cost.cpu_s - own
        there, made = sum(getattr(pool, "helped", {}).values()) - there, pool.tally.samples - made
    return samples / took, there / max(1, there + made), 1e3 * own / max(1, made), 1e3 * (cpu - own) / max(1, there)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    balance.WORTH = float("inf")  # measure them also where they do not pay
    print(f"{'':20} {'local':>10} {'2 helpers':>10} {'their share':>12} {'making':>9} {'receiving':>10}")
    for name, (size, settings, batch) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            files(Path(folder), size)
            classes = tuple(f"class{k}" for k in range(20))
            data = Data(layout="folders", root=folder, classes=classes, check="off", **settings)
            alone, beside = [], []
            for _ in range(3):
                alone.append(measure(data, WorkerPool(1), batch, seconds))
                engine = Hosts({"here": 2}, InProcess)
                beside.append(
                    measure(data, helped.HelpedPool(1, "thread", engine, say=lambda text: None), batch, seconds)
                )
            local, helping = ([statistics.median(column) for column in zip(*rows)] for rows in (alone, beside))
            print(
                f"{name:20} {local[0]:8.1f}/s {helping[0]:8.1f}/s {helping[1]:12.0%} {local[2]:6.2f} ms {helping[3]:7.2f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()

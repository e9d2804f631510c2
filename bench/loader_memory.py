"""Memory of the loader over the number of samples: resident MB of the process and its workers.

python bench/loader_memory.py --draws 200000
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np

from segtrain.config import Data
from segtrain.data.datasets import open_dataset
from segtrain.data.loader import TrainLoader
from segtrain.data.workers.pool import WorkerPool

LIMIT_MB = 50


def resident_mb(pids: list[int]) -> float:
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def pictures(root: Path, count: int) -> Data:
    rng = np.random.default_rng(0)
    for part in ("images", "masks"):
        (root / part / "train").mkdir(parents=True)
    for k in range(count):
        image = cv2.resize(rng.integers(0, 256, (8, 12, 3), np.uint8), (96, 64))
        cv2.imwrite(str(root / f"images/train/{k:04}.{'jpg' if k % 2 else 'png'}"), image)
        cv2.imwrite(str(root / f"masks/train/{k:04}.png"), rng.integers(0, 4, (64, 96), np.uint8))
    return Data(layout="folders", root=str(root), classes=("a", "b", "c", "d"), crop=(48, 64))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200_000, help="samples of each kind of worker")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    good, batch = True, 16
    with tempfile.TemporaryDirectory() as folder:
        data = pictures(Path(folder), args.images)
        for kind in ("thread", "process"):
            steps, seen = args.draws // batch, []
            with (
                WorkerPool(args.workers, kind) as pool,
                TrainLoader(
                    open_dataset(data, "train"), data, seed=0, batch_size=batch, last_step=steps, pool=pool
                ) as loader,
            ):
                for step, _ in enumerate(loader):
                    if step % max(1, steps // 20) == steps // 40:
                        seen.append(resident_mb([os.getpid(), *pool.pids()]))
            # The first draws fill caches (the order of an epoch, the decoders' own tables).
            growth = max(seen[1:]) - seen[1]
            good &= growth < LIMIT_MB
            print(f"{kind:8} {args.draws} draws: {' '.join(f'{mb:.0f}' for mb in seen)} MB; growth {growth:.1f} MB")
    print("flat" if good else f"NOT flat: more than {LIMIT_MB} MB")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

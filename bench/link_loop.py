"""A rank that loads batches, with or without helpers, and prints a line of JSON for each step until it is ended.

    RAY_ADDRESS=HOST:PORT python bench/link_loop.py '{"root": ..., "crop": [224, 224], "helpers": true, ...}'

A line has the step's time, and how many samples helpers have made so far.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from segtrain.config import Data  # noqa: E402
from segtrain.data.datasets import open_dataset  # noqa: E402
from segtrain.data.helpers.cluster import engine_of  # noqa: E402
from segtrain.data.helpers.pool import HelpedPool  # noqa: E402
from segtrain.data.loader import TrainLoader, worker_kind  # noqa: E402
from segtrain.data.workers.pool import WorkerPool  # noqa: E402


def main() -> None:
    asked = json.loads(sys.argv[1])
    crop = tuple(asked["crop"])
    data = Data(
        layout="folders", root=asked["root"], crop=crop, scale=(1.0, 1.0), check="off",
        transforms=f"{HERE / 'blurs.py'}:{asked['transform']}", helpers="ray" if asked["helpers"] else "none",
    )  # fmt: skip
    engine, kind = engine_of(data, 0, 1), worker_kind(data)
    pool = WorkerPool(1, kind) if engine is None else HelpedPool(1, kind, engine, limit_s=data.helper_timeout_s)
    source = open_dataset(data, "train")
    with pool, TrainLoader(source, data, seed=1, batch_size=asked["batch"], last_step=10**6, pool=pool) as loader:
        for _ in loader:
            helped = sum(getattr(pool, "helped", {}).values())
            print(json.dumps({"ts": time.time(), "helped": helped}), flush=True)
            time.sleep(asked["device_s"])


if __name__ == "__main__":
    main()

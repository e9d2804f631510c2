"""Loads the same batches with helpers of a real Ray in several ways, and prints what happened as
JSON.

RAY_ADDRESS=127.0.0.1:PORT python tests/kit/ray_case.py
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from deadly import Sleepy

from segtrain.config import Data
from segtrain.data.datasets import open_dataset
from segtrain.data.train_loader import TrainLoader
from segtrain.platforms.ray.helpers import balance, remote_helper
from segtrain.platforms.ray.helpers.cluster import RayEngine, join_ray
from segtrain.platforms.ray.helpers.pool import HelpedPool

DATA = Data(scenes=24, scene_size=(48, 64), crop=(24, 32), helpers="ray")


def digest(pool: HelpedPool | None, **settings: Any) -> str:
    source, found = Sleepy(open_dataset(DATA, "train"), -1), hashlib.sha256()
    with TrainLoader(
        source, DATA, seed=3, batch_size=16, last_step=12, pool=pool, **settings
    ) as loader:
        for step in loader:
            for batch in step:
                for part in (batch.images, batch.masks, batch.colors, batch.covered):
                    if part is not None:
                        found.update(part.numpy().tobytes())
    return found.hexdigest()


def helpers() -> list[psutil.Process]:
    """The processes of helpers in the cluster of this test: their parents were given its
    address.
    """
    found = []
    for one in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = one.parent() if (one.info["name"] or "").startswith("ray::RayHelper") else None
            if parent is not None and os.environ["RAY_ADDRESS"] in " ".join(parent.cmdline()):
                found.append(one)
    return found


def until(pool: HelpedPool, plain: str, condition: Any, **settings: Any) -> bool:
    """Load again and again; false if a batch differs, or if ``condition`` stays false for a
    minute.
    """
    deadline, same = time.monotonic() + 60, True
    while same and not condition() and time.monotonic() < deadline:
        same = digest(pool, **settings) == plain
    return same and bool(condition())


def main() -> None:
    plain, colors, said = digest(None), digest(None, colors=True, accumulate=2), list[str]()
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    engine = RayEngine(DATA, 0, 1, join_ray("ray"))
    os.kill(os.getpid(), signal.SIGTERM)
    remote_helper.FIRST_PAUSE_S = 0.2
    balance.WORTH = 1e9  # the samples of this test are cheap to make
    deadline = time.monotonic() + 90
    # the node that helps is just starting
    while len(engine.slots()) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    found: dict[str, Any] = {"cores": len(engine.slots())}
    found["halves"] = [len(RayEngine(DATA, rank, 2, False).slots()) for rank in range(2)]
    with HelpedPool(1, "thread", engine, say=said.append) as pool:
        found["by socket"] = until(
            pool, colors, lambda: sum(pool.helped.values()) > 20, colors=True, accumulate=2
        )
        kills = int(os.environ.get("KILLS", "1"))
        ended = threading.Event()

        def hurt() -> None:
            for number in range(kills):
                while not ended.is_set() and not helpers():
                    time.sleep(0.1)
                for one in helpers()[:1]:
                    one.send_signal(signal.SIGSTOP if number % 3 == 2 else signal.SIGKILL)
                ended.wait(1.5)

        thread = threading.Thread(target=hurt)
        thread.start()
        found["killed"] = until(pool, plain, lambda: not thread.is_alive())
        ended.set()
        thread.join()
        before = sum(pool.helped.values())
        found["hired again"] = until(pool, plain, lambda: sum(pool.helped.values()) > before)
        remote_helper.accept = lambda *_: None  # type: ignore[assignment]
        for one in helpers():
            one.kill()
        before = sum(pool.helped.values())
        found["by store"] = until(
            pool,
            plain,
            lambda: (
                sum(pool.helped.values()) > before + 40
                and any("object store" in line for line in said)
            ),
        )
        found |= pool.made().to_dict()
    found["said"], found["signals"] = said, received
    deadline = time.monotonic() + 20
    while helpers() and time.monotonic() < deadline:
        time.sleep(0.1)
    found["left"] = len(helpers())
    print(json.dumps(found))


if __name__ == "__main__":
    main()

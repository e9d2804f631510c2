"""Injected bottlenecks, one cause each, in a process that then trains.

tests/project/test_diagnose_planted.py looks whether each is found first; diagnose_gain.py compares
what its cure was said to bring with what it brings. Each is many times larger than all the rest of
a step, in which a "device" takes a fixed time: the loss sleeps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEVICE_S = float(os.environ.get("PLANT_DEVICE_S", 0.03))
TIMES = float(os.environ.get("PLANT_TIMES", 1))  # how strong a plant is: a factor of all its delays
BATCH = 4


def _around(place: Any, name: str, before: Callable[..., None]) -> None:
    inner = getattr(place, name)

    def outer(*args: Any, **more: Any) -> Any:
        before(*args, **more)
        return inner(*args, **more)

    setattr(place, name, outer)


def burn(seconds: float) -> None:
    """CPU time of this thread, without Python's lock, as a decoder takes it."""
    import hashlib

    end = time.thread_time() + seconds
    while time.thread_time() < end:
        hashlib.pbkdf2_hmac("sha256", b"work", b"salt", 4000)


def fixed_time_device() -> None:
    import segtrain.training.step

    _around(segtrain.training.step, "low_res_loss", lambda *_: time.sleep(DEVICE_S))


def _reading(before: Callable[[Path], None]) -> None:
    """``before`` each image or mask is opened."""
    import segtrain.data.storage as storage

    _around(storage, "opened", lambda path, *_: before(Path(path)) if _stored(Path(path)) else None)


def _stored(path: Path) -> bool:
    return path.suffix in (".jpg", ".png")


def storage_latency() -> None:
    _reading(lambda path: time.sleep(0.05 * TIMES))


def storage_bandwidth() -> None:
    """2 MB/s (for TIMES 1), shared by all readers alike."""
    import threading

    lock, free = threading.Lock(), [0.0]  # when the bytes so far have all come

    def wait(path: Path) -> None:
        for _ in range(0, path.stat().st_size, 4096):
            with lock:
                free[0] = max(free[0], time.monotonic()) + 4096 / 2e6 * TIMES
                until = free[0]
            time.sleep(max(0.0, until - time.monotonic()))

    _reading(wait)


def decode() -> None:
    import numpy as np

    import segtrain.data.pixels.crop
    import segtrain.data.pixels.native

    _around(
        segtrain.data.pixels.native,
        "crop",
        lambda image, *_: None if isinstance(image, np.ndarray) else burn(0.05 * TIMES),
    )
    _around(
        segtrain.data.pixels.crop,
        "image_of",
        lambda record: None if isinstance(record.image, np.ndarray) else burn(0.05 * TIMES),
    )


def _in_the_loop(work: Callable[[], None]) -> None:
    import segtrain.training.loop

    _around(segtrain.training.loop, "set_lr", lambda *_: work())


def main_thread() -> None:
    _in_the_loop(lambda: burn(0.15 * TIMES))


def sync_point() -> None:
    _in_the_loop(lambda: time.sleep(0.15 * TIMES))


def synced_file() -> None:
    """A log of one's own, of which the disk must have each line before the next one is written."""
    file = os.open("lines.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    _in_the_loop(lambda: sync_lines(file, 0.15 * TIMES))


def sync_lines(file: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        os.write(file, b"a line\n")
        os.fsync(file)


def slow_rank() -> None:
    if os.environ["RANK"] == "1":
        sync_point()


def slow_host() -> None:
    import socket

    name = f"host-{os.environ['RANK']}"
    socket.gethostname = lambda: name  # type: ignore[assignment]
    slow_rank()


def logging() -> None:
    from segtrain.observe.journal import Journal

    _around(
        Journal,
        "write",
        lambda self, event, **_: time.sleep(0.15 * TIMES) if event == "step" else None,
    )


def evaluation() -> None:
    import segtrain.training.session

    _around(segtrain.training.session, "evaluate", lambda *_, **__: time.sleep(0.4 * TIMES))


def checkpoint() -> None:
    from segtrain.runfolder.writer import CheckpointWriter

    _around(CheckpointWriter, "save", lambda *_: time.sleep(0.3 * TIMES))


def small_batch() -> None:
    """A step that costs the same for one image as for many."""
    import torch

    _around(torch.optim.AdamW, "step", lambda *_: time.sleep(0.15 * TIMES))


def shm() -> None:
    """A platform without memfd_create, a container whose /dev/shm is full."""
    import segtrain.data.workers.memory as memory

    del os.memfd_create
    real = os.statvfs
    full = type("Full", (), {"f_bavail": 0, "f_frsize": 4096})
    os.statvfs = lambda path: full if path == memory.SHM else real(path)  # type: ignore[assignment]


def nothing() -> None:
    pass


@dataclass(frozen=True)
class Plant:
    """``settings`` of the run that is slow; ``cure``: settings in place of what the diagnosis says,
    ``heal``: take the cause out.
    """

    cause: str
    plant: Callable[[], None] = nothing
    settings: tuple[str, ...] = ()
    ranks: int = 1
    steps: int = 24
    device: bool = True  # of fixed time
    cure: tuple[str, ...] = ()
    heal: bool = False
    times: float = 1.0  # how strong; by PLANT_TIMES in the process that trains
    device_s: float = 0.03  # by PLANT_DEVICE_S
    rate: str = "200mbit"  # of the network

    @property
    def environment(self) -> dict[str, str]:
        return {"PLANT_TIMES": repr(self.times), "PLANT_DEVICE_S": repr(self.device_s)}


SLOW_TRANSFORM = """
import os
import time

SECONDS = 0.05 * float(os.environ.get("PLANT_TIMES", 1))


def slow(image, mask, rng):
    import hashlib

    end = time.thread_time() + SECONDS
    while time.thread_time() < end:
        hashlib.pbkdf2_hmac("sha256", b"work", b"salt", 4000)
    return image, mask
"""

THREADED_TRANSFORM = """
import cv2
import numpy as np

cv2.setNumThreads(8)  # a library's own threads, in each worker process
LARGE = np.zeros((1024, 1024, 3), np.uint8)


def threaded(image, mask, rng):
    for _ in range(4):
        cv2.GaussianBlur(LARGE, (31, 31), 9)
    return image, mask
"""

PLANTS = {
    "storage-latency": Plant(
        "storage-latency", storage_latency, ("data.workers=2",), steps=14, times=3
    ),
    "storage-bandwidth": Plant(
        "storage-bandwidth",
        storage_bandwidth,
        ("data.workers=2",),
        steps=14,
        times=4,
        cure=("data.cache=ram",),
    ),
    "decode": Plant("decode", decode, ("data.workers=2",), steps=28, cure=("data.cache=ram",)),
    "augmentation": Plant(
        "augmentation",
        settings=("data.workers=2", "data.transforms=slow.py:slow"),
        steps=28,
        cure=("data.transforms=",),
    ),
    "too-few-workers": Plant(
        "too-few-workers", decode, ("data.workers=1",), steps=20, cure=("data.workers=2",)
    ),
    "samples in the loop": Plant("main-thread", decode, ("data.workers=0",), steps=20),
    "too-many-threads": Plant(
        "too-many-threads",
        settings=("parallel.threads=8", "data.crop=[64,64]", "data.workers=1"),
        steps=16,
        device=False,
    ),
    "threads of worker processes": Plant(
        "too-many-threads",
        settings=(
            "data.workers=2",
            "data.worker_kind=process",
            "data.transforms=threaded.py:threaded",
        ),
        cure=("data.transforms=",),
    ),
    "main-thread": Plant("main-thread", main_thread, heal=True),
    "sync-point": Plant("sync-point", sync_point, heal=True),
    "a synced file": Plant("sync-point", synced_file, heal=True),
    "logging": Plant("logging", logging, ("log.every=1",)),
    "evaluation": Plant("evaluation", evaluation, ("eval.every=2st",), steps=16),
    "checkpoint": Plant("checkpoint", checkpoint, ("checkpoint.every=2st",), steps=20),
    "slow-rank": Plant("slow-rank", slow_rank, ranks=2, heal=True),
    "slow-host": Plant("slow-host", slow_host, ranks=2, heal=True),
    "small-batch": Plant(
        "small-batch", small_batch, ("train.batch_size=2",), device=False
    ),  # a device that takes longer for more
    "shm": Plant("shm", shm, ("data.workers=1", "data.worker_kind=process"), steps=2),
}
HEALTHY = {
    "one rank": Plant("healthy", settings=("data.workers=2",)),
    "two ranks": Plant("healthy", settings=("data.workers=1",), ranks=2),
    "a CPU that computes": Plant(
        "healthy",
        settings=("parallel.threads=1", "data.workers=1", "data.crop=[128,128]"),
        device=False,
    ),
    "worker processes": Plant("healthy", settings=("data.workers=2", "data.worker_kind=process")),
}
SLOW_NETWORK = Plant("slow-network", settings=("train.batch_size=4",), ranks=2, steps=12)
SHAPE = (
    "ip link set lo up mtu 1500 && tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 2s"
)


def pictures(root: Path, count: int = 16, size: tuple[int, int] = (240, 320)) -> None:
    """Images of some 100 kB with masks of some 2 kB, to train and (four) to score; a transform;
    ``classes.txt``.
    """
    import cv2
    import numpy as np

    from segtrain.data.labels.presets import SCENES
    from segtrain.data.scenes.scene import scene

    for split, images, first in (("train", count, 0), ("val", 4, 10_000)):
        for part in ("images", "masks"):
            (root / part / split).mkdir(parents=True)
        for k in range(images):
            image, mask = scene(1, first + k, size)
            noise = np.random.default_rng(first + k).integers(0, 60, image.shape, np.uint8)
            cv2.imwrite(
                str(root / f"images/{split}/{k:03}.jpg"),
                cv2.add(image, noise),
                [cv2.IMWRITE_JPEG_QUALITY, 95],
            )
            cv2.imwrite(str(root / f"masks/{split}/{k:03}.png"), mask)
    (root / "classes.txt").write_text("".join(f"{name}\n" for name in SCENES.names))
    (root / "slow.py").write_text(SLOW_TRANSFORM)
    (root / "threaded.py").write_text(THREADED_TRANSFORM)


def command(data: Path, out: Path, plant: Plant, settings: tuple[str, ...] = ()) -> list[str]:
    """Words of `segtrain train`; ``settings`` in place of the plant's own."""
    words = [
        f"out={out}",
        "data.layout=folders",
        f"data.root={data}",
        "data.crop=[32,32]",
        "data.scale=[1,1]",
        "data.check=off",
        f"train.batch_size={BATCH}",
        f"train.duration={plant.steps}st",
        "train.device=cpu",
        "parallel.procs=1",
        "parallel.threads=1",
        "eval.every=100000st",
        "checkpoint.every=100000st",
        "log.every=10",
        "log.tensorboard=false",
        "log.pictures=0",
        "checkpoint.resume=false",
        *plant.settings,
        *settings,
    ]
    # of a key that is there twice, the later one
    last = {word.partition("=")[0]: word for word in words}
    return ["train", *last.values()]


def prepare(name: str, device: bool) -> None:
    """In the process that will train: the plant of that name, and the device of fixed time."""
    if device:
        fixed_time_device()
    if name:
        PLANTS[name].plant()


# For the code of a rank: what other programs do to it is neither counted nor looked at, so that it
# says the same beside any.
ALONE = "import segtrain.base.cores\nsegtrain.base.cores.SCHEDSTAT = '/nonexistent'\n"
UNSEEN = "log.profile_ms=0"


def code(name: str, words: list[str], device: bool) -> str:
    """Python code of a rank."""
    return (
        f"import plants\nplants.prepare({name!r}, {device})\n"
        f"from segtrain.cli import main\nraise SystemExit(main({words!r}))\n"
    )

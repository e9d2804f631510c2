"""The same causes by the work that causes them: large images, a blur, threads, checksums, a busy core. No delay is made up but a device's.

``python bench/diagnose_gain.py --real`` plants them; see plants.py for those with delays.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from plants import Plant, _in_the_loop, pictures

LARGE = (2048, 4096)

TRANSFORMS = """
import cv2


def blur(image, mask, rng):
    for _ in range(200):
        image = cv2.GaussianBlur(image, (31, 31), 9)
    return image, mask

"""


def large_pictures(root: Path) -> None:
    pictures(root, size=LARGE)
    (root / "filters.py").write_text(TRANSFORMS)


def asked_program() -> None:
    """Another program is asked in each step, as one asks nvidia-smi."""
    _in_the_loop(lambda: subprocess.run([sys.executable, "-S", "-c", "pass"], check=True))  # type: ignore[arg-type, return-value]


def scores() -> None:
    """A confusion matrix for each step, in numpy."""
    import numpy as np

    truth, guess = (np.random.default_rng(k).integers(0, 19, 4_000_000) for k in range(2))
    _in_the_loop(lambda: np.bincount(19 * truth + guess, minlength=361))  # type: ignore[arg-type, return-value]


def busy_core() -> None:
    """Each rank has a core, and other programs have rank 1's too."""
    rank = int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    mine = cores[rank % len(cores)]
    if rank == 1:
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", BURN, str(mine)])
    os.sched_setaffinity(0, {mine})


BURN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(9999))"
SMALL_NET = ("data.crop=[64,64]", "data.workers=1")
LARGE_CROP = ("data.crop=[256,256]", "train.batch_size=8")
UNET = ("model.arch=unet", "model.encoder=resnet18", *SMALL_NET)

WHOLE = ("data.scale=[0.04,0.04]", "data.crop=[64,128]")  # a crop shows nearly all of an image, so all of it is decoded

REAL = {
    "large images": Plant("decode", settings=(*WHOLE, "data.workers=2", "train.batch_size=8"), device_s=0.005, cure=("data.cache=ram",)),
    "large images, one worker": Plant("too-few-workers", settings=(*WHOLE, "data.workers=1", "train.batch_size=8"), steps=40, device_s=0.06),
    "large images in the loop": Plant("main-thread", settings=(*WHOLE, "data.workers=0"), steps=40),
    "a blur": Plant(
        "augmentation",
        settings=("data.crop=[64,64]", "data.workers=2", "data.transforms=filters.py:blur", "data.worker_kind=thread"),
        cure=("data.transforms=",),
    ),
    "threads of a small net": Plant(
        "too-many-threads", settings=("parallel.threads=6", *SMALL_NET), steps=40, device=False
    ),
    "threads of a U-Net": Plant("too-many-threads", settings=("parallel.threads=12", *UNET), steps=30, device=False),
    "scores of each step": Plant("main-thread", scores, ("data.workers=1",), heal=True),
    "a program in each step": Plant("sync-point", asked_program, ("data.workers=1",), steps=60, heal=True),
    "checkpoints of a U-Net": Plant("checkpoint", settings=(*UNET, "checkpoint.every=1st"), device=False),
    "evaluations": Plant("evaluation", settings=("data.workers=1", "eval.every=20st"), steps=100),
    "a busy core": Plant("slow-rank", busy_core, (*SMALL_NET, "train.batch_size=8"), ranks=2, steps=40, device=False, heal=True),
}  # fmt: skip

"""What all rivals share: model, pictures, batch, crop, and the record of each step.

Each rival script keeps its own library's loop, optimizer, schedule, logging and input pipeline;
this file holds what a fair race must hold equal. It imports torch and SMP inside functions, so that
a rival pays for its imports itself.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

MEAN = (0.485, 0.456, 0.406)  # ImageNet, RGB, of values in 0..1
STD = (0.229, 0.224, 0.225)
IGNORE = 255
EXTENSIONS = (".jpg", ".jpeg", ".png")


def arguments() -> argparse.Namespace:
    """Settings of the race; ``world``, ``rank`` and ``local_batch`` follow from the launcher's
    environment.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="folder with images/train and masks/train")
    parser.add_argument("--model", default="unet", choices=("unet", "deeplabv3plus"))
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--classes", type=int, default=11)
    parser.add_argument(
        "--batch", type=int, default=8, help="global batch: images in one optimizer step, all ranks"
    )
    parser.add_argument("--crop", type=int, default=256)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument(
        "--workers",
        type=int,
        default=-1,
        help="loader processes; -1: what this rival's examples use",
    )
    parser.add_argument(
        "--marks", required=True, help="file that gets one JSON line at the end of each step"
    )
    args = parser.parse_args()
    args.world = int(os.environ.get("WORLD_SIZE", "1"))
    args.rank = int(os.environ.get("RANK", "0"))
    args.local_batch = args.batch // args.world
    return args


def workers(args: argparse.Namespace, usual: int) -> int:
    """``usual``: loader processes in the rival's own examples, here bounded by the cores, as torch
    advises.
    """
    return args.workers if args.workers >= 0 else min(usual, len(os.sched_getaffinity(0)))


class Marks:
    """Rank 0 appends ``{"step": k, "time": unix seconds}`` at the end of optimizer step k
    (1-based).
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.file = open(args.marks, "a", buffering=1) if args.rank == 0 else None  # noqa: SIM115
        self.step = 0

    def __call__(self) -> None:
        self.step += 1
        if self.file is not None:
            self.file.write(json.dumps({"step": self.step, "time": time.time()}) + "\n")


def pairs(root: str) -> list[tuple[str, str]]:
    """(image, mask) paths of the train split, in the order of their names."""
    images = sorted(
        p for p in (Path(root) / "images" / "train").iterdir() if p.suffix in EXTENSIONS
    )
    return [(str(p), str(Path(root) / "masks" / "train" / f"{p.stem}.png")) for p in images]


def smp_model(args: argparse.Namespace):
    """The stock SMP network, from scratch."""
    import segmentation_models_pytorch as smp

    kind = {"unet": smp.Unet, "deeplabv3plus": smp.DeepLabV3Plus}[args.model]
    return kind(args.encoder, encoder_weights=None, classes=args.classes)

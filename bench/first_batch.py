"""Time from the start of a process to its first batch, on a folder of many small files.

    python bench/first_batch.py                      # 25,000 generated pairs; a table, and bench/results/DATE-first-batch.md
    python bench/first_batch.py --images 1000 --rounds 1 --out /tmp/first-batch

Sides take turns, each in a process of its own: segtrain's loader on a folder that it has never seen, the same on one
that it has listed before, and torch's DataLoader over a Dataset as users write it (glob and sort in ``__init__``,
OpenCV or albumentations in
``__getitem__``, normalized to floats, collated). All with two workers, the same batch, crop and flip; the pages of the
files are in memory for all. The label check of `segtrain train` is not included, since the others have none. A ratio
is formed within a round.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

NEW, KNOWN, CV2, ALBUMENTATIONS = (
    "segtrain, new folder",
    "segtrain, listed before",
    "torch + OpenCV",
    "torch + albumentations",
)
IMPORTS = "import torch, cv2: nothing else"
SIDES = (NEW, KNOWN, CV2, ALBUMENTATIONS, IMPORTS)
CROP, BATCH, WORKERS = 64, 16, 2


@dataclass(frozen=True)
class Start:
    """One start of one side; ``cpu_s`` is of the whole process tree until its end, which follows the first batch."""

    side: str
    round: int
    wall_s: float
    cpu_s: float


def make(root: Path, count: int) -> None:
    """``count`` pairs of a 64x64 JPEG and a PNG mask, in one folder each."""
    import cv2
    import numpy as np

    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 256, (8, 8, 3), np.uint8) for _ in range(16)]
    images = [cv2.imencode(".jpg", cv2.resize(part, (CROP, CROP)))[1].tobytes() for part in noise]
    masks = [cv2.imencode(".png", cv2.resize(part[..., 0] // 64, (CROP, CROP)))[1].tobytes() for part in noise]
    for part, suffix, contents in (("images", "jpg", images), ("masks", "png", masks)):
        folder = root / part / "train"
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / f"{number:07d}.{suffix}").write_bytes(contents[number % len(contents)])


def ours(root: str) -> tuple[int, ...]:
    from segtrain.config import Data
    from segtrain.data.datasets import open_dataset
    from segtrain.data.loader import TrainLoader

    data = Data(
        layout="folders", root=root, classes=("a", "b", "c", "d"), crop=(CROP, CROP), scale=(1.0, 1.0), jitter=(0, 0, 0)
    )
    dataset = open_dataset(data, "train")
    with TrainLoader(dataset, data, seed=0, batch_size=BATCH, last_step=100, workers=WORKERS) as loader:
        return tuple(next(iter(loader))[0].images.shape)


def theirs(root: str, albumentations: bool) -> tuple[int, ...]:
    import glob
    import random

    import cv2
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    if albumentations:
        import albumentations as A
        from albumentations.pytorch import ToTensorV2

        transform = A.Compose([A.RandomCrop(CROP, CROP), A.HorizontalFlip(p=0.5), A.Normalize(), ToTensorV2()])

    class Pairs(Dataset):
        def __init__(self) -> None:
            self.images = sorted(glob.glob(f"{root}/images/train/*.jpg"))
            self.masks = sorted(glob.glob(f"{root}/masks/train/*.png"))
            assert len(self.images) == len(self.masks)

        def __len__(self) -> int:
            return len(self.images)

        def __getitem__(self, index: int):
            image = cv2.cvtColor(cv2.imread(self.images[index]), cv2.COLOR_BGR2RGB)
            mask = cv2.imread(self.masks[index], cv2.IMREAD_GRAYSCALE)
            if albumentations:
                both = transform(image=image, mask=mask)
                return both["image"], both["mask"].long()
            top, left = random.randint(0, image.shape[0] - CROP), random.randint(0, image.shape[1] - CROP)
            image, mask = (part[top : top + CROP, left : left + CROP] for part in (image, mask))
            if random.random() < 0.5:
                image, mask = image[:, ::-1], mask[:, ::-1]
            floats = (image.astype(np.float32) / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
            return torch.from_numpy(floats.astype(np.float32).transpose(2, 0, 1)), torch.from_numpy(mask.copy()).long()

    loader = DataLoader(Pairs(), batch_size=BATCH, shuffle=True, num_workers=WORKERS, drop_last=True)
    return tuple(next(iter(loader))[0].shape)


def child(side: str, root: str) -> None:
    if side == IMPORTS:  # what all sides pay, and none can save
        import cv2  # noqa: F401
        import torch  # noqa: F401

        print(CROP, flush=True)
        return
    shape = ours(root) if side in (NEW, KNOWN) else theirs(root, side == ALBUMENTATIONS)
    print(*shape, flush=True)


def measure(side: str, number: int, root: Path, caches: Path) -> Start:
    """Start a side, and wait for its first batch, then for its end."""
    cache = caches / ("known" if side == KNOWN else f"new-{number}")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
    environment["SEGTRAIN_CACHE"] = str(cache)
    environment["NO_ALBUMENTATIONS_UPDATE"] = "1"  # or it asks the network for a newer release
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    command = [sys.executable, __file__, "--side", side, "--data", str(root)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        wall = time.perf_counter() - begin
    if process.returncode or str(CROP) not in line:
        sys.exit(f"{side}: ended with {process.returncode} and {line!r}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Start(side, number, wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def table(starts: list[Start], sides: list[str]) -> list[str]:
    reference = {start.round: start for start in starts if start.side == KNOWN}
    lines = [
        "| side | to the first batch, s (each round) | side / segtrain, listed before | CPU-s | side / segtrain, listed before |",
        "|---|---|---|---|---|",
    ]
    for side in sides:
        mine = [start for start in starts if start.side == side]
        each = ", ".join(f"{start.wall_s:.2f}" for start in mine)
        wall = median(start.wall_s / reference[start.round].wall_s for start in mine)
        cpu = median(start.cpu_s / reference[start.round].cpu_s for start in mine)
        lines.append(
            f"| {side} | {median(start.wall_s for start in mine):.2f} ({each}) | {wall:.2f} | "
            f"{median(start.cpu_s for start in mine):.2f} | {cpu:.2f} |"
        )
    return lines


def facts(args: argparse.Namespace, load: str) -> list[str]:
    names = [s.partition(":")[2].strip() for s in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in s]
    cores = len(os.sched_getaffinity(0))
    return [
        f"# From the start of a process to its first batch, {datetime.date.today().isoformat()}",
        "",
        f"- machine: {cores} cores of {names[0] if names else platform.machine()}, Python {platform.python_version()}",
        f"- data: {args.images} pairs of a {CROP}x{CROP} JPEG and a PNG mask in two folders of a local disk, in the page cache",
        f"- setting: batch {BATCH}, {WORKERS} workers, crop {CROP}x{CROP}, flip, {args.rounds} rounds in turns, medians",
        f"- load before: {load}",
        f"- command: `{' '.join(['python', 'bench/first_batch.py', *sys.argv[1:]])}`",
        "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=25_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None, help="without ending; empty: bench/results/DATE-first-batch")
    parser.add_argument(
        "--side", default="", help=argparse.SUPPRESS
    )  # one side of the race: how this file starts itself
    parser.add_argument("--data", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        child(args.side, args.data)
        return 0
    load = "{:.2f} {:.2f} {:.2f}".format(*os.getloadavg())
    work = Path(tempfile.mkdtemp(prefix="first-batch-"))
    try:
        make(work / "data", args.images)
        time.sleep(2.5)  # a folder that was only just written is not trusted to show its next change
        sides = list(SIDES)
        try:
            import albumentations  # noqa: F401
        except ImportError:
            print(f"no {ALBUMENTATIONS}: pip install 'albumentations<=2.0.8'")
            sides.remove(ALBUMENTATIONS)
        for side in sides:  # programs and libraries come into the page cache, and KNOWN gets to know the folder
            measure(side, 0, work / "data", work / "caches")
        starts = [measure(side, r, work / "data", work / "caches") for r in range(1, args.rounds + 1) for side in sides]
    finally:
        shutil.rmtree(work)
    lines = [*facts(args, load), *table(starts, sides)]
    out = args.out or Path(__file__).parent / "results" / f"{datetime.date.today().isoformat()}-first-batch"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_name(out.name + ".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines), f"\nwritten: {out}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What all pipelines share: the work of a sample, the arguments, and the list of files. Standard
library only.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path += map(str, Path(__file__).resolve().parents[1:3])  # for rivals.race and segtrain

SCALE = (0.5, 2.0)  # of the whole image
FLIP = 0.5
# Probability; brightness, contrast, saturation +-; turns of the color circle +-.
JITTER_P, JITTER, HUE = 0.5, 0.5, 0.05
MEAN = (0.485, 0.456, 0.406)  # ImageNet, RGB, of values in 0..1
STD = (0.229, 0.224, 0.225)
FILL = (124, 116, 104)  # where the scaled image is smaller than the crop
IGNORE = 255
# batches that no side reads ahead beyond: lists of files are so much longer than what is measured
AHEAD = 100


def arguments(**flags: str) -> argparse.Namespace:
    """Settings of one start; ``flags``: further switches of a script, with their help."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="folder with images/train and masks/train")
    parser.add_argument("--kind", default="", help="name of the data set, for the output")
    parser.add_argument(
        "--workers", type=int, default=1, help="of the library's own kind: processes or threads"
    )
    parser.add_argument(
        "--samples", type=int, default=96, help="samples measured, a multiple of the batch"
    )
    parser.add_argument("--crop", type=int, nargs=2, required=True, metavar=("H", "W"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=4, help="batches before the clock starts")
    parser.add_argument(
        "--uniform", action="store_true", help="draw the scale uniformly; without: log-uniformly"
    )
    for name, text in flags.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=text)
    parser.add_argument("settings", nargs="*", help="of segtrain, such as data.cache=disk")
    args = parser.parse_intermixed_args()
    if args.samples % args.batch or args.samples < 4 * args.batch:
        parser.error(
            f"--samples {args.samples} is no multiple of --batch {args.batch}, or fewer than four batches"
        )
    return args


def pairs(args: argparse.Namespace) -> list[tuple[str, str]]:
    """(image, mask) paths in the order of names."""
    root = Path(args.data)
    images = sorted((root / "images" / "train").iterdir())
    return [(str(p), str(root / "masks" / "train" / f"{p.stem}.png")) for p in images]


def repeats(args: argparse.Namespace) -> int:
    """How often the files are listed, so that a measurement sees no end of an epoch."""
    needed = args.samples + (args.warmup + AHEAD) * args.batch
    return -(-needed // len(pairs(args)))


def beside(args: argparse.Namespace, name: str) -> Path:
    """Folder for the same data in a library's own form, written once."""
    return Path(f"{args.data}+{name}")


def many_pairs(args: argparse.Namespace) -> list[tuple[str, str]]:
    """As ``pairs``, each ``repeats`` times."""
    return pairs(args) * repeats(args)


def draw_scale(u: float, uniform: bool) -> float:
    """``u`` in [0, 1) to a scale.

    Log-uniform: the crop's rectangle in the source has 1.35 times the crop's pixels on average, the
    scaled image 1.35 times the source's. Uniform: 1.00 times and 1.75 times.
    """
    low, high = SCALE
    return low + (high - low) * u if uniform else low * (high / low) ** u

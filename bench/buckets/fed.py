"""CPU time of segtrain's samples without a device: as many as the cores can make, from a folder or a bucket.

python bench/buckets/fed.py --data FOLDER_OR_URL --layout shards --crop 224 224 --scale 0.6 1.5 --samples 1600
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "data_rivals"), str(HERE.parents[1])]

import argparse  # noqa: E402

from measure import measure  # noqa: E402

import segtrain.config  # noqa: E402
from segtrain.data.datasets import open_dataset  # noqa: E402
from segtrain.data.train_loader import TrainLoader  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--layout", required=True)
    parser.add_argument("--crop", type=int, nargs=2, required=True)
    parser.add_argument("--scale", type=float, nargs=2, required=True)
    parser.add_argument("--samples", type=int, required=True, help="a multiple of the batch")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=16, help="batches before the clock starts")
    parser.add_argument("settings", nargs="*", help="more settings of the data, such as data.cache=disk")
    args = parser.parse_intermixed_args()
    words = [
        f"data.root={args.data}",
        f"data.layout={args.layout}",
        f"data.crop={args.crop}",
        f"data.scale={args.scale}",
    ]
    data = segtrain.config.load_config(None, [*words, *args.settings]).data
    loader = TrainLoader(
        open_dataset(data, "train"), data, seed=0, batch_size=args.batch, last_step=10**6, workers=args.workers
    )
    with loader:
        measure(args, (batch for (batch,) in loader), lambda batch: (batch.images, batch.masks))


if __name__ == "__main__":
    main()

"""segtrain's own pipeline: TrainLoader over plain files, or over shards which ``segtrain data
pack`` made.

It gives uint8 and leaves the normalization to the device. With --floats its workers normalize to
float32 (n, 3, H, W), as the others do; with --two-passes the batch is normalized afterwards, by
torch.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import FLIP, HUE, JITTER, JITTER_P, SCALE, arguments, beside
from measure import measure

from segtrain.config import load_config
from segtrain.data.datasets import open_dataset
from segtrain.data.pixels import native
from segtrain.data.pixels.floats import Floats
from segtrain.data.pixels.normalize import normalize
from segtrain.data.train_loader import TrainLoader


def packed(source: Path, target: Path, image: str) -> Path:
    """The folder with the shards of ``source``, made once."""
    if not (target / "whole").exists():
        shutil.rmtree(target, ignore_errors=True)
        pack = ["data", "pack", str(source), str(target), "--split", "train", "--image", image]
        subprocess.run([sys.executable, "-m", "segtrain", *pack], check=True, stdout=sys.stderr)
        (target / "whole").touch()
    return target


def main() -> None:
    args = arguments(
        floats="the workers normalize",
        two_passes="normalize whole batches, after the workers",
        raw="shards: pixels",
        png="shards: PNG in strips",
        keep="shards: the files as they are",
    )
    image = next((name for name in ("keep", "raw", "png") if getattr(args, name)), "")
    root = packed(Path(args.data), beside(args, image), image) if image else args.data
    settings = [
        f"data.root={root}",
        f"data.layout={'shards' if image else 'folders'}",
        f"data.crop={args.crop}",
        f"data.scale={list(SCALE)}",
        f"data.flip={FLIP}",
        f"data.jitter={[JITTER] * 3}",
        f"data.hue={HUE}",
        f"data.color_jitter_prob={JITTER_P}",
    ]
    data = load_config(None, [*settings, *args.settings]).data
    loader = TrainLoader(
        open_dataset(data, "train"),
        data,
        seed=0,
        batch_size=args.batch,
        last_step=10**6,
        workers=args.workers,
        floats=Floats() if args.floats else None,
        lends=args.floats,
    )

    def batches() -> Any:
        for (batch,) in loader:
            yield (
                (normalize(batch.images), batch.masks)
                if args.two_passes
                else (batch.images, batch.masks)
            )

    with loader:
        measure(args, batches(), path=native.describe())


if __name__ == "__main__":
    main()

"""segtrain's own pipeline: TrainLoader over plain files, or over shards which ``segtrain data pack`` made.

It gives uint8 and leaves the normalization to the device. With --floats its workers normalize to float32 (n, 3, H, W), as
the others do; with --two-passes the batch is normalized afterwards, by torch.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import FLIP, HUE, JITTER, JITTER_P, SCALE, arguments, beside
from measure import measure

import segtrain.config
from segtrain.data.datasets import open_dataset
from segtrain.data.pixels import native
from segtrain.data.pixels.floats import Floats
from segtrain.data.pixels.normalize import normalize
from segtrain.data.train_loader import TrainLoader


def packed(source: Path, target: Path, image: str) -> Path:
    """The folder with the shards of ``source``, made once."""
    if not (target / "whole.json").exists():
        shutil.rmtree(target, ignore_errors=True)
        line = [
            sys.executable,
            "-m",
            "segtrain",
            "data",
            "pack",
            str(source),
            str(target),
            "--split",
            "train",
            "--image",
            image,
        ]
        subprocess.run(line, check=True, stdout=sys.stderr)
        (target / "whole.json").write_text(json.dumps(line))
    return target


def main() -> None:
    args = arguments(
        floats="the workers normalize", two_passes="normalize whole batches, after the workers", processes="workers are processes",
        raw="shards: pixels", png="shards: PNG in strips", keep="shards: the files as they are",
    )  # fmt: skip
    root = Path(args.data)
    image = next((name for name in ("keep", "raw", "png") if getattr(args, name)), "")
    settings: dict[str, Any] = {
        "root": str(packed(root, beside(args, image), image) if image else root),
        "layout": "shards" if image else "folders",
        "crop": args.crop,
        "scale": SCALE,
        "flip": FLIP,
        "jitter": [JITTER] * 3,
        "hue": HUE,
        "color_jitter_prob": JITTER_P,
    }
    missing = sorted(set(settings) - set(segtrain.config.Data.model_fields))
    data = segtrain.config.Data(**{key: value for key, value in settings.items() if key not in missing})
    kind = "process" if args.processes else "thread"
    loader = TrainLoader(
        open_dataset(data, "train"),
        data,
        seed=0,
        batch_size=args.batch,
        last_step=10**6,
        workers=args.workers,
        kind=kind,
        floats=Floats() if args.floats else None,
        lends=args.floats,
    )

    def batches() -> Any:
        for (batch,) in loader:
            yield (normalize(batch.images), batch.masks) if args.two_passes else (batch.images, batch.masks)

    with loader:
        measure(
            args, batches(), lambda batch: batch, path=native.describe(), **({"without": missing} if missing else {})
        )


if __name__ == "__main__":
    main()

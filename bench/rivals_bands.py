"""CPU time of crops of GeoTIFFs of many bands: segtrain's reading beside torchgeo's, in one interleaved run.

    python -m venv /tmp/geo && /tmp/geo/bin/pip install torchgeo
    python bench/rivals_bands.py --torchgeo /tmp/geo/bin/python

Scenes of 1024 x 1024 pixels and 12 bands of 16 bits are generated, tiled and in strips, and are read once before, so
that both sides find them in memory. A sample is a random crop of 512 x 512 pixels of an image and its mask, float32 and
integers, without any augmentation; one process, one thread. torchgeo: RasterDataset and RandomGeoSampler.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
SIDE, CROP, BANDS, STEP = 1024, 512, 12, 10.0  # pixels, and meters per pixel
KINDS: dict[str, dict[str, Any]] = {
    "tiled": {"tile": (256, 256)},
    "striped": {"rowsperstrip": 16},
    "tiled-deflate": {"tile": (256, 256), "compression": "zlib", "predictor": 2},
}


def make(folder: Path, scenes: int, options: dict[str, Any]) -> None:
    """Images and masks, side by side on the earth."""
    import tifffile

    rng = np.random.default_rng(0)
    waves = rng.normal(0, 1, (SIDE // 8, SIDE // 8, BANDS)).cumsum(0).cumsum(1)
    scene = np.kron(waves, np.ones((8, 8, 1))) * 5 + 3000
    for index in range(scenes):
        place = [
            (33550, 12, 3, (STEP, STEP, 0.0), True),
            (33922, 12, 6, (0.0, 0.0, 0.0, 4e5 + index * SIDE * STEP, 5e6, 0.0), True),
            (34735, 3, 16, (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633), True),
        ]
        image = (scene + rng.integers(0, 200, scene.shape)).clip(0, 65535).astype(np.uint16)
        mask = rng.integers(0, 5, (SIDE, SIDE)).astype(np.uint8)
        for part, values in (("images", image), ("masks", mask)):
            path = folder / part / "train" / f"{index:03}.tif"
            path.parent.mkdir(parents=True, exist_ok=True)
            form = {"photometric": "minisblack", "metadata": None, "extratags": place, **options}
            planar = {"planarconfig": "contig"} if part == "images" else {}
            tifffile.imwrite(path, values, **form, **planar)


def ours(folder: Path, samples: int) -> Iterator[Any]:
    from segtrain.config import load_config
    from segtrain.data.datasets import open_dataset
    from segtrain.data.train_loader import TrainLoader

    numbers = [[1.0] * BANDS] * 2
    settings = [f"data.root={folder}", "data.layout=folders", f"data.channels={BANDS}"]
    settings += [f"data.crop=[{CROP},{CROP}]", "data.scale=[1,1]", "data.flip=0"]
    settings += ["data.classes=[a,b,c,d,e]", f"data.mean={numbers[0]}", f"data.std={numbers[1]}"]
    data = load_config(None, settings).data
    dataset = open_dataset(data, "train")
    with TrainLoader(dataset, data, seed=0, batch_size=1, last_step=samples, workers=0) as loader:
        for (batch,) in loader:
            yield batch.images, batch.masks


def torchgeo(folder: Path, samples: int) -> Iterator[Any]:
    from torch.utils.data import DataLoader
    from torchgeo.datasets import RasterDataset, stack_samples
    from torchgeo.samplers import RandomGeoSampler

    class Images(RasterDataset):
        filename_glob = "*.tif"

    class Masks(RasterDataset):
        filename_glob = "*.tif"
        is_image = False

    both = Images(str(folder / "images/train")) & Masks(str(folder / "masks/train"))
    sampler = RandomGeoSampler(both, size=CROP, length=samples)
    loader = DataLoader(both, batch_size=1, sampler=sampler, collate_fn=stack_samples)
    for sample in loader:
        yield sample["image"], sample["mask"]


READERS: dict[str, Callable[[Path, int], Iterator[Any]]] = {"segtrain": ours, "torchgeo": torchgeo}


def measured(side: str, folder: Path, samples: int) -> dict[str, Any]:
    batches = READERS[side](folder, samples + 8)
    for _ in range(8):
        first = next(batches)
    cpu, start = time.process_time(), time.perf_counter()
    for _ in range(samples):
        next(batches)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - start
    form = [f"{part.dtype} {tuple(part.shape)}" for part in first]
    return {"per_cpu_s": samples / cpu, "per_s": samples / wall, "gives": form}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torchgeo", default=sys.executable, help="a Python that has torchgeo")
    parser.add_argument("--scenes", type=int, default=40)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=READERS, help="measure one side in --folder, and stop")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measured(args.side, args.folder, args.samples)))
        return
    pythons = {"segtrain": sys.executable, "torchgeo": args.torchgeo}
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "GDAL_NUM_THREADS": "1"}
    for kind, options in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), args.scenes, options)
            rates: dict[str, list[float]] = {side: [] for side in READERS}
            for _ in range(args.rounds):
                for side, python in pythons.items():
                    line = [python, __file__, "--side", side, "--folder", folder]
                    line += ["--samples", str(args.samples)]
                    output = subprocess.run(
                        line, env=environment, stdout=subprocess.PIPE, text=True, check=True
                    ).stdout
                    found = json.loads(output.splitlines()[-1])
                    rates[side].append(found["per_cpu_s"])
                    print(kind, side, found, flush=True)
            middle = {side: statistics.median(numbers) for side, numbers in rates.items()}
            ratio = statistics.median(a / b for a, b in zip(*rates.values()))
            print(f"{kind}: crops per CPU-second {middle}; ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()

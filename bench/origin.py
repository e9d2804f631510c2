"""The story that segtrain began with, in small: devices wait for a data loader of one's own, all cores are busy; what is the cause, what the cure?

    python bench/origin.py --out runs/origin      # two runs of half a minute; writes bench/results/DATE-origin.md

Two ranks share the cores of this machine. Each has a "device" that takes a fixed time a step (it sleeps; a very small net stands in
for the model). First the samples are made as a user's own loader often does: whole images, floats, numpy. Then with the settings
that the diagnosis names. Both run folders stay, with their pages (segtrain report).
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from plants import pictures  # noqa: E402

from segtrain.cores import cores  # noqa: E402
from segtrain.diagnose import Diagnosis, diagnose  # noqa: E402
from segtrain.diagnose.words import page  # noqa: E402
from segtrain.parallel.cluster import Cluster, free_port  # noqa: E402

RANKS, BATCH, DEVICE_S = 2, 8, 0.1
NAIVE = '''
import numpy as np


def augment(image, mask, rng):
    """Random scale, crop, flip, contrast and brightness of the whole image, in floats, as one writes it first."""
    factor = rng.uniform(0.75, 1.5)
    height, width = (int(round(side * factor)) for side in mask.shape)
    rows = np.linspace(0, mask.shape[0] - 1, height).round().astype(int)
    columns = np.linspace(0, mask.shape[1] - 1, width).round().astype(int)
    image, mask = image.astype(np.float64)[rows][:, columns], mask[rows][:, columns]
    image = (image / 255 - 0.5) * rng.uniform(0.7, 1.3) + 0.5 + rng.uniform(-0.2, 0.2)
    if rng.random() < 0.5:
        image, mask = image[:, ::-1], mask[:, ::-1]
    top, left = rng.integers(0, height - 127), rng.integers(0, width - 127)
    image = np.clip(image * 255, 0, 255).astype(np.uint8)
    return image[top : top + 128, left : left + 128].copy(), mask[top : top + 128, left : left + 128].copy()
'''
RANK = """
import plants
plants.DEVICE_S = {device}
plants.fixed_time_device()
from segtrain.cli import main
raise SystemExit(main({words!r}))
"""


def train(data: Path, out: Path, *settings: str) -> Diagnosis:
    shutil.rmtree(out, ignore_errors=True)
    words = [
        "train", f"out={out}", "data.layout=folders", f"data.root={data}", "data.crop=[128,128]", "data.scale=[0.75,1.5]",
        f"train.batch_size={BATCH}", "train.duration=50st", "train.device=cpu", "parallel.threads=1", "eval.every=50st",
        "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1]}", "log.every=10", "log.tensorboard=false",
        "log.pictures=0", "checkpoint.every=50st", *settings,
    ]  # fmt: skip
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent}", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK.format(device=DEVICE_S, words=words)], cwd=data,
            env={**environment, **Cluster(rank, RANKS, rank, RANKS, "127.0.0.1", port).environment()},
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        raise SystemExit("a rank failed: see its output above")
    return diagnose(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/origin"))
    parser.add_argument("--result", type=Path, default=None)
    args = parser.parse_args()
    out = args.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    data = out / "data"
    data.mkdir(parents=True)
    pictures(data, 12, (1024, 2048))
    (data / "naive.py").write_text(NAIVE)
    load = " ".join(f"{x:.1f}" for x in os.getloadavg())
    naive = train(data, out / "before", "data.transforms=naive.py:augment", "data.transforms_at=instead")
    cured = train(data, out / "after")
    for run in ("before", "after"):
        subprocess.run([sys.executable, "-m", "segtrain", "report", str(out / run)], check=True, cwd=HERE.parent)
    speeds = [found.facts["images_per_s"] for found in (naive, cured)]
    first = naive.verdicts[0]
    pages = "\n\n".join(page(Path(name), found) for name, found in (("before", naive), ("after", cured)))
    text = (
        f"# The origin story in small, {datetime.date.today()}\n\n"
        f"- machine: {cores()} cores, {platform.machine()}, Python {platform.python_version()}; load before {load}\n"
        f"- command: python bench/origin.py; {RANKS} ranks, {BATCH} images a step, a device of {1000 * DEVICE_S:g} ms a step\n"
        f"- before (a loader of one's own): {speeds[0]:.3g} images/s, named: {first.cause}, cure: {first.cure}, predicted {first.gain:.2f} x\n"
        f"- after (the built-in one, data.transforms empty): {speeds[1]:.3g} images/s, {speeds[1] / speeds[0]:.2f} x; bound by: {cured.bound}\n\n"
        f"```text\n{pages}\n```\n"
    )
    print(text)
    result = args.result or HERE / f"results/{datetime.date.today()}-origin.md"
    result.write_text(text)


if __name__ == "__main__":
    main()

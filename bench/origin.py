"""The user story behind segtrain, in small: a slow loader starves the devices; the diagnosis names cause and fix.

    python bench/origin.py --out runs/origin      # two runs of half a minute; writes bench/results/DATE-origin.md
    python bench/origin.py --repeat 10            # both ten times: is the prediction stable? DATE-origin-repeat.md

Two ranks share the cores of this machine. Each has a "device" that takes a fixed time per step (it sleeps; a very small
net stands in for the model). First the samples are made as a user's own loader often does: whole images, floats, numpy.
Then with the settings that the diagnosis names. Both run folders stay, with their pages (segtrain report).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import page as results  # noqa: E402
from diagnose_gain import run  # noqa: E402
from plants import Plant, pictures  # noqa: E402

from segtrain.insight.diagnose.verdict import Diagnosis  # noqa: E402
from segtrain.insight.diagnose.verify import HELD  # noqa: E402
from segtrain.insight.diagnose.words import page  # noqa: E402

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
SETTINGS = (
    "data.crop=[128,128]",
    "data.scale=[0.75,1.5]",
    f"train.batch_size={BATCH}",
    "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1]}",
)


def both(data: Path, out: Path, steps: int) -> tuple[Diagnosis, Diagnosis]:
    """Diagnoses before and after. The run after is as long in seconds as its rate allows: three
    times as many steps.
    """
    plant = Plant("naive loader", settings=SETTINGS, ranks=RANKS, steps=steps, device_s=DEVICE_S)
    naive = ("data.transforms=naive.py:augment", "data.transforms_mode=replace")
    return (
        run("", plant, data, out / "before", naive),
        run("", replace(plant, steps=3 * steps), data, out / "after"),
    )


def row(number: int, naive: Diagnosis, cured: Diagnosis) -> tuple[str, float, float]:
    """A line of the table, and the predicted and the measured gain."""
    first, rates = naive.proposed, [found.facts["images_per_s"] for found in (naive, cured)]
    predicted, measured = first.gain if first else 1.0, rates[1] / rates[0]
    crowds = [found.facts.get("cores_of_others", 0.0) for found in (naive, cured)]
    wait, sync = (naive.facts["phases"].get(phase, 0.0) for phase in ("wait", "sync"))
    line = (
        f"| {number} | {first.cause if first else naive.bound} | {wait:.0%} | {sync:.0%} | {rates[0]:.3g} | {rates[1]:.3g} | "
        f"{predicted:.2f} | {measured:.2f} | {predicted / measured - 1:+.0%} | {crowds[0]:.1f}, {crowds[1]:.1f} |"
    )
    return line, predicted, measured


HEAD = (
    "| run | named first | wait | sync | images/s before | after | predicted gain | measured | off by | cores of other programs |\n"
    + "|---" * 10
    + "|"
)


def table(rows: list[tuple[str, float, float]]) -> list[str]:
    off = [predicted / measured - 1 for _, predicted, measured in rows]
    within = sum(abs(value) <= HELD for value in off)
    spread = [
        f"{min(of):.2f} to {max(of):.2f} (median {statistics.median(of):.2f})"
        for of in zip(*(r[1:] for r in rows))
    ]
    return [
        f"- {within} of {len(rows)} predictions within {HELD:.0%}: off by {min(off):+.0%} to {max(off):+.0%}, median "
        f"{statistics.median(off):+.0%}",
        f"- predicted {spread[0]}, measured {spread[1]}",
        "",
        HEAD,
        *(line for line, *_ in rows),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/origin"))
    parser.add_argument(
        "--result", type=Path, help="without ending; default: bench/results/DATE-origin"
    )
    parser.add_argument("--repeat", type=int, default=1, help="times that both runs are made")
    parser.add_argument(
        "--steps",
        type=int,
        default=50,
        help="of the run before; the run after has three times as many",
    )
    args = parser.parse_args()
    out = args.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    data = out / "data"
    data.mkdir(parents=True)
    pictures(data, 12, (1024, 2048))
    (data / "naive.py").write_text(NAIVE)
    setting = f"{RANKS} ranks, {BATCH} images per step, a device of {1000 * DEVICE_S:g} ms per step"
    facts = results.facts(setting=setting)
    name = "origin-repeat" if args.repeat > 1 else "origin"
    rows = []
    for number in range(1, args.repeat + 1):
        naive, cured = both(data, out, args.steps)
        rows.append(row(number, naive, cured))
        print(HEAD if number == 1 else "", rows[-1][0], sep="\n" if number == 1 else "", flush=True)
    for name_of_run in ("before", "after"):
        subprocess.run(
            [sys.executable, "-m", "segtrain", "report", str(out / name_of_run)],
            check=True,
            cwd=HERE.parent,
        )
    pages = "\n\n".join(
        page(Path(name), found) for name, found in (("before", naive), ("after", cured))
    )
    lines = [*table(rows), "", "```text", pages, "```"]
    print(results.save(name, args.result, "The origin story in small", facts, lines))


if __name__ == "__main__":
    main()

"""What buys speed on a slow link, predicted and measured, and what it does to the result of a training.

    chrt -f 20 python bench/slow_links.py times      # 4 minutes; as root; hosts as in bench/plan_links.py
    python bench/slow_links.py results               # 6 minutes; trains on generated scenes
    python bench/slow_links.py page                  # writes bench/results/DATE-slow-links.md from both

The ways are in bench/links/ways.py: the size of buckets, compression, accumulation, and local SGD. Times are those of two
hosts on a device that sleeps. Results are those of two gloo ranks on this machine, which train on the same number of
images, and the ways differ in nothing else, so that accumulation has a quarter of the steps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from links.rank import shapes  # noqa: E402
from links.ways import WAYS, predicted  # noqa: E402
from plan_links import run_all  # noqa: E402

from segtrain.observe.journal import read_journal  # noqa: E402
from segtrain.parallel.cluster import free_port  # noqa: E402

GBIT, LATENCY_MS = (0.2, 0.6, 1.8), 1.0
NETWORKS = {"shufflenet": 200, "resnet18": 300}  # with 9 and 47 MB of gradients -> ms of a batch on the device
SEEDS, STEPS, BATCH = (0, 1, 2), 240, 8
SCENES = [
    "data.scenes=96", "data.cache=ram", "data.scene_size=[64,96]", "data.crop=[32,48]", "data.workers=1", "eval.every=100000st",
    "model.options={stem: 8, widths: [8, 16, 32, 32], decoder: 16, bins: [1]}", "train.device=cpu", "parallel.threads=1",
    "checkpoint.every=100000st", "log.every=1", "log.tensorboard=false", "log.pictures=0", "log.spans=false",
]  # fmt: skip


def times(folder: Path) -> list[dict[str, Any]]:
    settings = [
        {"hosts": 2, "network": network, "gbit": gbit, "latency_ms": LATENCY_MS, "device_ms": device, "way": way}
        for network, device in NETWORKS.items()
        for gbit in GBIT
        for way in WAYS
    ]
    return run_all(settings, folder)


def results(folder: Path) -> list[dict[str, Any]]:
    """Rows of way, seed, mean loss of the last quarter of the steps, and mIoU. Each rank has one process for all."""
    pieces = [
        way for way, (bucket_mb, every, kind) in WAYS.items() if (every, kind) != (1, "gradients") or bucket_mb == 25
    ]
    rows = [
        {"way": way, "seed": seed} for seed in SEEDS for way in pieces
    ]  # without other buckets of the same gradients
    jobs = [job_of(row["way"], row["seed"], folder / str(k)) for k, row in enumerate(rows)]
    asked = folder / "jobs.json"
    asked.write_text(json.dumps(jobs), encoding="utf-8")
    where = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "links/trained.py"), str(asked)],
            env={**where, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        raise SystemExit("a rank failed")
    for k, row in enumerate(rows):
        losses = [entry["loss"] for entry in read_journal(folder / str(k)) if entry["event"] == "step"]
        row["loss"] = mean(losses[-len(losses) // 4 :])
        row["miou"] = json.loads((folder / f"{k}/best.json").read_text(encoding="utf-8"))["miou"]
    return rows


def job_of(way: str, seed: int, out: Path) -> dict[str, Any]:
    """A training for links/trained.py."""
    bucket_mb, every, kind = WAYS[way]
    accumulate = every if kind == "gradients" else 1
    steps = STEPS // accumulate
    settings = [
        *SCENES, f"out={out}", f"train.seed={seed}", f"train.duration={steps}st", f"parallel.bucket_mb={bucket_mb:g}",
        f"train.batch_size={BATCH * accumulate}", f"train.accumulate={accumulate}", f"optim.warmup={steps // 10}st",
    ]  # fmt: skip
    return {"way": way, "port": free_port(), "settings": settings, "powersgd_from": STEPS // 10}


def table_of_times(runs: list[dict[str, Any]]) -> str:
    """One row for each network and way: measured and predicted ms, and the speed beside that of torch's defaults."""
    lines = ["| network | way | " + " | ".join(f"{gbit} Gbit/s: ms, predicted, speed" for gbit in GBIT) + " |"]
    lines.append("|---" * (2 + len(GBIT)) + "|")
    errors = []
    first = next(iter(WAYS))
    by = {(run["network"], run["gbit"], run["way"]): run for run in runs}
    for network in NETWORKS:
        for way in WAYS:
            cells = []
            for gbit in GBIT:
                run, plain = by[network, gbit, way], by[network, gbit, first]
                said = predicted(run, shapes(network))
                errors.append(said / run["step"] - 1)
                cells.append(f"{1e3 * run['step']:.0f}, {1e3 * said:.0f}, {plain['step'] / run['step']:.2f}x")
            lines.append(f"| {network} | {way} | " + " | ".join(cells) + " |")
    within = sum(abs(error) <= 0.15 for error in errors)
    return "\n".join(lines) + (
        f"\n\n{within} of {len(errors)} predictions within 15 %, mean absolute error {mean(map(abs, errors)):.1%}, "
        f"mean {mean(errors):+.1%}."
    )


def table_of_results(rows: list[dict[str, Any]]) -> str:
    lines = ["| way | loss, mean of the seeds (each) | mIoU, mean of the seeds (each) |", "|---" * 3 + "|"]
    for way in dict.fromkeys(row["way"] for row in rows):
        own = [row for row in rows if row["way"] == way]
        cells = [
            f"{mean(row[key] for row in own):{form}} ({', '.join(f'{row[key]:{form}}' for row in own)})"
            for key, form in (("loss", ".3f"), ("miou", ".1%"))
        ]
        lines.append(f"| {way} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def page(saved: dict[str, Path]) -> str:
    runs, rows = (json.loads(path.read_text(encoding="utf-8")) for path in saved.values())
    return f"""# What buys speed on a slow link, {datetime.date.today()}

- machine: {os.cpu_count()} cores {platform.processor() or platform.machine()}, shared with other programs; links and ranks of
  the times ran with real-time priority
- commands: `chrt -f 20 python bench/slow_links.py times`, `python bench/slow_links.py results`, `python bench/slow_links.py page`

## Time of a batch

Two hosts, {LATENCY_MS:g} ms of latency, gloo. Each cell: measured ms, predicted ms, speed beside buckets of 25 MB.

{table_of_times(runs)}

## Result of a training

Two ranks, {STEPS * BATCH} crops of generated scenes, {STEPS} steps of {BATCH} images ({STEPS // 4} steps of {4 * BATCH} with accumulation), all other
settings equal. Loss: mean of the last quarter. Seeds {", ".join(map(str, SEEDS))}.

{table_of_results(rows)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("times", "results", "page"))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="of the measured rows")
    args = parser.parse_args()
    saved = {what: args.folder / f"slow-links-{what}.json" for what in ("times", "results")}
    if args.what == "page":
        text = page(saved)
        (HERE / f"results/{datetime.date.today()}-slow-links.md").write_text(text, encoding="utf-8")
        print(text)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = (times if args.what == "times" else results)(Path(folder))
    saved[args.what].write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

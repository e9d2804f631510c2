"""Real runs on this machine beside their plans: how many speeds lie within the 80 % intervals.

    python bench/plan_runs.py                  # 8 minutes; 6 jobs, each with 6 planned runs; writes bench/results
    python bench/plan_runs.py --jobs 1 --runs 2 --seed 3
    python bench/plan_runs.py --again 8        # 10 minutes; how much the speeds of runs of the same job differ

A job is drawn: crop, images of a rank's step, network, cost of a sample. It runs once on one rank with one loader worker;
`segtrain.plan` takes its terms from this run's journal and spans. Then it is planned and run with drawn numbers of ranks and
workers. All runs have one thread per rank.

``--again`` plans nothing: it runs three jobs N times in turns, on one rank and on two. Their ratios are what the plan assumes
between two runs of a job on CPUs (``again on CPUs`` in segtrain/insight/plan/offers.py). Give another seed to what this should predict.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from itertools import permutations, product
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import page  # noqa: E402

from segtrain.base.cores import cores  # noqa: E402
from segtrain.insight.diagnose.judge import diagnose  # noqa: E402
from segtrain.insight.plan.offers import Interval, drawn, offer_of  # noqa: E402
from segtrain.insight.plan.terms import terms_of  # noqa: E402
from segtrain.machines import all_types  # noqa: E402

TYPE = "ml.c5.xlarge"  # stands for this machine; only its number of cores counts
SECONDS = 5.0  # of training in a planned run
NETWORKS = {
    "small": "{stem: 8, widths: [8, 16, 16, 32], decoder: 8, bins: [1]}",
    "medium": "{stem: 16, widths: [16, 32, 48, 64], decoder: 16, bins: [1]}",
    "large": "{stem: 16, widths: [32, 48, 64, 96], decoder: 32, bins: [1]}",
}


@dataclass(frozen=True)
class Job:
    """``images``: of a rank's step. ``heavy``: whether samples are turned, which costs CPU time."""

    crop: tuple[int, int]
    images: int
    network: str
    heavy: bool

    def settings(self) -> list[str]:
        height, width = self.crop
        heavy = ["data.rotate=20"] * self.heavy
        return [
            "data.scenes=48",
            f"data.scene_size=[{height + 32},{width + 32}]",
            f"data.crop=[{height},{width}]",
            "data.cache=ram",
            f"model.options={NETWORKS[self.network]}",
            "train.device=cpu",
            "parallel.threads=1",
            "eval.every=100000st",
            "checkpoint.every=100000st",
            "log.every=5",
            "log.tensorboard=false",
            "log.pictures=0",
            *heavy,
        ]


@dataclass(frozen=True)
class Row:
    """Images/s of the run on one rank (``source``), of the plan (10 %, 50 %, 90 %), and of the
    planned run.
    """

    job: Job
    source: float
    ranks: int
    workers: int
    plan: Interval
    actual: float

    @property
    def inside(self) -> bool:
        return self.plan[0] <= self.actual <= self.plan[2]

    @property
    def error(self) -> float:
        return self.plan[1] / self.actual - 1

    @property
    def line(self) -> str:
        job, (low, said, high) = self.job, self.plan
        cells = [
            f"{job.crop[0]}x{job.crop[1]}",
            job.images,
            job.network,
            "yes" * job.heavy,
            self.ranks,
            self.workers,
            f"{self.source:.1f}",
            f"{said:.1f} ({low:.1f} to {high:.1f})",
            f"{self.actual:.1f}",
            f"{self.error:+.1%}",
            "" if self.inside else "outside",
        ]
        return f"| {' | '.join(map(str, cells))} |"


def job_of(rng: random.Random) -> Job:
    height = rng.choice((48, 64, 96))
    return Job(
        (height, height * 3 // 2),
        rng.choice((2, 4, 8)),
        rng.choice(sorted(NETWORKS)),
        rng.random() < 0.5,
    )


def train(job: Job, ranks: int, workers: int, steps: int, out: Path) -> float:
    """Images/s of a run in its steady windows."""
    words = [
        *job.settings(),
        f"out={out}",
        f"parallel.procs={ranks}",
        f"data.workers={workers}",
        f"train.batch_size={job.images * ranks}",
        f"train.duration={steps}st",
    ]
    command = [sys.executable, "-m", "segtrain", "train", *words]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return float(diagnose(out).facts["images_per_s"])


def planned(run: Path, ranks: int, workers: int) -> Interval:
    """Images/s of ``ranks`` on this machine, from a run on one."""
    terms = replace(terms_of(run, on=TYPE), workers=workers)
    machine = replace(all_types()[TYPE], vcpus=cores())
    own = replace(machine, vcpus=cores() // ranks)
    return offer_of(terms, own, machine, 1, drawn()).rate


def rows_of(jobs: int, runs: int, seed: int, folder: Path) -> list[Row]:
    rng, rows = random.Random(seed), list[Row]()
    for k in range(jobs):
        job = job_of(rng)
        source = folder / f"{k}"
        rate = train(job, 1, 1, 40, source)
        for n in range(runs):
            ranks, workers = rng.choice((1, 2)), rng.choice((1, 2, 3))
            low, said, high = planned(source, ranks, workers)
            many = max(20, int(SECONDS * said / job.images / ranks))
            actual = train(job, ranks, workers, many, folder / f"{k}-{n}")
            rows.append(Row(job, rate, ranks, workers, (low, said, high), actual))
            print(rows[-1].line, flush=True)
    return rows


def ratios(times: int, seed: int, folder: Path) -> list[float]:
    """Speed of each run by that of each other run of the same job and number of ranks,
    ascending.
    """
    rng = random.Random(seed)
    jobs = [job_of(rng) for _ in range(3)]
    found: dict[tuple[int, int], list[float]] = {}
    for time in range(times):
        for (k, job), ranks in product(enumerate(jobs), (1, 2)):
            found.setdefault((k, ranks), []).append(
                train(job, ranks, ranks, 60, folder / f"{time}-{k}-{ranks}")
            )
            print(f"job {k}, ranks {ranks}: {found[k, ranks][-1]:.1f} images/s", flush=True)
    return sorted(one / other for rates in found.values() for one, other in permutations(rates, 2))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--runs", type=int, default=6, help="planned runs of each job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--again", type=int, default=0, metavar="N", help="run three jobs N times, and plan nothing"
    )
    parser.add_argument(
        "--out", type=Path, help="without ending; default: bench/results/DATE-plan-runs"
    )
    args = parser.parse_args()
    facts = page.facts()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SEGTRAIN_CACHE"] = f"{folder}/cache"
        if args.again:
            found = ratios(args.again, args.seed, Path(folder))
            low, high = (found[int(share * len(found))] for share in (0.05, 0.95))
            print(f"ratios of two runs: 90 % lie from {low:.2f} to {high:.2f}")
            return
        rows = rows_of(args.jobs, args.runs, args.seed, Path(folder))
    errors = [row.error for row in rows]
    inside = sum(row.inside for row in rows)
    lines = [
        f"- {inside} of {len(rows)} runs ({inside / len(rows):.0%}) are within their 80 % interval; median error "
        f"{median(errors):+.1%}, mean absolute error {sum(map(abs, errors)) / len(errors):.1%}\n",
        "| crop | images per rank | network | costly samples | ranks | workers | source, images/s | planned (80 % interval) | "
        "actual | error | |",
        "|---" * 11 + "|",
        *(row.line for row in rows),
    ]
    print(page.save("plan-runs", args.out, "Real runs beside their plans", facts, lines))


if __name__ == "__main__":
    main()

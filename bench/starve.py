"""Waiting times of devices whose ranks share the cores of a host, for segtrain and for a plain loader.

    python bench/starve.py                     # 2 and 4 ranks, some minutes; writes bench/results/DATE-starve.md and .json

A "device" takes a fixed time per step: the rank sleeps. First the CPU time of a sample is measured; ranks x batch samples
then need a step time of ranks * batch * CPU time / cores, and a device with longer steps than that should never wait.
Sides take turns; medians over rounds. ``naive`` is torch's DataLoader with 8 processes per rank, PIL, and the libraries'
own threads.
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
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIDES = {  # name: (who, workers of a rank: 0 is its share, kind)
    "segtrain, threads": ("ours", 0, "thread"),
    "segtrain, processes": ("ours", 0, "process"),
    "segtrain, 4 threads a rank": ("ours", 4, "thread"),
    "segtrain, 8 threads a rank": ("ours", 8, "thread"),
    "naive DataLoader, 8 processes a rank": ("naive", 8, "process"),
}
WARM = 3  # steps that are not timed
IMAGES, SIZE, CROP = 48, (720, 1280), (512, 512)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument(
        "--times",
        default="0.8,1.1,1.5,2",
        help="step times of the device, in units of the predicted need",
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--seconds",
        type=float,
        default=4.0,
        help="time that the timed steps of a run should take at least",
    )
    parser.add_argument("--batch", type=int, default=4, help="images of a rank's step")
    parser.add_argument(
        "--sides", default="", help="parts of names, separated by semicolons; empty: all"
    )
    parser.add_argument(
        "--out", type=Path, help="without ending; default: bench/results/DATE-starve"
    )
    # one rank's own work, as JSON
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


# What one rank does.


def our_steps(task: dict, workers: int, kind: str):
    import torch

    from segtrain.base.cores import cores
    from segtrain.config import Data
    from segtrain.data.datasets import open_dataset
    from segtrain.data.train_loader import TrainLoader
    from segtrain.data.workers.autoscaler import Autoscaler, worker_count
    from segtrain.data.workers.pool import WorkerPool

    torch.set_num_threads(1)
    data = Data(layout="folders", root=task["data"], crop=CROP, check="off")
    plan = worker_count(workers or "auto", cores(), task["ranks"])
    with (
        WorkerPool(plan.start, kind) as pool,
        TrainLoader(
            open_dataset(data, "train"),
            data,
            seed=0,
            batch_size=task["batch"] * task["ranks"],
            rank=task["rank"],
            world=task["ranks"],
            last_step=10**9,
            pool=pool,
            autoscaler=Autoscaler(plan.start, plan.most, plan.least),
        ) as loader,
    ):
        yield from loader


def naive_steps(task: dict, workers: int, kind: str):
    from torch.utils.data import DataLoader, DistributedSampler
    from torchvision_v2 import Pictures  # in data_rivals/

    root = Path(task["data"])
    files = zip(*(sorted((root / part / "train").iterdir()) for part in ("images", "masks")))
    pairs = [(str(image), str(mask)) for image, mask in files]
    # because the change of an epoch would cost this side time
    endless = pairs * (10**6 // len(pairs))
    data = Pictures(endless, list(CROP), uniform=False)
    order = DistributedSampler(data, num_replicas=64, rank=task["rank"])
    yield from DataLoader(
        data, task["batch"], sampler=order, num_workers=workers, persistent_workers=True
    )


def rank_main(task: dict) -> None:
    """Prints JSON: seconds waited and in all over the timed steps, and the CPU seconds of this
    process and its children.
    """
    who, workers, kind = SIDES[task["side"]]
    steps = (our_steps if who == "ours" else naive_steps)(task, workers, kind)
    for number in range(-WARM, task["steps"]):
        if number == 0:
            print("ready", flush=True)
            sys.stdin.readline()  # all ranks begin together
            begin, waited, longest = time.perf_counter(), 0.0, 0.0
        begin_wait = time.perf_counter()
        next(steps)
        got = time.perf_counter()
        if number >= 0:
            waited += got - begin_wait
            longest = max(longest, got - begin_wait)
        time.sleep(task["step_s"])
    print(
        json.dumps({"waited": waited, "seconds": time.perf_counter() - begin, "longest": longest}),
        flush=True,
    )
    os._exit(0)  # workers end with their rank; the naive ones are killed by the bench


def cpu_cost(task: dict) -> float:
    """CPU seconds of one sample, by one worker alone: median of some batches."""
    steps, costs = our_steps({**task, "rank": 0, "ranks": 1}, 1, "thread"), []
    next(steps)
    count = 6
    for _ in range(3):
        begin = time.process_time()
        for _ in range(count):
            next(steps)
        costs.append((time.process_time() - begin) / count / task["batch"])
    steps.close()
    return statistics.median(costs)


# What the bench does.


def race(task: dict) -> dict:
    """All ranks of one side at once; the share of time that their devices waited."""
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", json.dumps({**task, "rank": rank})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for rank in range(task["ranks"])
    ]
    try:
        for rank in ranks:
            if rank.stdout.readline().strip() != "ready":  # type: ignore[union-attr]
                raise RuntimeError(f"a rank of {task['side']} ended: see its output above")
        for rank in ranks:
            print(file=rank.stdin, flush=True)
        results = [json.loads(rank.stdout.readline()) for rank in ranks]  # type: ignore[union-attr]
    finally:
        for rank in ranks:
            try:
                os.killpg(rank.pid, 9)
            except ProcessLookupError:
                pass
            rank.communicate()
    return {
        "wait": statistics.mean(f["waited"] / f["seconds"] for f in results),
        "step_s": statistics.mean(f["seconds"] for f in results) / task["steps"],
        "longest_s": max(f["longest"] for f in results),
    }


def compete(args: argparse.Namespace, base: dict, cost: float, cores: int) -> list[dict]:
    results: list[dict] = []
    wanted = [
        side
        for side in SIDES
        if not args.sides or any(part in side for part in args.sides.split(";"))
    ]
    for number in range(1, args.rounds + 1):
        for ranks in map(int, args.ranks.split(",")):
            need = cost * args.batch * ranks / cores
            for factor in map(float, args.times.split(",")):
                for side in wanted:
                    step_s = factor * need
                    steps = max(8, round(args.seconds / max(step_s, need)))
                    task = {**base, "side": side, "ranks": ranks, "step_s": step_s, "steps": steps}
                    place = {
                        "round": number,
                        "side": side,
                        "ranks": ranks,
                        "factor": factor,
                        "need_s": need,
                    }
                    result = {**place, **race(task)}
                    results.append(result)
                    print(
                        f"{ranks} ranks  {factor:4.2f} x need ({1000 * step_s:4.0f} ms)  {side:38} waits "
                        f"{100 * result['wait']:5.1f} %  step {1000 * result['step_s']:5.0f} ms",
                        flush=True,
                    )
    return results


def tables(results: list[dict]) -> list[str]:
    lines = []
    factors = sorted({r["factor"] for r in results})
    for ranks in sorted({r["ranks"] for r in results}):
        lines += [
            f"## {ranks} ranks: share of the time that the device waits, median (step time in ms)",
            "",
            "| side | " + " | ".join(f"{factor:g} x need" for factor in factors) + " |",
            "|---|" + "---|" * len(factors),
        ]
        for side in dict.fromkeys(r["side"] for r in results):
            cells = []
            for factor in factors:
                mine = [
                    r
                    for r in results
                    if (r["side"], r["ranks"], r["factor"]) == (side, ranks, factor)
                ]
                wait, step = (
                    statistics.median(r[key] for r in mine) if mine else 0
                    for key in ("wait", "step_s")
                )
                cells.append(f"{100 * wait:.1f} % ({1000 * step:.0f})" if mine else "")
            lines.append(f"| {side} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def main() -> int:
    args = arguments()
    sys.path[:0] = [str(HERE), str(HERE / "data_rivals"), str(HERE.parent)]
    if args.rank:
        rank_main(json.loads(args.rank))
    import page
    from plants import pictures

    from segtrain.base.cores import cores

    count = cores()
    with tempfile.TemporaryDirectory() as folder:
        pictures(Path(folder), IMAGES, SIZE)
        base = {"data": folder, "batch": args.batch}
        cost = cpu_cost(base)
        print(f"{1000 * cost:.1f} CPU-ms a sample on {count} cores", flush=True)
        facts = page.facts(
            data=f"{IMAGES} JPEG images {SIZE[0]}x{SIZE[1]} with PNG masks, crop {CROP[0]}x{CROP[1]}",
            sample=f"{1000 * cost:.2f} ms of CPU time",
            need="ranks x batch x CPU time of a sample / cores: the step time for which the cores just suffice",
        )
        results = compete(args, base, cost, count)
    print(page.save("starve", args.out, "Does the device wait", facts, tables(results), results))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Cost of the spans for a step of 5 ms, and for a sample.

    python bench/spans_cost.py                          # a table, and bench/results/DATE-spans-cost.md
    python bench/spans_cost.py --pairs 300 --out /tmp/spans-cost

A step is the training step itself (segtrain.train.step.gradients, forward and backward of pico, on crops so small that
it takes some milliseconds). What counts is the time inside the spans' own calls within such steps, where a line of
Python finds its caches taken by the network; steps with a clock that does nothing take turns with them and tell what
reading the time before and after each call takes. Beside it: the same calls in steps that are empty; and pairs of real
steps in turns within one process, with spans as log.spans=true makes them and with a clock that does nothing, the first
of each pair changing, whose difference is the truth and whose noise is larger than it. A sample is one of the loader's,
of a small JPEG, with its stages counted and with the counting taken out.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

STEP_MS, BUDGET = 5.0, 1.0  # percent of such a step
PHASES = ("wait", "device", "forward", "sync", "backward", "update", "device")  # of a step, as the loop has them


class NoClock:
    """What remains of a step without spans."""

    _nothing = contextlib.nullcontext()

    def __call__(self, phase: str) -> Any:
        return self._nothing

    def turn(self, phase: str) -> None:
        pass


def spans_in(folder: Path) -> tuple[Any, Any]:
    from segtrain.observe.clock import Clock
    from segtrain.observe.spans import Begin, Spans, Work

    clock = Clock()
    begin = Begin(0, "bench", 0, 1, 1, "cpu", os.cpu_count() or 1, 8, 1, 0)
    return clock, Spans(folder / "rank-00000.jsonl", begin, clock, Work, images=8, threads=1)


def alone(folder: Path, steps: int) -> list[float]:
    """Microseconds of CPU a step of the spans' calls, its share of the written lines included, of five runs.

    The windows of a second are those of 200 steps of 5 ms: the clock is told so.
    """
    from segtrain.observe.clock import Clock
    from segtrain.observe.spans import Begin, Spans, Work

    found = []
    for _ in range(5):
        shift = [0.0]
        clock = Clock(lambda shift=shift: time.perf_counter() + shift[0])
        begin = Begin(0, "bench", 0, 1, 1, "cpu", os.cpu_count() or 1, 8, 1, 0)
        spans = Spans(folder / "alone.jsonl", begin, clock, Work, images=8, threads=1)
        since = time.process_time()
        for _ in range(steps):
            for phase in PHASES:
                with clock(phase):
                    pass
            shift[0] += STEP_MS / 1000
            spans.step()
        found.append(1e6 * (time.process_time() - since) / steps)
        spans.close()
    return found


class Watched:
    """A clock whose calls are timed: ``seconds`` inside them."""

    def __init__(self, clock: Any) -> None:
        self._clock, self.seconds = clock, 0.0

    def __call__(self, phase: str) -> Any:
        since = time.perf_counter()
        span = self._clock(phase)
        self.seconds += time.perf_counter() - since
        return WatchedSpan(self, span)

    def turn(self, phase: str) -> None:
        self._clock.turn(phase)


class WatchedSpan:
    def __init__(self, watched: Watched, span: Any) -> None:
        self._watched, self._span = watched, span

    def __enter__(self) -> None:
        since = time.perf_counter()
        self._span.__enter__()
        self._watched.seconds += time.perf_counter() - since

    def __exit__(self, *error: Any) -> None:
        since = time.perf_counter()
        self._span.__exit__(*error)
        self._watched.seconds += time.perf_counter() - since


def within_steps(folder: Path, count: int, side: int) -> tuple[float, float, float]:
    """Microseconds inside the calls of a real step: medians with spans, and with a clock that does nothing; the lines' share.

    What the second has is the reading of the time. Steps take turns.
    """
    step = training_step(side)
    clock, spans = spans_in(folder)
    sides = {Watched(clock): list[float](), Watched(NoClock()): list[float]()}
    windows = []
    for _ in range(count + 20):
        for watched, found in sides.items():
            watched.seconds = 0.0
            step(watched)
            since = time.perf_counter()
            ended = spans.step() if watched is next(iter(sides)) else False
            spent = time.perf_counter() - since
            if ended:
                windows.append(1e6 * spent / 200)  # so many steps of 5 ms share it
            else:
                found.append(1e6 * (watched.seconds + spent))
    spans.close()
    first, second = (median(found[20:]) for found in sides.values())
    return first, second, median(windows) if windows else 0.0


def training_step(side: int) -> Any:
    """A function of a clock that makes one step: the real one, without its loader."""
    import torch

    from segtrain.config import Config, Parallel
    from segtrain.losses import build_criterion
    from segtrain.models import build_model
    from segtrain.parallel.cluster import Cluster
    from segtrain.parallel.strategy import Strategy
    from segtrain.train.step import Micro, Precision, gradients

    torch.set_num_threads(1)
    config = Config()
    model = build_model(config.model, 11)
    criterion = build_criterion(config.loss, 11, 255, None)
    strategy = Strategy("single", Cluster(), torch.device("cpu"), Parallel())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    micros = [Micro(torch.randn(2, 3, side, side), torch.randint(0, 11, (2, side, side), dtype=torch.uint8))]
    votes = torch.zeros(2, dtype=torch.float64)

    def step(clock: Any) -> None:
        with clock("wait"):
            pass
        with clock("device"):
            pass
        for parameter in model.parameters():
            parameter.grad = None
        gradients(model, micros, criterion, strategy, Precision("cpu"), seed=1, votes=votes, clock=clock)
        with clock("update"):
            optimizer.step()
        with clock("device"):
            pass

    return step


def pairs(folder: Path, count: int, side: int) -> list[tuple[float, float, float, float]]:
    """(wall, CPU without spans, wall, CPU with) of each pair, in seconds."""
    step = training_step(side)
    clock, spans = spans_in(folder)
    found = []

    def timed(with_spans: bool) -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        step(clock if with_spans else NoClock())
        if with_spans:
            spans.step()
        return time.perf_counter() - wall, time.process_time() - cpu

    for _ in range(20):
        timed(True)
    for k in range(count):
        if k % 2:
            on = timed(True)
            found.append((*timed(False), *on))
        else:
            off = timed(False)
            found.append((*off, *timed(True)))
    spans.close()
    return found


def samples(count: int) -> tuple[float, float]:
    """Microseconds of CPU: of counting the stages of a sample, and of a small sample itself."""
    import cv2
    import numpy as np

    from segtrain.config import Data
    from segtrain.data import stages
    from segtrain.data.datasets import open_dataset
    from segtrain.data.sample import SampleMaker, Task

    with tempfile.TemporaryDirectory() as folder:
        draw = np.random.default_rng(0)
        for part, ending, shape in (("images", "jpg", (360, 480, 3)), ("masks", "png", (360, 480))):
            Path(folder, part, "train").mkdir(parents=True)
            small = draw.integers(0, 11, (12, 16, *shape[2:]), np.uint8)
            cv2.imwrite(f"{folder}/{part}/train/0.{ending}", cv2.resize(small, shape[1::-1], interpolation=0))
        data = Data(
            layout="folders", root=folder, classes=tuple(f"c{k}" for k in range(11)), crop=(256, 256), check="off"
        )
        sampler = SampleMaker(open_dataset(data, "train"), data, 0)
        out = np.empty((256, 256, 3), np.uint8), np.empty((256, 256), np.uint8)
        since = time.process_time()
        for k in range(count):
            sampler(Task(0, k, (256, 256), data.scale), *out)
        sample = (time.process_time() - since) / count
    tally = stages.StageTotals()
    since = time.process_time()
    for _ in range(count):
        stages.begin()
        for stage in (stages.READ, stages.READ, stages.READ, stages.DECODE, stages.AUGMENT, stages.DECODE):
            with stage:
                pass
        stages.took(1)
        stages.took(1)
        tally.add(0, 1.0, stages.end())
    return 1e6 * (time.process_time() - since) / count, 1e6 * sample


def report(args: argparse.Namespace, load: str) -> tuple[str, bool]:
    with tempfile.TemporaryDirectory(prefix="spans-cost-") as folder:
        calls = alone(Path(folder), args.steps)
        inside, empty, lines_us = within_steps(Path(folder), args.pairs, args.side)
        found = pairs(Path(folder), args.pairs, args.side)
    stage, sample = samples(args.samples)
    cpu_off, cpu_on = sum(pair[1] for pair in found), sum(pair[3] for pair in found)
    wall_off = median(pair[0] for pair in found)
    more_wall, more_cpu = median(pair[2] - pair[0] for pair in found), median(pair[3] - pair[1] for pair in found)
    cost = inside - empty + lines_us
    share = 100 * cost / (1000 * STEP_MS)
    names = [s.partition(":")[2].strip() for s in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in s]
    each = ", ".join(f"{call:.1f}" for call in calls)
    lines = [
        f"# What spans cost, {datetime.date.today().isoformat()}",
        "",
        f"- machine: {os.cpu_count()} cores of {names[0] if names else platform.machine()}, Python {platform.python_version()}, no GPU",
        f"- budget: {BUDGET:g} % of a step of {STEP_MS:g} ms, which is {10 * STEP_MS * BUDGET:.0f} us",
        f"- load: {load} before, {os.getloadavg()[0]:.2f} after",
        f"- command: `{' '.join(['python', 'bench/spans_cost.py', *sys.argv[1:]])}`",
        "- on a GPU each span also records an event; that was not measured here",
        "",
        "| what | |",
        "|---|---|",
        f"| inside the spans' calls of a real step, wall, median of {args.pairs} steps | {inside:.1f} us |",
        f"| the same with a clock that does nothing: what reading the time takes | {empty:.1f} us |",
        f"| a window's line, a share of 1/200 for each step | {lines_us:.1f} us |",
        f"| first less second and the line: what spans cost a step | **{cost:.1f} us** |",
        f"| that, of a step of {STEP_MS:g} ms | **{share:.2f} %** |",
        f"| the same calls in empty steps, CPU (five runs of {args.steps} steps) | {median(calls):.1f} us ({each}) |",
        f"| {len(found)} pairs of real steps: CPU of a step without spans | {1000 * cpu_off / len(found):.2f} ms |",
        f"| with spans | {1000 * cpu_on / len(found):.2f} ms |",
        f"| median of the pairs' differences, CPU | {1e6 * more_cpu:.0f} us |",
        f"| the same, wall, of {1000 * wall_off:.2f} ms | {1e6 * more_wall:.0f} us ({100 * more_wall / wall_off:+.2f} %) |",
        f"| counting the stages of a sample, CPU | {stage:.1f} us |",
        f"| a sample of a 480x360 JPEG, crop 256x256, CPU, counting included | {sample:.0f} us |",
    ]
    return "\n".join(lines) + "\n", share < BUDGET


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000, help="empty ones")
    parser.add_argument("--pairs", type=int, default=1500)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--side", type=int, default=16, help="pixels of the crop")
    parser.add_argument("--out", type=Path, default=None, help="without ending; empty: bench/results/DATE-spans-cost")
    args = parser.parse_args()
    text, within = report(args, f"{os.getloadavg()[0]:.2f}")
    out = args.out or Path(__file__).parent / "results" / f"{datetime.date.today().isoformat()}-spans-cost"
    out.with_name(f"{out.name}.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())

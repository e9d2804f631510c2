"""Cost of the spans for a step of 5 ms, and for a sample.

    python bench/spans_cost.py                          # a table, and bench/results/DATE-spans-cost.md
    python bench/spans_cost.py --steps 300 --out /tmp/spans-cost

A step is the training step itself (segtrain.training.step.gradients, forward and backward of pico, on crops so small that
it takes some milliseconds). What counts is the time inside the spans' own calls within such steps, where a line of
Python finds its caches taken by the network; steps with a clock that does nothing take turns with them and tell what
reading the time before and after each call takes. A sample is one of the loader's, of a small JPEG, with its stages
counted and with the counting taken out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import page  # noqa: E402

STEP_MS, BUDGET = 5.0, 1.0  # percent of such a step


class NoClock:
    """What remains of a step without spans."""

    def __call__(self, phase: str) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    def turn(self, phase: str) -> None: ...


class TimedClock:
    """A clock, and the ``seconds`` inside the calls of its spans."""

    def __init__(self, clock: Any) -> None:
        self._clock, self.seconds = clock, 0.0

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        span = self._timed(self._clock, phase)
        self._timed(span.__enter__)
        try:
            yield
        finally:
            self._timed(span.__exit__, None, None, None)

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        begin = time.perf_counter()
        result = call(*arguments)
        self.seconds += time.perf_counter() - begin
        return result

    def turn(self, phase: str) -> None:
        self._clock.turn(phase)


def within_steps(folder: Path, count: int, side: int) -> tuple[float, float, float]:
    """Microseconds inside the calls of a real step: medians with spans, and with a clock that does
    nothing; the lines' share.

    What the second has is the reading of the time. Steps take turns.
    """
    from segtrain.observe.clock import Clock
    from segtrain.observe.spans import Begin, Spans, WorkerTotals

    step = training_step(side)
    clock = Clock()
    begin = Begin(0, "bench", 0, 1, 1, "cpu", os.cpu_count() or 1, 8, 1, 0)
    spans = Spans(folder / "rank-00000.jsonl", begin, clock, WorkerTotals, images=8, threads=1)
    with_spans, without = TimedClock(clock), TimedClock(NoClock())
    times: dict[TimedClock, list[float]] = {with_spans: [], without: []}
    windows = []
    for _ in range(count + 20):
        for watched, found in times.items():
            watched.seconds = 0.0
            step(watched)
            since = time.perf_counter()
            ended = spans.step() if watched is with_spans else False
            spent = time.perf_counter() - since
            if ended:
                windows.append(1e6 * spent / 200)  # so many steps of 5 ms share it
            else:
                found.append(1e6 * (watched.seconds + spent))
    spans.close()
    line = median(windows) if windows else 0.0
    return median(times[with_spans][20:]), median(times[without][20:]), line


def training_step(side: int) -> Any:
    """A function of a clock that makes one step: the real one, without its loader."""
    import torch

    from segtrain.config import Config, Parallel
    from segtrain.losses import build_criterion
    from segtrain.models import build_model
    from segtrain.parallel.cluster import Cluster
    from segtrain.parallel.strategy import Strategy
    from segtrain.training.step import Micro, Precision, gradients

    torch.set_num_threads(1)
    config = Config()
    model = build_model(config.model, 11)
    criterion = build_criterion(config.loss, 11, 255, None)
    strategy = Strategy("single", Cluster(), torch.device("cpu"), Parallel())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    micros = [
        Micro(
            torch.randn(2, 3, side, side), torch.randint(0, 11, (2, side, side), dtype=torch.uint8)
        )
    ]
    votes = torch.zeros(2, dtype=torch.float64)

    def step(clock: Any) -> None:
        with clock("wait"):
            pass
        with clock("device"):
            pass
        for parameter in model.parameters():
            parameter.grad = None
        gradients(
            model, micros, criterion, strategy, Precision("cpu"), seed=1, votes=votes, clock=clock
        )
        with clock("update"):
            optimizer.step()
        with clock("device"):
            pass

    return step


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
            cv2.imwrite(
                f"{folder}/{part}/train/0.{ending}",
                cv2.resize(small, shape[1::-1], interpolation=0),
            )
        classes = tuple(f"c{k}" for k in range(11))
        data = Data(layout="folders", root=folder, classes=classes, crop=(256, 256), check="off")
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
        for stage in (
            stages.READ,
            stages.READ,
            stages.READ,
            stages.DECODE,
            stages.AUGMENT,
            stages.DECODE,
        ):
            with stage:
                pass
        stages.took(1)
        stages.took(1)
        tally.add(0, 1.0, stages.end())
    return 1e6 * (time.process_time() - since) / count, 1e6 * sample


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--side", type=int, default=16, help="pixels of the crop")
    parser.add_argument(
        "--out", type=Path, help="without ending; default: bench/results/DATE-spans-cost"
    )
    args = parser.parse_args()
    facts = page.facts(
        budget=f"{BUDGET:g} % of a step of {STEP_MS:g} ms, which is {10 * STEP_MS * BUDGET:.0f} us",
        device="no GPU; on one, each span also records an event",
    )
    with tempfile.TemporaryDirectory(prefix="spans-cost-") as folder:
        inside, empty, line = within_steps(Path(folder), args.steps, args.side)
    stage, sample = samples(args.samples)
    cost = inside - empty + line
    share = 100 * cost / (1000 * STEP_MS)
    lines = [
        "| what | |",
        "|---|---|",
        f"| inside the spans' calls of a real step, wall, median of {args.steps} steps | {inside:.1f} us |",
        f"| the same with a clock that does nothing: what reading the time takes | {empty:.1f} us |",
        f"| a window's line, a share of 1/200 for each step | {line:.1f} us |",
        f"| first less second and the line: what spans cost per step | **{cost:.1f} us** |",
        f"| that, of a step of {STEP_MS:g} ms | **{share:.2f} %** |",
        f"| counting the stages of a sample, CPU | {stage:.1f} us |",
        f"| a sample of a 480x360 JPEG, crop 256x256, CPU, counting included | {sample:.0f} us |",
    ]
    print(page.save("spans-cost", args.out, "What spans cost", facts, lines))
    return 0 if share < BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())

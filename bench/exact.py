"""Cost of parallel.exact: steps of one network with exact sums beside steps with synchronized batch norm, in turns.

    torchrun --nproc-per-node 2 bench/exact.py --arch unet --encoder resnet18 --size 128 128 --batch 8 --slices 4

Prints the median seconds of a step of each, and the median of the ratios of neighbors.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from segtrain.config import Loss, Model, Parallel
from segtrain.losses import build_criterion
from segtrain.models import build_model
from segtrain.observe.clock import Clock
from segtrain.parallel.cluster import discover
from segtrain.parallel.strategy import Strategy, start
from segtrain.training.step import Micro, Precision, gradients

CLASSES = 19


def steps(strategy: Strategy, settings: Parallel, args: argparse.Namespace) -> Callable[[], None]:
    """A step of one network, with an optimizer of its own."""
    strategy.settings = settings
    torch.manual_seed(0)
    network = build_model(
        Model(arch=args.arch, encoder=args.encoder, encoder_weights=None), CLASSES
    )
    if strategy.device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model: nn.Module = strategy.wrap(network.train())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    criterion = build_criterion(Loss(), CLASSES)
    images = args.batch // strategy.world_size
    shape = (images, *args.size)
    masks = torch.randint(CLASSES, shape, device=strategy.device)
    batch = Micro(torch.randn(images, 3, *args.size, device=strategy.device), masks)
    votes = torch.zeros(1, dtype=torch.float64, device=strategy.device)
    precision = Precision(strategy.device.type, args.precision)

    def step() -> None:
        strategy.settings = settings
        optimizer.zero_grad()
        gradients(
            model, [batch], criterion, strategy, precision, seed=0, votes=votes, clock=Clock()
        )
        optimizer.step()
        if strategy.device.type == "cuda":
            torch.cuda.synchronize()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="unet")
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--size", type=int, nargs=2, default=(128, 128))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--slices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--precision", default="fp32")
    args = parser.parse_args()
    settings = {"exact": Parallel(exact=args.slices), "sync_bn": Parallel(sync_bn=True, threads=1)}
    seconds: dict[str, list[float]] = {name: [] for name in settings}
    with start(settings["exact"], discover()) as strategy:
        ways = {name: steps(strategy, each, args) for name, each in settings.items()}
        for number in range(2 + args.rounds):
            for name, step in ways.items():
                begin = time.perf_counter()
                step()
                if number >= 2:
                    seconds[name].append(time.perf_counter() - begin)
        if strategy.rank == 0:
            ratios = [a / b for a, b in zip(seconds["exact"], seconds["sync_bn"])]
            for name, values in seconds.items():
                print(f"{name:<8} {statistics.median(values) * 1e3:8.1f} ms")
            print(f"ratio    {statistics.median(ratios):8.2f}")


if __name__ == "__main__":
    main()

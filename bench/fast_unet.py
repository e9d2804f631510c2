"""Speed of the exact rewrites of a training step against stock SMP, interleaved; medians of pair ratios.

    OMP_NUM_THREADS=1 python bench/fast_unet.py --arch unet --batch 4 --size 256 --pairs 5

Both sides start from the same weights and see the same batch; a step is forward, cross-entropy, backward. Process time
(CPU-seconds) is compared, so that other jobs on the machine disturb little. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

from segtrain.config import Model
from segtrain.models import build_model


def step(network: nn.Module, images: torch.Tensor, target: torch.Tensor) -> float:
    """CPU-seconds of one forward and backward pass."""
    network.zero_grad(set_to_none=True)
    start = time.process_time()
    F.cross_entropy(network(images), target).backward()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="unet")
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--classes", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--channels-last", action="store_true", help="for the fast side; stock stays as SMP makes it")
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    fast, stock = (
        build_model(Model(arch=args.arch, encoder=args.encoder, fast=fast), args.classes) for fast in (True, False)
    )
    fast.load_state_dict(stock.state_dict())
    images = torch.randn(args.batch, 3, args.size, args.size)
    own = images
    if args.channels_last:
        fast, own = fast.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    target = torch.randint(0, args.classes, (args.batch, args.size, args.size))
    step(fast, own, target), step(stock, images, target)
    pairs = [(step(fast, own, target), step(stock, images, target)) for _ in range(args.pairs)]
    ratios = sorted(theirs / ours for ours, theirs in pairs)
    result = {
        **vars(args),
        "fast_s": round(statistics.median(ours for ours, _ in pairs), 4),
        "stock_s": round(statistics.median(theirs for _, theirs in pairs), 4),
        "speedup": round(statistics.median(ratios), 3),
        "speedup_range": [round(ratios[0], 3), round(ratios[-1], 3)],
        "torch": torch.__version__,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

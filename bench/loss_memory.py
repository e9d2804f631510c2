"""Memory and time of the loss, image by image and in one tensor.

    python bench/loss_memory.py [--losses ce,ce+dice] [--cases 11x8x360x480,...]

Plain: the whole batch's logits upsampled to the labels' size, then the criterion. Ours:
``low_res_loss``. Both go from the same logits at a quarter of the size to the gradient with respect
to them, each in a process of its own. Memory is the peak of the resident set above what the process
held before, time the least processor time of some repeats, which a busy machine does not stretch
much. The stage `parts` of bench/gpu.py measures both on a GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

CASES = "11x8x360x480,19x4x512x1024,150x4x512x512"  # classes x batch x height x width


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--losses", default="ce,ohem,ce+dice")
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--side", choices=["plain", "ours"], help="measure one side here, and print it as JSON"
    )
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args.side, args.losses, args.cases, args.repeats)))
        return
    print("| loss | classes / batch / size | plain | image by image | memory | time |")
    print("|---" * 6 + "|")
    for case in args.cases.split(","):
        for loss in args.losses.split(","):
            plain, ours = (
                in_a_process(side, loss, case, args.repeats) for side in ("plain", "ours")
            )
            if abs(plain["loss"] - ours["loss"]) > 1e-3 * abs(plain["loss"]):
                raise SystemExit(f"the two ways differ: {plain['loss']} and {ours['loss']}")
            sides = " | ".join(
                f"{side['mib']:.0f} MiB, {side['ms']:.0f} ms" for side in (plain, ours)
            )
            ratios = " | ".join(f"{ours[key] / plain[key]:.2f}x" for key in ("mib", "ms"))
            print(f"| {loss} | {case} | {sides} | {ratios} |", flush=True)


def in_a_process(side: str, loss: str, case: str, repeats: int) -> dict[str, float]:
    options = ["--side", side, "--losses", loss, "--cases", case, "--repeats", str(repeats)]
    done = subprocess.run(
        [sys.executable, __file__, *options], check=True, stdout=subprocess.PIPE, text=True
    )
    return dict(json.loads(done.stdout))


def measure(side: str, loss: str, case: str, repeats: int) -> dict[str, float]:
    """Peak MiB above the start, least milliseconds, the loss."""
    import torch
    import torch.nn.functional as F

    from segtrain.config import Loss
    from segtrain.losses import build_criterion, low_res_loss, low_res_totals

    classes, batch, height, width = (int(number) for number in case.split("x"))
    criterion = build_criterion(Loss(terms=loss.split("+")), classes)
    generator = torch.Generator().manual_seed(0)
    low = torch.randn(batch, classes, height // 4, width // 4, generator=generator)
    target = torch.randint(
        0, classes, (batch, height, width), generator=generator, dtype=torch.uint8
    )
    target[:, :20] = 255
    low.requires_grad_()

    def upsample(logits: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return F.interpolate(logits, size, mode="bilinear", align_corners=True)

    def once() -> float:
        low.grad = None
        if side == "ours":
            value = low_res_loss(
                criterion, low, target, low_res_totals(criterion, low, target, upsample), upsample
            )
        else:
            full = upsample(low, (height, width))
            value = criterion.loss(full, target, criterion.totals(full, target))
        value.backward()
        return float(value.detach())

    small = slice(0, 1)
    # libraries are loaded before the start is taken
    upsample(low[small].detach()[..., :2, :2], (8, 8))
    Path("/proc/self/clear_refs").write_text("5")  # the kernel forgets the peak of the imports
    before, seconds = memory("VmRSS"), []
    for _ in range(repeats):
        start = time.process_time()
        value = once()
        seconds.append(time.process_time() - start)
    return {"mib": (memory("VmHWM") - before) / 2**10, "ms": min(seconds) * 1e3, "loss": value}


def memory(name: str) -> int:
    """The resident set of this process in kB, now (VmRSS) or at most (VmHWM)."""
    return int(re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])


if __name__ == "__main__":
    main()

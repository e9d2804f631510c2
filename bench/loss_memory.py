"""Memory and time of the loss, image by image and in one tensor.

    python bench/loss_memory.py [--losses ce,ce+dice] [--cases 11x8x360x480,...] [--device cuda] [--json FILE]

Plain: the whole batch's logits upsampled to the labels' size, then the criterion. Ours: ``low_res_loss``. Both go from
the same logits at a quarter of the size to the gradient with respect to them, each in a process of its own.
Memory is the peak above what the process held before (resident set on a CPU, allocated by torch on a GPU); time is the
least of some repeats (processor time on a CPU, which a busy machine does not stretch much; elapsed time on a GPU).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

CASES = "11x8x360x480,19x4x512x1024,150x4x512x512"  # classes x batch x height x width


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", default="ce,ohem,ce+dice")
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="of the net's output"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--side", choices=["plain", "ours"], help="measure one side here, and print it as JSON")
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args.side, args.losses, args.cases, args.device, args.dtype, args.repeats)))
        return
    rows = []
    print(
        f"{'loss':8} {'classes':>7} {'batch':>5} {'size':>9}   {'plain':>20}   {'image by image':>20}  memory  time",
        flush=True,
    )
    for case in args.cases.split(","):
        for loss in args.losses.split(","):
            plain, ours = (in_a_process(side, loss, case, args) for side in ("plain", "ours"))
            if abs(plain["loss"] - ours["loss"]) > 1e-3 * abs(plain["loss"]):
                raise SystemExit(f"the two ways differ: {plain['loss']} and {ours['loss']}")
            rows.append(
                {"loss": loss, "case": case, "device": args.device, "dtype": args.dtype, "plain": plain, "ours": ours}
            )
            print(line(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def line(row: dict) -> str:
    classes, batch, height, width = row["case"].split("x")
    plain, ours = row["plain"], row["ours"]
    shown = "   ".join(f"{side['mib']:>6.0f} MiB {side['ms']:>6.0f} ms" for side in (plain, ours))
    ratios = f"{ours['mib'] / plain['mib']:>4.2f}x  {ours['ms'] / plain['ms']:>4.2f}x"
    return f"{row['loss']:8} {classes:>7} {batch:>5} {height + 'x' + width:>9}   {shown}   {ratios}"


def in_a_process(side: str, loss: str, case: str, args: argparse.Namespace) -> dict:
    command = [sys.executable, __file__, "--side", side, "--losses", loss, "--cases", case]
    command += ["--device", args.device, "--dtype", args.dtype, "--repeats", str(args.repeats)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def measure(side: str, loss: str, case: str, device: str, dtype: str, repeats: int) -> dict:
    """Peak MiB above the start, least milliseconds, the loss."""
    import torch
    import torch.nn.functional as F

    from segtrain.config import Loss
    from segtrain.losses import build_criterion, low_res_loss, low_res_totals

    classes, batch, height, width = (int(number) for number in case.split("x"))
    criterion = build_criterion(Loss(terms=loss.split("+")), classes)
    generator = torch.Generator().manual_seed(0)
    low = torch.randn(batch, classes, height // 4, width // 4, generator=generator).to(device, getattr(torch, dtype))
    target = torch.randint(0, classes, (batch, height, width), generator=generator, dtype=torch.uint8).to(device)
    target[:, :20] = 255
    low.requires_grad_()

    def upsample(logits: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return F.interpolate(logits, size, mode="bilinear", align_corners=True)

    def once() -> float:
        low.grad = None
        if side == "ours":
            value = low_res_loss(criterion, low, target, low_res_totals(criterion, low, target, upsample), upsample)
        else:
            full = upsample(low, (height, width))
            value = criterion.loss(full, target, criterion.totals(full, target))
        value.backward()
        return float(value.detach())

    small = slice(0, 1)
    upsample(low[small].detach()[..., :2, :2], (8, 8))  # libraries are loaded before the start is taken
    before = memory(device, start=True)
    seconds, now = [], time.perf_counter if device == "cuda" else time.process_time
    for _ in range(repeats):
        start = now()
        value = once()  # float() waits for a GPU
        seconds.append(now() - start)
    return {"mib": (memory(device) - before) / 2**20, "ms": min(seconds) * 1e3, "loss": value}


def memory(device: str, start: bool = False) -> int:
    """Bytes: at the start those held now, later the peak since then."""
    if device == "cuda":
        import torch

        if start:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() if start else torch.cuda.max_memory_allocated()
    if not os.path.exists("/proc/self/status"):  # no Linux: the peak since the process began
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if start:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the kernel forgets the peak of the imports
        except OSError:
            print("the peak cannot be reset here: it may be that of the imports", file=sys.stderr)
    name = "VmRSS" if start else "VmHWM"
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


if __name__ == "__main__":
    main()

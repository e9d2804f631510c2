"""Strategies and numbers of ranks against one plain process: the weights after a few steps of SGD."""

from __future__ import annotations

from gpu_stages.rig import Rig, config
from gpu_stages.runs import apart, relative, reported, train

STEPS = 3
MOST = 1e-4  # relative difference of a tensor; fp32, other kernels, and other orders of sums


def run(rig: Rig) -> None:
    from segtrain.parallel.spawn import visible_gpus

    gpus = visible_gpus() if rig.on_gpu else 0
    backend = "nccl" if rig.on_gpu else "gloo"
    settings = [f"train.duration={STEPS}st", f"checkpoint.every={STEPS}st", f"eval.every={STEPS}st"]
    plain = config(rig, "ranks-single", *settings, "parallel.strategy=single", "train.channels_last=false")
    apart(rig, train, plain, [])
    one = f"parallel.backend={backend}"
    cases = [
        (f"ddp, 1 rank, {backend}", ["parallel.strategy=ddp", one]),
        (f"fsdp, 1 rank, {backend}", ["parallel.strategy=fsdp", one]),
        ("ddp, 2 ranks on one device, gloo, synchronized batch norm",
         ["parallel.strategy=ddp", "parallel.backend=gloo", "parallel.procs=2", "parallel.sync_bn=true"]),
    ]  # fmt: skip
    if gpus > 1:
        wide = [one, f"parallel.procs={2}", "parallel.sync_bn=true"]
        cases += [(f"{name}, 2 GPUs, nccl", [f"parallel.strategy={name}", *wide]) for name in ("ddp", "fsdp")]
    for number, (what, more) in enumerate(cases[:1] if rig.tiny else cases):
        if rig.left_s < 30:
            rig.left_out(what, "no time is left")
            continue
        with reported(rig, what):
            here = config(rig, f"ranks-{number}", *settings, "train.channels_last=false", *more)
            apart(rig, train, here, [])
            rig.below(what, relative(here.run_dir, plain.run_dir), MOST)
    if gpus < 2:
        rig.left_out("2 ranks with NCCL", f"this machine shows {gpus} GPUs, and NCCL takes one rank per GPU")

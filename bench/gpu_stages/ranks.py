"""Strategies and numbers of ranks against one plain process: the weights after a few steps of SGD.
And the sentinel.
"""

from __future__ import annotations

import socket
from typing import Any

import torch

from gpu_stages.rig import Rig, config
from gpu_stages.runs import apart, relative, reported, train
from segtrain.errors import SegtrainError
from segtrain.parallel.cluster import Cluster
from segtrain.prove.ranks import on_ranks
from segtrain.training import rank
from segtrain.training.sentinel import Sentinel

STEPS = 3
# relative difference of a tensor in fp32: deterministic kernels, but other orders of sums
MOST = 1e-4
MOST_BF16 = 5e-2  # against one process in bf16
# NCCL takes one rank per GPU
SHARED = ("parallel.backend=gloo", "parallel.procs=2", "parallel.sync_bn=true")


def run(rig: Rig) -> None:
    from segtrain.parallel.spawn import visible_gpus

    gpus = visible_gpus() if rig.on_gpu else 0
    backend = "nccl" if rig.on_gpu else "gloo"
    settings = [
        f"train.duration={STEPS}st",
        f"checkpoint.every={STEPS}st",
        f"eval.every={STEPS}st",
        "train.deterministic=true",
    ]
    alone = ("parallel.strategy=single", "train.channels_last=false")
    plain = config(rig, "ranks-single", *settings, *alone)
    half = config(rig, "ranks-single-bf16", *settings, *alone, "train.precision=bf16")
    for reference in (plain,) if rig.tiny else (plain, half):
        apart(rig, train, reference, [])
    what = "one process, again"  # the noise, below which no other row can be
    with reported(rig, what):
        again = config(rig, "ranks-again", *settings, *alone)
        apart(rig, train, again, [])
        value, where = relative(again.run_dir, plain.run_dir)
        rig.below(what, value, 0, where)
    one = f"parallel.backend={backend}"
    cases = [
        (f"ddp, 1 rank, {backend}", ["parallel.strategy=ddp", one]),
        (f"fsdp, 1 rank, {backend}", ["parallel.strategy=fsdp", one]),
        (
            "ddp, 2 ranks on one device, gloo, synchronized batch norm",
            ["parallel.strategy=ddp", *SHARED],
        ),
        (f"fsdp, 1 rank, {backend}, bf16", ["parallel.strategy=fsdp", one, "train.precision=bf16"]),
    ]
    if gpus > 1:
        wide = [one, "parallel.procs=2", "parallel.sync_bn=true"]
        cases += [
            (f"{name}, 2 GPUs, nccl", [f"parallel.strategy={name}", *wide])
            for name in ("ddp", "fsdp")
        ]
    for number, (what, more) in enumerate(cases[:1] if rig.tiny else cases):
        with reported(rig, what):
            rig.require(30)
            here = config(rig, f"ranks-{number}", *settings, "train.channels_last=false", *more)
            apart(rig, train, here, [])
            reference, most = (half, MOST_BF16) if "bf16" in what else (plain, MOST)
            value, where = relative(here.run_dir, reference.run_dir)
            rig.below(what, value, most, where)
    what = "the sentinel names the rank of a changed weight: ddp, 2 ranks on one device, gloo"
    with reported(rig, what):
        said = _planted(
            rig, config(rig, "ranks-sentinel", *settings, "log.sentinel=1", *SHARED[:1])
        )
        said = said.replace(f" (host {socket.gethostname()})", "")
        rig.note(what, said[:140] or "nothing was found", "rank 1" in said)
    if not rig.tiny:
        what = "fsdp, 2 ranks on one device, gloo, synchronized batch norm"
        here = config(
            rig,
            "ranks-fsdp",
            *settings,
            "train.channels_last=false",
            "parallel.strategy=fsdp",
            *SHARED,
        )
        with reported(rig, what):
            refused = apart(rig, _try, here)
            # of the collectives that fsdp needs, gloo has not all for GPUs in every torch
            if refused:
                rig.note(what, f"this torch cannot: {refused}")
            else:
                value, where = relative(here.run_dir, plain.run_dir)
                rig.below(what, value, MOST, where)
    if gpus < 2:
        rig.left_out(
            "2 ranks with NCCL", f"this machine shows {gpus} GPUs, and NCCL takes one rank per GPU"
        )


def _planted(rig: Rig, here: Any) -> str:
    """The error of a run in which a weight changes on rank 1 behind the first step."""
    return str(on_ranks(rig.folder, 2, _with_fault, here)[0])


def _with_fault(cluster: Cluster, here: Any) -> str:
    look = Sentinel.step

    def step(self: Any, number: int, *more: Any) -> None:
        if number == 2 and cluster.rank == 1:
            with torch.no_grad():
                weight = next(self._learner.plain.parameters())
                weight[(0,) * weight.dim()] += 0.25
        look(self, number, *more)

    Sentinel.step = step  # type: ignore[method-assign]
    try:
        rank.train(here, cluster)
    except SegtrainError as error:
        return " ".join(str(error).split())
    return ""


def _try(here: Any) -> str:
    """Train, and return the error; "" if there is none."""
    try:
        train(here, [])
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ""

"""Equal runs, one stopped and resumed, and one of CUDA graphs must end with the same bits
(train.deterministic=true).
"""

from __future__ import annotations

from typing import Any

import torch

from gpu_stages.rig import Rig, config
from gpu_stages.runs import StopAt, apart, reported, train, unequal


def run(rig: Rig) -> None:
    import torch._dynamo  # noqa: F401  # of optimizers: a second of each of the many runs, which are forks

    precisions = apart(rig, _precisions, rig)
    cases = [(name, precision) for precision in precisions for name in ("adamw", "sgd", "muon")]
    for optimizer, precision in cases[:1] if rig.tiny else cases:
        what = f"{optimizer}, {precision}"
        with reported(rig, what):
            rig.require(30)
            _case(rig, what, optimizer, precision)


def _precisions(rig: Rig) -> list[str]:
    """In a process of its own, because it touches CUDA."""
    from segtrain.base.precision import fitting

    fits = fitting(torch.device(rig.device))
    return [name for name in ("fp32", "bf16", "fp16") if name in fits]


def _case(rig: Rig, what: str, optimizer: str, precision: str) -> None:
    steps, stop = (3, 1) if rig.tiny else (8, 3)
    settings = [
        f"optim.name={optimizer}",
        "optim.lr=0.001",
        "optim.ema=0.9",
        f"train.precision={precision}",
        f"train.duration={steps}st",
        "train.deterministic=true",
        f"eval.every={steps}st",
        f"checkpoint.every={steps}st",
    ]
    runs: dict[str, Any] = {}
    compared = {"again": "a second run", "stopped": "a run stopped and resumed"}
    if rig.on_gpu and optimizer == "adamw":
        compared["graphs"] = "a run of CUDA graphs"
    for kind, name in {"whole": "the run itself", **compared}.items():
        with reported(rig, f"{what}: {name}"):
            more = ["train.cuda_graph=true"] * (kind == "graphs")
            runs[kind] = config(rig, f"resume-{optimizer}-{precision}-{kind}", *settings, *more)
            apart(rig, train, runs[kind], [StopAt(stop)] if kind == "stopped" else [])
            if kind == "stopped":
                apart(rig, train, runs[kind], [])  # resumes
            if kind != "whole":
                found = unequal(runs["whole"].run_dir, runs[kind].run_dir)
                rig.note(f"{what}: {name}", found or "the same bits", not found, "to the bit")

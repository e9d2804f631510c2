"""Small runs on generated scenes: their command, what they trained on, and their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from segtrain.observe.journal import read_journal
from segtrain.runfolder import checkpoint

TINY = [  # a data set and a network that train in milliseconds
    "data.scenes=13",
    "data.scene_size=[40,48]",
    "data.crop=[32,32]",
    "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1]}",
    "log.tensorboard=false",
    "log.pictures=0",
]
QUIET = [  # nothing beside the steps
    *TINY,
    "data.workers=0",
    "data.check=off",
    "parallel.threads=1",
    "train.duration=8st",
    "eval.every=8st",
    "checkpoint.every=8st",
    "log.every=8",
    "log.profile_ms=0",
    "out=run",
]
SMALL = [
    *TINY,
    "data.workers=1",
    "data.prefetch=2",
    "train.batch_size=4",
    "train.duration=12st",
    "eval.every=12st",
    "checkpoint.every=3st",
    "checkpoint.keep=3",
    "optim.ema=0.9",
    "log.every=1",
    "log.digest=true",
    "parallel.procs=1",
]
# A net with skip connections and auxiliary branches: gradients do not come in the order of the
# parameters.
NET = [
    "train.batch_size=6",
    "parallel.bucket_mb=1",
    "model.options={stem: 8, widths: [8, 16, 32, 64], decoder: 16}",
]


def command(out: Path, *more: str) -> list[str]:
    return ["train", *SMALL, f"out={out}", *more]


def digests(out: Path) -> dict[int, int]:
    """Checksum of what each step consumed; the last word of a resumed run counts."""
    return {
        e["step"]: e["digest"]
        for e in read_journal(out, say=lambda _: None)
        if e["event"] == "step"
    }


def final(out: Path) -> dict[str, Any]:
    state = checkpoint.newest(out).state
    assert state is not None
    return state


def assert_same_weights(a: dict[str, Any], b: dict[str, Any]) -> None:
    for key in ("model", "ema"):
        assert a[key].keys() == b[key].keys()
        for name in a[key]:
            assert torch.equal(a[key][name], b[key][name]), f"{key} {name}"

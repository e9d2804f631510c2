"""A training run on a device of a fixed step time: the model sleeps, and all the rest is segtrain's
own.

    python bench/buckets/trained.py '{"root": ..., "strategy": "ddp", "ranks": 2, ...}'

The run folder's journal has the time of each step. The process that starts this ends it after the
last step that counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def main(text: str) -> None:
    request = json.loads(text)
    if request["ranks"] > 1 and "RANK" not in os.environ:
        sys.exit(_ranks(text, request["ranks"]))
    _train(request)


def _ranks(text: str, count: int) -> int:
    from segtrain.parallel.cluster import Cluster, free_port

    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, text],
            env={
                **os.environ,
                **Cluster(rank, count, rank, count, "127.0.0.1", port).environment(),
            },
        )
        for rank in range(count)
    ]
    return max(rank.wait() for rank in ranks)


def _train(request: dict[str, Any]) -> None:
    import torch
    from torch import Tensor, nn

    import segtrain
    from segtrain.models.base import as_seg_model
    from segtrain.training import learner

    class Sleeper(nn.Module):
        """Logits (N, 2, H, W) of a device that takes ``device_s`` seconds per step, and next to
        nothing of the cores.

        Like a GPU, it works on a step while the host prepares the next one: the host waits for the
        step before.
        """

        def __init__(self) -> None:
            super().__init__()
            self.logits, self.free_at = nn.Parameter(torch.zeros(2, 1, 1)), 0.0

        def forward(self, images: Tensor) -> Tensor:
            time.sleep(max(0.0, self.free_at - time.perf_counter()))
            self.free_at = time.perf_counter() + request["device_s"]
            return self.logits.expand(len(images), -1, *images.shape[2:])

    def first(logits: Tensor, target: Tensor) -> Tensor:
        return logits[..., 0, 0].mean()

    settings = [
        f"out={request['out']}",
        f"data.layout={request['layout']}",
        f"data.root={request['root']}",
        "data.check=off",
        f"data.crop={list(request['crop'])}",
        f"data.scale={list(request['scale'])}",
        f"data.workers={request['workers']}",
        f"train.batch_size={request['batch'] * request['ranks']}",
        f"train.device={request['device']}",
        "train.duration=100000st",
        "parallel.threads=1",
        f"parallel.strategy={request['strategy']}",
        "eval.every=100000st",
        "checkpoint.every=100000st",
        "log.every=1",
        "log.tensorboard=false",
        "log.pictures=0",
        *request["settings"],
    ]
    # A model that is passed to segtrain.train cannot be sharded by fsdp.
    learner.build_model = lambda _, classes: as_seg_model(Sleeper(), classes).train()  # type: ignore[attr-defined,assignment]
    segtrain.train(segtrain.Config.load(None, *settings), criterion=first)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1]))
    main(sys.argv[1])

"""A rank of trainings with the ways of ways.py: segtrain's own training, with another hook for its gradients.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 python bench/links/trained.py JOBS.json

A job is {"way", "port", "settings", "powersgd_from"}; the last is the first step that PowerSGD compresses.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

import torch.distributed as dist  # noqa: E402
from links.ways import WAYS, compress, local_steps  # noqa: E402
from torch import nn  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402

from segtrain.cli import main  # noqa: E402
from segtrain.parallel import strategy  # noqa: E402


def train(job: dict[str, Any]) -> int:
    _, every, kind = WAYS[job["way"]]
    plain, handles = strategy.wrap, list[Any]()
    os.environ["MASTER_PORT"] = str(job["port"])

    def wrap(model: nn.Module, *args: Any) -> nn.Module:
        wrapped = plain(model, *args)
        if kind == "weights":
            groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
            average = local_steps(wrapped, groups[dist.get_rank()], every)
            handles.append(register_optimizer_step_post_hook(average))
        else:
            compress(wrapped, kind, begin=job["powersgd_from"])  # type: ignore[arg-type]
        return wrapped

    strategy.wrap = wrap
    try:
        return main(["train", *job["settings"]])
    finally:
        strategy.wrap = plain
        for handle in handles:
            handle.remove()


if __name__ == "__main__":
    for one in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        if train(one):
            sys.exit(1)

"""Uses every part of the core: imports all modules, trains, evaluates, and reads the run. Prints
results as JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import pkgutil
import sys
from typing import Any

import segtrain
from segtrain import cli
from segtrain.errors import SegtrainError

TINY = (
    "data.scenes=8 data.scene_size=[48,64] data.crop=[32,48] train.batch_size=4 train.duration=4st "
    "parallel.procs=1 data.workers=0 log.tensorboard=false"
)


def imported() -> list[str]:
    """The modules that cannot be imported."""
    broken = []
    for module in pkgutil.walk_packages(segtrain.__path__, "segtrain."):
        if module.name not in ("segtrain.__main__", "segtrain.data.pixels.native.libsegtrain_data"):
            try:
                importlib.import_module(module.name)
            except (ImportError, SegtrainError):
                broken.append(module.name)
    return broken


def main(folder: str) -> None:
    run = f"{folder}/run"
    commands = {
        "train": ["train", *TINY.split(), f"out={run}"],
        "eval": ["eval", run],
        "diagnose": ["diagnose", run],
        "report": ["report", run],
        "runs": ["runs", folder],
        "vertex": ["train", *TINY.split(), f"out={folder}/vertex", "log.vertex=streets"],
        "helpers": [
            "train",
            *TINY.split(),
            f"out={folder}/helpers",
            "data.workers=1",
            "data.helpers=ray",
        ],
        "launch": ["launch", "sagemaker"],
    }
    results: dict[str, Any] = {"broken": imported()}
    for name, words in commands.items():
        with contextlib.redirect_stdout(io.StringIO()) as output:
            results[name] = cli.main(words)
        results[f"{name} output"] = output.getvalue()
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])

"""FSDP in new processes, in which nothing has imported torch's compiler yet; other tests fork a
process that has.
"""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("ranks", [1, 2])
def test_fsdp_starts_in_a_new_process(tmp_path, ranks):
    settings = [
        "data.scenes=4",
        "data.scene_size=[32,32]",
        "data.crop=[32,32]",
        "train.batch_size=4",
        "train.duration=2st",
        "optim.name=adamw",
        f"parallel.procs={ranks}",
        "parallel.backend=gloo",
        "parallel.strategy=fsdp",
        "train.device=cpu",
        "log.tensorboard=false",
        "log.profile_ms=0",
        f"out={tmp_path / 'run'}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "segtrain", "train", *settings], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

"""A run that compiles nothing does without torch's compiler, and code that wants the compiler still gets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

CODE = """
import sys
import torch
from segtrain.cli import main
from segtrain.compat import skip_dynamo_import

code = main(["train", "data.scenes=4", "data.scene_size=[32,32]", "data.crop=[32,32]", "train.batch_size=2",
    "train.duration=2st", "optim.name=adamw", "parallel.procs=1", "parallel.strategy=ddp", "train.device=cpu",
    "log.tensorboard=false", "log.profile_ms=0", "out=" + sys.argv[1]])
assert code == 0
assert "torch._dynamo" not in sys.modules
assert "_dynamo" not in torch.__dict__
with skip_dynamo_import():
    import torch._dynamo
    assert torch._dynamo.is_compiling is not None          # more than the stand-in knows: the real one comes
assert "torch._dynamo.eval_frame" in sys.modules
assert callable(torch.compile(lambda x: x + 1, backend="eager"))
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
"""


def test_the_compiler_is_not_imported_until_it_is_wanted(tmp_path: Path) -> None:
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4):
        pytest.skip("this torch imports its compiler elsewhere as well")
    done = subprocess.run([sys.executable, "-c", CODE, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "2.0"

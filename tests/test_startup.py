"""Tests that a run that compiles nothing does not import torch's compiler, and that others still can."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

CODE = """
import sys
import torch
from torch import nn
from segtrain.config import AdamWOptim
from segtrain.optim import build_optimizer
from segtrain.parallel.startup import compiler_kept_out

model = nn.Linear(3, 2)
for step in range(2):
    with compiler_kept_out():
        optimizer = build_optimizer(model, [], AdamWOptim())
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert "torch._dynamo" not in sys.modules, step
    assert "_dynamo" not in torch.__dict__, step
with compiler_kept_out():
    import torch._dynamo
    assert torch._dynamo.is_compiling is not None          # more than the stand-in knows: the real one comes
assert "torch._dynamo.eval_frame" in sys.modules
assert callable(torch.compile(lambda x: x + 1, backend="eager"))
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
"""


def test_the_compiler_is_not_imported_until_it_is_wanted() -> None:
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4):
        pytest.skip("this torch imports its compiler elsewhere as well")
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "2.0"

"""The four accounts: what the planner predicts of them keeps its bounds, and what is not determined
stays a range.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from segtrain.insight.plan import model


def of_bench(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / f"bench/{name}.py"
    spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their annotations up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def accounts() -> ModuleType:
    return of_bench("accounts")


def test_predictions_keep_their_bounds(accounts):
    rows = accounts.rows()
    kinds = [row.kind for row in rows]
    assert (kinds.count("predicted"), kinds.count("arithmetic"), kinds.count("not determined")) == (
        5,
        3,
        5,
    )
    for row in rows:
        assert row.passed, row
        if row.kind == "not determined":
            assert row.found[2] > 1.2 * row.found[0], row  # a range, not a hit


def test_the_mount_is_solved_from_two_figures(accounts):
    latency, most = accounts.mount_of((2, 60.0), (8, 110.0))
    assert model.reads(2, latency, most) == pytest.approx(60.0, rel=1e-3)
    assert model.reads(8, latency, most) == pytest.approx(110.0, rel=1e-3)

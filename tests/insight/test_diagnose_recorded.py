"""Recordings of real runs with a planted cause, which the diagnosis names first; for healthy ones
it names none.
"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "bench"))

from plants import HEALTHY, PLANTS

from segtrain.insight.diagnose.judge import diagnose
from segtrain.insight.diagnose.words import page

RECORDED = ROOT / "tests" / "recorded"


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(RECORDED / f"{name.replace(' ', '-')}.tar.gz") as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize("name", PLANTS)
def test_the_planted_cause_comes_first(name, tmp_path):
    found = diagnose(unpacked(name, tmp_path))
    assert [verdict.cause for verdict in found.verdicts][:1] == [PLANTS[name].cause], page(
        tmp_path, found
    )


def test_a_slow_bucket_is_named(tmp_path):
    """Each of its requests takes 2 s, whatever its size. Other programs used the cores while it was
    recorded.
    """
    found = diagnose(unpacked("a slow bucket", tmp_path))
    first = next(verdict for verdict in found.verdicts if verdict.cause != "other-programs")
    assert (first.cause, first.confidence) == ("storage-latency", "high"), page(tmp_path, found)
    assert "data pack" in first.fix.text


@pytest.mark.parametrize("name", HEALTHY)
def test_none_is_named_for_a_healthy_run(name, tmp_path):
    found = diagnose(unpacked(name, tmp_path))
    assert (found.bound, found.verdicts) == ("healthy", ()), page(tmp_path, found)

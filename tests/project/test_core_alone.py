"""Tests that the core works without segtrain/platforms/ and launch/. `make test-core` runs all
tests of the core so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import core_life
from core_alone import copy_package


def test_the_core_alone_trains_and_reads_its_runs(tmp_path):
    package = copy_package(tmp_path / "installed")
    assert not (package / "platforms").exists()
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    command = [sys.executable, core_life.__file__, str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["broken"] == ["segtrain.launch"]
    codes = {name: results[name] for name in ("train", "eval", "diagnose", "report", "runs")}
    assert codes == dict.fromkeys(codes, 0), done.stderr
    assert "done" in results["runs output"]
    assert (tmp_path / "run/report.html").is_file()
    assert [results[name] for name in ("vertex", "helpers", "launch")] == [2, 2, 2]
    assert done.stderr.count("segtrain.platforms") == 2

"""Run folders that an earlier build of this version wrote: they resume to the bit, and commands
read them.

``recorded/old-runs.tar.gz`` holds, all with relative paths:

- ``data``: 17 small images with their masks, one of them torn, which the runs left out
  (data.faults=skip)
- ``runs/whole``: run.yaml to its end; AdamW, a moving average, two loss terms, automatic class
  weights
- ``runs/interrupted``: the same settings, killed at step 18; its newest checkpoint is that of step
  16
- ``masks.json``: SHA-256 of the masks that `segtrain predict runs/whole` wrote
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, refused
from PIL import Image

from segtrain.cli import main
from segtrain.config import load_config, load_saved
from segtrain.insight.runs.folder import load, read_folder
from segtrain.runfolder import checkpoint
from segtrain.runfolder.rundir import refuse_run_dir

# Relative, of the last losses. Other CPUs and older torch have other kernels; rounding grows with
# steps.
ROUNDING = 5e-3


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(ROOT / "tests/recorded/old-runs.tar.gz") as archive:
        archive.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def steps(run: str) -> dict[int, dict[str, Any]]:
    """The step events after step 16, the last one where a step was done again."""
    events = map(json.loads, Path("runs", run, "journal.jsonl").read_text().splitlines())
    return {
        event["step"]: event for event in events if event["event"] == "step" and event["step"] > 17
    }


def test_an_interrupted_run_goes_on_as_the_one_that_was_not(old, zygote):
    process = zygote.start("train", "run.yaml", "out=runs/interrupted", cwd=old)
    assert process.wait() == 0, process.output
    assert "going on from step 16 of 24" in process.output
    assert "warning: the checkpoint" not in process.output
    whole, resumed = steps("whole"), steps("interrupted")
    assert [event["digest"] for event in resumed.values()] == [
        event["digest"] for event in whole.values()
    ]
    losses = [[event["loss"] for event in events.values()] for events in (resumed, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=ROUNDING)


def test_scores_and_masks_are_those_that_were_recorded(old, capsys):
    assert main(["eval", "runs/whole", "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["miou"]
        == json.loads(Path("runs/whole/best.json").read_text())["miou"]
    )
    assert main(["predict", "runs/whole", "data/images/val", "--out", "predictions"]) == 0
    found = {
        file.name: hashlib.sha256(np.array(Image.open(file)).tobytes()).hexdigest()
        for file in Path("predictions/masks").iterdir()
    }
    assert found == json.loads(Path("masks.json").read_text())


def test_a_run_of_segtrain_0_1_is_refused(tmp_path):
    config = load_config(None, [f"out={tmp_path}"])
    (tmp_path / "config.yaml").write_text(f"# segtrain run {config.hash}\n{config.to_yaml()}")
    (tmp_path / "journal.jsonl").touch()
    for read in (
        lambda: refuse_run_dir(config),
        lambda: load_saved(tmp_path / "config.yaml"),
        lambda: load_config(tmp_path / "config.yaml"),
        lambda: checkpoint.load_weights(tmp_path, "last"),
        lambda: load(tmp_path),
        lambda: read_folder(tmp_path),  # as diagnose and plan do
    ):
        with refused("run-of-older-version") as told:
            read()
        assert "\n" not in str(told.value)

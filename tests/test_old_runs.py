"""Run folders that commit 156fdc5 wrote: they resume, and every command reads them.

``recorded/old-runs.tar.gz`` holds, all with relative paths:

- ``data``: 17 small images with their masks, one of them torn, which the runs left out (data.faults=skip)
- ``runs/adamw``: adamw.yaml to its end; AdamW, a moving average, two loss terms, automatic class weights
- ``runs/interrupted``: the same settings, killed at step 46; its newest checkpoint is that of step 40
- ``runs/sgd``: sgd.yaml to its end on generated scenes; SGD with momentum on two ranks
- ``export``: the weights of ``runs/adamw`` as `segtrain export` wrote them
- ``masks.json``: SHA-256 of the masks that `segtrain predict` wrote, by run and image

Noise of 1e-4 in each logit changes no predicted pixel, so scores and masks are compared exactly on any machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Zygote
from PIL import Image

from segtrain.cli import main
from segtrain.config import load_saved

RUNS = ("adamw", "interrupted", "sgd")
# Relative, of a loss 15 steps after the resume. Other CPUs and older torch have other kernels; rounding grows with steps.
ROUNDING = 5e-3


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recorded folders, as they would lie there after two days; the current folder."""
    with tarfile.open(ROOT / "tests/recorded/old-runs.tar.gz") as archive:
        archive.extractall(tmp_path)
    for file in tmp_path.glob("runs/*/*"):
        os.utime(file, (time.time() - 2 * 86_400,) * 2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def journal(run: str, event: str) -> list[dict[str, Any]]:
    lines = Path("runs", run, "journal.jsonl").read_text().splitlines()
    return [found for found in map(json.loads, lines) if found["event"] == event]


def losses(run: str) -> dict[int, float]:
    """Of each step, the last one where a step was done again."""
    return {event["step"]: event["loss"] for event in journal(run, "step")}


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command prints that ends well and warns of nothing."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert out.strip()
    return out


@pytest.mark.parametrize("config", ["adamw.yaml", "runs/interrupted/config.yaml"])
def test_an_interrupted_run_goes_on_as_the_one_that_was_not(old: Path, zygote: Zygote, config: str) -> None:
    before = losses("interrupted")
    assert max(before) == 46
    process = zygote.start("train", config, "out=runs/interrupted", "log.profile_ms=0", cwd=old)
    assert process.wait() == 0, process.output
    assert "going on from step 40 of 60" in process.output
    # No record of the data is in these checkpoints, and the hash of a config has been made in another way since.
    assert "the checkpoint does not say on which data it was trained (an earlier version wrote it)" in process.output
    assert "unless another segtrain version wrote it" in process.output
    assert "Traceback" not in process.output
    whole, resumed = losses("adamw"), losses("interrupted")
    resumed.pop(41)  # a resumed run logs its first step
    assert resumed.keys() == whole.keys()
    assert resumed == pytest.approx(whole, rel=ROUNDING)
    # The samples are those that the run would have had, to the pixel.
    digests = [{e["step"]: e["digest"] for e in journal(run, "step")} for run in ("adamw", "interrupted")]
    digests[1].pop(41)
    assert digests[0] == digests[1]
    assert [event["step"] for event in journal("interrupted", "resume")] == [40]
    assert journal("interrupted", "run_end")[-1]["status"] == "done"
    best = json.loads(Path("runs/interrupted/best.json").read_text())
    assert best["step"] == 60
    assert best["miou"] == pytest.approx(json.loads(Path("runs/adamw/best.json").read_text())["miou"], abs=1e-3)


def test_a_run_of_two_ranks_goes_on_with_one(old: Path, zygote: Zygote) -> None:
    whole = losses("sgd")
    Path("runs/sgd/checkpoints/step-00000030.pt").unlink()
    settings = ("parallel.procs=1", "log.profile_ms=0", "log.pictures=0")
    process = zygote.start("train", "sgd.yaml", "out=runs/sgd", *settings, cwd=old)
    assert process.wait() == 0, process.output
    assert "going on from step 15 of 30" in process.output
    assert [event["world_size"] for event in journal("sgd", "resume")] == [2]
    assert losses("sgd") == pytest.approx(whole, rel=ROUNDING)
    assert json.loads(Path("runs/sgd/best.json").read_text())["step"] == 30


def test_other_settings_are_refused_by_name(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "adamw.yaml", "out=runs/interrupted", "optim.lr=0.5"]) == 2
    refused = capsys.readouterr().err
    assert "runs/interrupted holds a run with other settings (optim.lr: 0.02 there, 0.5 here)" in refused


@pytest.mark.parametrize("run", RUNS)
def test_the_score_is_the_one_that_was_recorded(old: Path, capsys: pytest.CaptureFixture[str], run: str) -> None:
    found = json.loads(printed(capsys, "eval", f"runs/{run}", "--json"))
    assert found["miou"] == json.loads(Path("runs", run, "best.json").read_text())["miou"]
    then = journal(run, "eval")[-1]
    assert {name: found[name] for name in then["scores"]} == then["scores"]
    assert found["protocol"] == then["protocol"]


def test_best_json_says_which_checkpoint_is_the_best(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checkpoints of that version do not say it."""
    first, last = (event["scores"]["miou"] for event in journal("sgd", "eval"))
    assert first != last
    named = {"checkpoint": "step-00000015.pt", "step": 15, "miou": first}
    Path("runs/sgd/best.json").write_text(json.dumps(named))
    for which, score in (("best", first), ("last", last)):
        assert json.loads(printed(capsys, "eval", "runs/sgd", "--which", which, "--json"))["miou"] == score


@pytest.mark.parametrize(("folder", "run"), [("runs/adamw", "adamw"), ("export", "adamw"), ("runs/sgd", "sgd")])
def test_masks_are_those_that_were_written(
    old: Path, capsys: pytest.CaptureFixture[str], folder: str, run: str
) -> None:
    printed(capsys, "predict", folder, "data/images/val", "--out", "predictions")
    found = {
        file.name: hashlib.sha256(np.array(Image.open(file)).tobytes()).hexdigest()
        for file in Path("predictions/masks").iterdir()
    }
    assert found == json.loads(Path("masks.json").read_text())[run]


def test_the_export_has_the_weights_that_were_exported(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file

    printed(capsys, "export", "runs/adamw", "--out", "again", "--formats", "safetensors")
    then, now = load_file("export/weights.safetensors"), load_file("again/weights.safetensors")
    assert then.keys() == now.keys()
    assert all(then[name].equal(now[name]) for name in then)


def test_the_table_lists_them(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["out"]: row for row in map(json.loads, printed(capsys, "runs", "runs", "--json").splitlines())}
    told = {out: [row[key] for key in ("name", "status", "step", "steps", "best_step")] for out, row in rows.items()}
    assert told == {
        "runs/adamw": ["adamw", "done", 60, 60, 60],
        "runs/interrupted": ["adamw", "killed", 46, 60, 40],
        "runs/sgd": ["sgd", "done", 30, 30, 30],
    }
    for out, row in rows.items():
        assert row["hash"] == journal(Path(out).name, "run_start")[0]["hash"]
        assert row["miou"] == json.loads(Path(out, "best.json").read_text())["miou"]
        assert row["warnings"] == []


@pytest.mark.parametrize("run", RUNS)
def test_reports(old: Path, capsys: pytest.CaptureFixture[str], run: str) -> None:
    page = Path(printed(capsys, "report", f"runs/{run}").strip()).read_text()
    best = json.loads(Path("runs", run, "best.json").read_text())["miou"]
    assert f"{100 * best:.2f}" in page
    names = json.loads(Path("runs", run, "labels.json").read_text())["names"]
    assert [name for name in names if name not in page] == []
    # Older versions wrote down the settings of all optimizers.
    optimizer = load_saved(Path("runs", run, "config.yaml")).optim.name
    shown = [key for key in ("optim.betas", "optim.momentum", "optim.muon_lr") if key in page]
    assert shown == {"adamw": ["optim.betas"], "sgd": ["optim.momentum"]}[optimizer]


@pytest.mark.parametrize("run", RUNS)
def test_diagnoses(old: Path, capsys: pytest.CaptureFixture[str], run: str) -> None:
    assert printed(capsys, "diagnose", f"runs/{run}").startswith(f"runs/{run}: ")
    facts = json.loads(printed(capsys, "diagnose", f"runs/{run}", "--json"))["facts"]
    records = Path("runs", run, "spans/rank-00000.jsonl").read_text().splitlines()
    begin, *windows = map(json.loads, records)
    assert facts["ranks"] == begin["world_size"]
    assert 0 < facts["steps"] <= sum(window["last"] - window["first"] + 1 for window in windows if "last" in window)
    assert {"wait", "forward", "backward", "update"} <= facts["phases"].keys()


def test_compares_them(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "diff", "runs/adamw", "runs/sgd")
    assert "8.80 % against 65.58 %" in text
    rows = {line.split()[0] for line in text.splitlines() if line.startswith("optim.")}
    assert {"optim.name", "optim.lr", "optim.ema"} <= rows
    assert "changed" in printed(capsys, "diagnose", "runs/adamw", "--against", "runs/sgd")


def test_differs_from_a_new_run_in_nothing_but_what_was_changed(
    old: Path, zygote: Zygote, capsys: pytest.CaptureFixture[str]
) -> None:
    process = zygote.start("train", "runs/sgd/config.yaml", "out=runs/new", "parallel.procs=1", cwd=old)
    assert process.wait() == 0, process.output
    text = printed(capsys, "diff", "runs/sgd", "runs/new")
    assert "The scores were made in different ways" not in text
    _, _, table = text.partition("\nconfig ")
    assert [line.split()[0] for line in table.split("\n\n")[0].splitlines()[1:]] == ["parallel.procs"], text
    text = printed(capsys, "diagnose", "runs/sgd", "--against", "runs/new")
    assert "parallel.procs 2 -> 1" in text
    assert set(re.findall(r"(\w+\.\w+) \S+ -> ", text)) == {"parallel.procs"}, text

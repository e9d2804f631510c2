"""Tests that a sweep runs each trial once, in spite of deaths, and finds the best config."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import refused
from small_runs import TINY

from segtrain.config import load_config
from segtrain.config.load import parse_overrides
from segtrain.insight.runs.table import list_runs
from segtrain.observe.journal import read_journal
from segtrain.runs import sweep as sweeping
from segtrain.runs.space import read_sweep
from segtrain.runs.sweep import sweep

optuna = pytest.importorskip("optuna", reason="optuna is an extra")

# Stands in for `segtrain train`: the score is best at a learning rate of 0.01. At its first start,
# trial 1 is killed. Trial 2 has an error in its settings.
TRAINING = """
import json, math, os, signal, sys, time, yaml
from pathlib import Path

config = yaml.safe_load(open(sys.argv[1]))
out = Path(config["out"])
number, known = int(out.name[-4:]), out.exists()
out.mkdir(parents=True, exist_ok=True)
(out / "config.yaml").write_text(open(sys.argv[1]).read())
journal = open(out / "journal.jsonl", "a")

def write(event, **fields):
    journal.write(json.dumps({"event": event, "ts": time.time(), **fields}) + "\\n")
    journal.flush()

signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
write("run_start", pid=os.getpid(), host="elsewhere", total_steps=3)
if number == 1 and not known:
    os.kill(os.getpid(), signal.SIGKILL)
if number == 2:
    sys.exit(2)
for step in (1, 2, 3):
    miou = step / 3 / (1 + abs(math.log10(config["optim"]["lr"] / 0.01)))
    write("eval", step=step, scores={"miou": miou, "loss": 1 + miou}, best=True)
    (out / "best.json").write_text(json.dumps({"miou": miou, "step": step}))
    time.sleep(float(os.environ.get("STEP_S", "0.05")))
write("run_end", status="done", step=3)
"""
SPACE = {"optim.lr": {"low": 1e-4, "high": 1e-1, "log": True}, "data.rotate": [0, 7]}


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("training.py").write_text(TRAINING)
    monkeypatch.setattr(sweeping, "TRAIN", [sys.executable, "training.py"])
    monkeypatch.setattr(sweeping, "POLL_S", 0.02)


def write(file: str = "try.yaml", **content: Any) -> Path:
    Path(file).write_text(yaml.safe_dump({"space": SPACE, "workers": 2, **content}))
    return Path(file)


def states(folder: str = "sweeps/try") -> list[str]:
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(f"{folder}/optuna.journal")
    )
    return [t.state.name for t in optuna.load_study(study_name=None, storage=storage).trials]


@pytest.mark.usefixtures("stand_in")
def test_a_killed_trial_is_run_again_and_the_best_config_is_right(capsys):
    assert sweep(write(trials=8, pruner="NopPruner")) == 0
    assert states() == ["COMPLETE"] * 2 + ["FAIL"] + ["COMPLETE"] * 5
    rows = list_runs("sweeps/try")
    assert len(rows) == 8
    starts = [e for e in read_journal("sweeps/try/trial-0001") if e["event"] == "run_start"]
    assert len(starts) == 2  # in the same folder, with the same settings
    best = max(rows, key=lambda row: row["miou"] or 0.0)
    text = capsys.readouterr().out
    assert f"best: {Path(best['out']).name}, " in text
    assert load_config("sweeps/try/best.yaml").optim.lr == best["settings"]["optim.lr"]
    # The table begins with the best trial.
    table = text[text.index("name ") :].splitlines()
    assert best["out"] in table[1]
    # Nothing is left to do; more trials can be added.
    assert sweep(write(trials=8, pruner="NopPruner")) == 0
    assert sweep(write(trials=9, pruner="NopPruner")) == 0
    assert len(states()) == 9
    assert len({row["settings"]["optim.lr"] for row in list_runs("sweeps/try")}) == 9
    with refused("sweep-differs", folder="sweeps/try"):
        sweep(write(trials=9, settings={"train.batch_size": 4}))


@pytest.mark.usefixtures("stand_in")
def test_the_best_trial_is_that_of_eval_best(capsys):
    assert sweep(write(trials=5, pruner="NopPruner", settings={"eval.best": "loss"})) == 0
    rows = [row for row in list_runs("sweeps/try") if row["miou"] is not None]
    best = min(rows, key=lambda row: row["miou"])  # the stand-in's loss is 1 + mIoU
    assert load_config("sweeps/try/best.yaml").optim.lr == best["settings"]["optim.lr"]
    text = capsys.readouterr().out
    assert best["out"] in text[text.index("name ") :].splitlines()[1]
    assert f"loss {1 + best['miou']:.4f}" in text


@pytest.mark.usefixtures("stand_in")
def test_the_pruner_stops_trials(monkeypatch):
    monkeypatch.setenv("STEP_S", "0.5")
    pruner = {"ThresholdPruner": {"lower": 0.25}}
    assert sweep(write(trials=6, workers=3, pruner=pruner, sampler="RandomSampler")) == 0
    for number, state in enumerate(states()):
        events = read_journal(f"sweeps/try/trial-{number:04d}")
        scores = [event["scores"]["miou"] for event in events if event["event"] == "eval"]
        if number != 2:
            assert (state == "PRUNED") == (min(scores) < 0.25 and len(scores) < 3), scores
    assert "PRUNED" in states()


def test_two_processes_share_a_sweep_and_one_dies(tmp_path):
    """The trials of the dead process go on when the command is started again."""
    (tmp_path / "training.py").write_text(TRAINING)
    (tmp_path / "try.yaml").write_text(
        yaml.safe_dump({"space": SPACE, "trials": 6, "pruner": "NopPruner"})
    )
    code = (
        "import sys\nfrom segtrain.runs import sweep\n"
        "sweep.TRAIN, sweep.POLL_S = [sys.executable, 'training.py'], 0.02\n"
        "sys.exit(sweep.sweep('try.yaml'))"
    )
    environment = {**os.environ, "STEP_S": "0.4", "PYTHONPATH": os.pathsep.join(sys.path)}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment)

    dying = start()
    journal = tmp_path / "sweeps/try/trial-0000/journal.jsonl"
    end = time.monotonic() + 120
    while not (journal.is_file() and '"eval"' in journal.read_text()):
        assert time.monotonic() < end
        time.sleep(0.02)
    # Optuna's lock of a dead process is broken after half a minute: kill it where it has none.
    dying.send_signal(signal.SIGSTOP)
    while list(journal.parents[1].glob("optuna.journal.lock*")):
        dying.send_signal(signal.SIGCONT)
        time.sleep(0.01)
        dying.send_signal(signal.SIGSTOP)
    dying.kill()
    dying.wait()
    assert [process.wait() for process in [start(), start()]] == [0, 0]
    assert states(str(tmp_path / "sweeps/try")) == ["COMPLETE"] * 2 + ["FAIL"] + ["COMPLETE"] * 3
    starts = {
        row["out"][-1]: sum(e["event"] == "run_start" for e in read_journal(row["out"]))
        for row in list_runs(tmp_path / "sweeps/try")
    }
    assert starts == {"0": 2, "1": 2, "2": 1, "3": 1, "4": 1, "5": 1}


@pytest.mark.parametrize(
    ("content", "code", "named"),
    [
        ({"space": {"optim.lrr": [1]}}, "unknown-key", "optim.lr"),
        ({"space": {"optim.lr": [0.1, "fast"]}}, "wrong-type", "optim.lr"),
        ({"space": {"optim.lr": {"low": 0.2, "high": 0.1}}}, "invalid-range", "optim.lr"),
        ({"space": {}}, "invalid-sweep", "space"),
        ({"trial": 3}, "invalid-sweep", "trial"),
        ({"sampler": "TPESampling"}, "unknown-class", "TPESampler"),
        ({"pruner": {"MedianPruner": {"steps": 1}}}, "invalid-arguments", "steps"),
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_mistakes_in_the_file_are_named_before_anything_is_trained(content, code, named):
    with refused(code) as caught:
        sweep(write(trials=1, **content))
    assert named in str(caught.value)
    assert not list(Path().glob("sweeps/*/trial-*"))


def test_the_file_of_the_page(tmp_path):
    page = (Path(__file__).parents[2] / "docs/sweep.md").read_text()
    (tmp_path / "page.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    plan = read_sweep(tmp_path / "page.yaml")
    assert plan.trials == 12
    os.chdir(Path(__file__).parents[2])
    assert set(plan.distributions()) == set(plan.space)


@pytest.mark.slow
def test_real_trials_with_two_workers_one_of_which_is_killed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = {}
    for section, settings in parse_overrides(TINY).items():
        tiny |= {f"{section}.{key}": value for key, value in settings.items()}
    quick = {"train.duration": "60st", "eval.every": "20st", "checkpoint.every": "4st"}
    file = write(trials=3, settings={**tiny, **quick, "train.batch_size": 4, "data.workers": 0})
    process = subprocess.Popen([sys.executable, "-m", "segtrain", "sweep", str(file)])
    run = Path("sweeps/try/trial-0001")
    end = time.monotonic() + 200
    while not list(run.glob("checkpoints/*.pt")):
        assert time.monotonic() < end
        time.sleep(0.02)
    (started,) = [e for e in read_journal(run) if e["event"] == "run_start"]
    os.kill(started["pid"], signal.SIGKILL)
    assert process.wait() == 0
    rows = {Path(row["out"]).name: row for row in list_runs("sweeps/try")}
    assert [row["status"] for row in rows.values()] == ["done"] * 3
    assert any(e["event"] == "resume" for e in read_journal(run))
    best = max(rows.values(), key=lambda row: row["miou"])
    assert load_config("sweeps/try/best.yaml").optim.lr == best["settings"]["optim.lr"]

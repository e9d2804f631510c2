"""Tests of macOS, simulated on Linux (as_mac/sitecustomize.py), and of what is refused on
Windows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from conftest import refused

import segtrain
from segtrain import cli, errors
from segtrain.base.files import is_running
from segtrain.data.pixels import native
from segtrain.insight.doctor.machine import LEAST_FILES

ROOT = Path(__file__).parents[2]
FACTS = """
import json
from segtrain.insight.doctor import machine
from segtrain.base.memory import memory_free, memory_limit
lines = [*machine.shared_memory(), *machine.open_files()]
print(json.dumps([memory_free(), memory_limit()[0], [(line.name, line.cure) for line in lines]]))
"""


def on_a_mac(folder: Path, *words: str) -> str:
    # The loopback interface has another name on a real Mac.
    environ = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'tests/as_mac'}:{ROOT}",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="this simulates a Mac on Linux")
def test_a_mac_trains_with_ranks_and_processes_and_reads_its_run(tmp_path):
    on_a_mac(
        tmp_path,
        "-m",
        "segtrain",
        "train",
        "data.scenes=8",
        "data.scene_size=[32,64]",
        "data.crop=[32,64]",
        "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1], aux: false}",
        "train.batch_size=4",
        "train.duration=2st",
        "eval.every=2st",
        "checkpoint.every=2st",
        "log.every=1",
        "log.tensorboard=false",
        "log.pictures=0",
        "parallel.procs=2",
        "data.worker_kind=process",
        "data.workers=1",
        "data.cache=off",
        "out=run",
    )
    assert '"world_size": 2' in (tmp_path / "run/journal.jsonl").read_text()
    assert "done" in on_a_mac(tmp_path, "-m", "segtrain", "runs", ".")
    free, limit, lines = json.loads(on_a_mac(tmp_path, "-c", FACTS))
    assert 0 < free < limit
    assert lines == [["open files", f"ulimit -n {LEAST_FILES}"]]


@pytest.mark.parametrize("command", ["train", "eval", "prove", "bench"])
def test_windows_is_refused_in_one_line(monkeypatch, capsys, command):
    monkeypatch.setattr(errors, "sys", types.SimpleNamespace(platform="win32"))
    assert cli.main([command, *{"eval": ["run"], "bench": ["data"]}.get(command, [])]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "WSL 2" in line
    with refused("windows-unsupported"):
        segtrain.train(segtrain.Config())
    assert cli.main(["runs", str(ROOT / "nowhere")]) == 2  # it has an error of its own
    assert "WSL" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("system", "word"), [("linux", "apt-get"), ("darwin", "brew"), ("win32", "not built")]
)
def test_the_cure_for_a_missing_decoder_is_the_systems(monkeypatch, system, word):
    monkeypatch.setattr(native.sys, "platform", system)
    _, reason = native._load(f"/nowhere/{system}.so")
    assert word in reason
    assert ("apt-get" in reason) == (system == "linux")


def test_whether_a_process_runs():
    assert is_running(os.getpid())
    assert not is_running(2**70)

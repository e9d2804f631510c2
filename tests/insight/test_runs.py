"""Tests that the table of runs shows what each run folder holds, even a half-written one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import refused

from segtrain.config import make_config, read_parts
from segtrain.errors import SegtrainError
from segtrain.insight.plan import saved
from segtrain.insight.report import flame
from segtrain.insight.runs.folder import read_folder, run_home, settings_of
from segtrain.insight.runs.table import COLUMNS, by_seed, data_frame, list_runs, table
from segtrain.observe import image_table
from segtrain.observe.journal import read_journal
from segtrain.observe.profile_format import read_profile
from segtrain.observe.spans import read_spans
from segtrain.runfolder import checkpoint
from segtrain.runfolder.lock import RunLock
from segtrain.training.start import faults, same_data

CONFIG = make_config({"name": "street"})


def line(event: str, ts: float, **fields: Any) -> str:
    return json.dumps({"event": event, "ts": ts, **fields}) + "\n"


def start(ts: float = 1000.0, host: str | None = None, pid: int = 1) -> str:
    return line(
        "run_start",
        ts,
        host=host or socket.gethostname(),
        pid=pid,
        hash="1a2b3c4d",
        total_steps=100,
        name="street",
    )


def make(
    folder: Path,
    journal: str | None = None,
    best: str | None = None,
    config: str | None = CONFIG.to_yaml(),
) -> Path:
    folder.mkdir(parents=True)
    for name, text in (("journal.jsonl", journal), ("best.json", best), ("config.yaml", config)):
        if text is not None:
            (folder / name).write_text(text)
    return folder


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def done_journal() -> str:
    steps = "".join(
        line("step", 1000.0 + i, step=i, loss=1.0, cpu_s=2.0 * i) for i in range(10, 101, 10)
    )
    scores = line("eval", 1101.0, step=100, scores={"miou": 0.5}, seconds=1.0)
    return (
        start()
        + steps
        + scores
        + line("run_end", 1102.5, status="done", step=100, seconds=102.5, cpu_s=200.0)
    )


def test_a_finished_run_tells_everything(tmp_path):
    make(
        tmp_path / "a",
        done_journal(),
        '{"checkpoint": "step-00000050.pt", "miou": 0.625, "step": 50}',
    )
    (row,) = list_runs(tmp_path)
    assert tuple(row) == (*COLUMNS, "settings")
    assert row == {
        "name": "street",
        "hash": "1a2b3c4d",
        "status": "done",
        "step": 100,
        "steps": 100,
        "miou": 0.625,
        "last_miou": 0.5,
        "loss": None,
        "best_step": 50,
        "time": 102.5,
        "cpu_s": 200.0,
        "started": 1000.0,
        "out": str(tmp_path / "a"),
        "classes": None,
        "classes_present": None,
        "warnings": [],
        "strategy": "auto",
        "ranks": None,
        "batch": CONFIG.train.batch_size,
        "images_per_s": None,
        "epoch_s": None,
        "settings": {},
    }


def test_time_leaves_out_the_pauses_of_a_resumed_run(tmp_path):
    first = (
        start()
        + line("step", 1010.0, step=10, epoch=2.5, images_per_s=8.0)
        + line("run_end", 1020.0, status="stopped", step=12)
    )
    second = (
        start(5000.0)
        + line("resume", 5001.0, step=12)
        + line("run_end", 5005.0, status="done", step=100, seconds=20.0)
    )
    make(tmp_path / "a", first + second)
    (row,) = list_runs(tmp_path)
    assert (row["time"], row["status"], row["started"]) == (25.0, "done", 1000.0)
    assert row["epoch_s"] == 20 / 25  # all steps are 25 epochs


def test_the_rate_leaves_out_the_first_lap_of_each_process(tmp_path):
    def laps(begin: float, *rates: float) -> str:
        """With an evaluation after each, as only the last of several laps in a row is read."""
        return start(begin) + "".join(
            line("step", begin + k, step=k, images_per_s=rate) + line("eval", begin + k, step=k)
            for k, rate in enumerate(rates, 1)
        )

    make(tmp_path / "a", laps(1000.0, 1.0, 7.0) + laps(2000.0, 2.0, 8.0, 9.0))
    make(tmp_path / "b", laps(1000.0, 1.0))
    rows = {Path(row["out"]).name: row["images_per_s"] for row in list_runs(tmp_path)}
    assert rows == {"a": 8.0, "b": 1.0}


@pytest.mark.parametrize("ahead", [-86_400.0, 86_400.0])
def test_status_of_runs_without_an_end(ahead, tmp_path, monkeypatch):
    """Also where this machine's clock is ``ahead`` of the one that stamps the files."""
    step = line("step", 1010.0, step=7)
    make(tmp_path / "alive", start(pid=os.getpid()) + step)
    make(tmp_path / "dead", start(pid=dead_pid()) + step)
    make(tmp_path / "elsewhere", start(host="another-host") + step)
    old = make(tmp_path / "elsewhere-old", start(host="another-host") + step)
    os.utime(old / "journal.jsonl", ((old / "journal.jsonl").stat().st_mtime - 7200,) * 2)
    ended = line("run_end", 1011.0, status="failed", step=7, error="loss is NaN")
    make(tmp_path / "failed", start() + step + ended)
    make(tmp_path / "again", start() + step + ended + start(2000.0, pid=os.getpid()))
    make(tmp_path / "new", "")
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + ahead)
    rows = {Path(row["out"]).name: row for row in list_runs(tmp_path)}
    assert {name: row["status"] for name, row in rows.items()} == {
        "alive": "running",
        "dead": "killed",
        "elsewhere": "running",
        "elsewhere-old": "killed",
        "failed": "failed",
        "again": "running",
        "new": "new",
    }
    assert {row["step"] for name, row in rows.items() if name != "new"} == {7}


@pytest.mark.parametrize("cut", [0, 5, 137, 301])
def test_half_written_runs_are_rows_with_gaps(tmp_path, cut):
    """Every file is cut at the same place, as after a crash or a copy that was broken off."""
    make(
        tmp_path / "a",
        done_journal()[:cut],
        '{"checkpoint": "x", "miou": 0.5, "step": 5}'[:cut],
        CONFIG.to_yaml()[:cut],
    )
    (row,) = list_runs(tmp_path)
    assert tuple(row) == (*COLUMNS, "settings")
    assert row["out"] == str(tmp_path / "a")
    assert str(row["name"]) in table([row])


@pytest.mark.parametrize("text", ["null", "[]", '{"miou": "high", "step": null}'])
def test_files_of_another_shape_are_gaps(tmp_path, text):
    make(
        tmp_path / "a",
        text + "\n" + '{"event": "step"}\n{"event": "eval", "ts": 3, "scores": 7, "step": 1}\n',
        text,
        text,
    )
    (row,) = list_runs(tmp_path)
    assert (row["miou"], row["hash"]) == (None, None)
    table([row])


def test_only_run_folders_are_found_however_deep(tmp_path):
    make(tmp_path / "camvid" / "b", start(2000.0))
    make(tmp_path / "camvid" / "a", start(3000.0))
    nested = make(tmp_path / "c", start(1000.0))
    make(nested / "copy", start(1.0))  # inside a run: part of it
    make(tmp_path / "configs", config="data: {}\n")  # a lone config is no run
    (tmp_path / "empty").mkdir()
    assert [Path(row["out"]).name for row in list_runs(tmp_path)] == ["c", "b", "a"]
    assert [row["out"] for row in list_runs(nested)] == [str(nested)]


def test_a_missing_folder_is_an_error(tmp_path):
    with refused("folder-missing", file=str(tmp_path / "nowhere")):
        list_runs(tmp_path / "nowhere")


def test_data_frame(tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is an extra")
    make(tmp_path / "a", done_journal(), '{"checkpoint": "x", "miou": 0.625, "step": 50}')
    frame = data_frame(tmp_path)
    assert list(frame.columns) == list(COLUMNS)
    assert frame["miou"][0] == 0.625
    assert frame["started"][0] == pandas.Timestamp(1000, unit="s", tz="UTC")
    (tmp_path / "none").mkdir()
    assert data_frame(tmp_path / "none").empty


def test_settings_that_differ_and_the_means_of_seeds(tmp_path):
    pytest.importorskip("pandas", reason="pandas is an extra")
    for name, lr, seed, miou in (
        ("a", 0.1, 1, 0.50),
        ("b", 0.1, 2, 0.54),
        ("c", 0.2, 1, 0.60),
    ):
        config = make_config(
            {"name": name, "optim": {"lr": lr}, "train": {"seed": seed}, "out": f"runs/{name}"}
        )
        best = json.dumps({"checkpoint": "x", "miou": miou, "step": 50})
        make(tmp_path / name, done_journal(), best, config.to_yaml())
    rows = list_runs(tmp_path)
    assert [row["settings"] for row in rows] == [
        {"optim.lr": lr, "train.seed": seed} for lr, seed in ((0.1, 1), (0.1, 2), (0.2, 1))
    ]
    head, *lines = table(rows).splitlines()
    assert head.split()[-3:] == ["optim.lr", "train.seed", "out"]
    assert [line.split()[-3:-1] for line in lines] == [["0.1", "1"], ["0.1", "2"], ["0.2", "1"]]
    assert list(data_frame(tmp_path)["optim.lr"]) == [0.1, 0.1, 0.2]

    frame = data_frame(tmp_path, seeds=True)
    assert list(frame["runs"]) == [2, 1]
    assert frame["miou"].tolist() == pytest.approx([0.52, 0.60])
    assert frame["miou_sd"][0] == pytest.approx(0.02 * 2**0.5)
    assert frame["miou_sd"].isna().tolist() == [False, True]  # one run has no deviation
    assert "train.seed" not in frame.columns
    head, two, one = table(by_seed(rows)).splitlines()
    assert "52.00 % ± 2.83 %" in two
    assert "2 done" in two
    assert "60.00 %  " in one


def test_a_folder_with_a_config_of_its_own_is_not_taken_for_the_run_below_it(tmp_path):
    run = tmp_path / "runs/a"
    run.mkdir(parents=True)
    (tmp_path / "config.yaml").write_text("model: {}\n")
    assert run_home(tmp_path) == tmp_path
    (run / "journal.jsonl").write_text("{}\n")
    assert run_home(tmp_path) == run
    assert run_home(run) == run


def put(path: Path, kind: str) -> None:
    """A pipe or a device in the place of a file."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")


@pytest.mark.parametrize("name", ["config.yaml", "best.json", "journal.jsonl"])
def test_what_is_no_file_is_named_and_hides_no_other_run(tmp_path, name, capsys):
    for run in ("good", "odd"):
        make(tmp_path / run, done_journal(), '{"step": 100, "miou": 0.5}')
    put(tmp_path / "odd" / name, "device")
    rows = {Path(row["out"]).name: row for row in list_runs(tmp_path)}
    assert rows["good"]["miou"] == 0.5
    assert rows["odd"]["status"] == ("new" if name == "journal.jsonl" else "done")
    assert f"odd/{name}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("labels.json", lambda run: read_folder(run).classes),
        ("config.yaml", settings_of),
        ("plan.json", lambda run: saved.read(run / "plan.json")),
        ("best.json", checkpoint.named_best),
        ("checkpoints/step-00000001.pt", lambda run: checkpoint.newest(run).state),
        ("lock.json", lambda run: RunLock(run).acquire()),
        ("journal.jsonl", read_journal),
        ("spans/rank-0.jsonl", read_spans),
        ("images.csv", lambda run: image_table.read(run / "images.csv")),
        ("parts.json", read_parts),
        ("faults.jsonl", faults._read),
        ("data/train.tsv.gz", lambda run: list(same_data.read_list(run / "data/train.tsv.gz"))),
        ("stacks/rank-0.txt", flame.read),
        (
            "system/incremental/2026010100/202601010000.algo-1.json",
            lambda run: read_profile(run, say=print),
        ),
    ],
)
def test_each_reader_of_a_run_folder_leaves_out_what_is_no_file(tmp_path, name, read):
    put(make(tmp_path / "run", done_journal()) / name, "pipe")
    try:
        assert not read(tmp_path / "run")
    except (SegtrainError, OSError):
        pass

"""Tests of bench/gpu.py (`make gpu`): a rehearsal on the CPU, and what it says where it cannot
run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import gpu  # noqa: E402
from gpu_stages import feed, layers, rig, runs  # noqa: E402

kept = torch.nn.functional.conv2d


def rehearse(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(ROOT / "bench/gpu.py"),
        "--device",
        "cpu",
        "--tiny",
        "--limit",
        "5",
        "--out",
        str(out),
    ]
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.long
def test_a_rehearsal_runs_every_stage_and_writes_every_row(tmp_path):
    done = rehearse(tmp_path / "found")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["tiny"]
    assert list(found["stages"]) == [stage.name for stage in gpu.STAGES]
    for name, rows in found["stages"].items():
        assert rows[-1]["what"] == "seconds"
        assert len(rows) > 1, name
        assert not [row for row in rows if row["ok"] is False], name
    judged = {
        name: sum(row["ok"] is True for row in rows) for name, rows in found["stages"].items()
    }
    assert judged["first"] == 4  # both of fsdp, the first step, and the advice
    assert judged["parity"] >= 10
    assert judged["resume"] == 2
    assert judged["ranks"] == 3
    assert judged["prove"] == 5
    rivals = [row["what"] for row in found["stages"]["rivals"] if "x as fast" in row["result"]]
    assert rivals[:2] == ["  segtrain, batches on the device", "  plain loop"]
    assert any("images/s" in row["result"] for row in found["stages"]["speed"])
    text = (tmp_path / "found.md").read_text()
    assert "A rehearsal: its figures mean nothing" in text
    assert all(f"## {stage.name}: {stage.title}" in text for stage in gpu.STAGES)


def test_a_wrong_result_stops_the_stages_of_speed_and_is_the_exit_code(tmp_path, monkeypatch):
    rows = {
        "check": [{"what": "GPU", "result": "none", "ok": None}],
        "parity": [{"what": "x", "result": "1", "ok": False}],
        "speed": [{"what": "y", "result": "2", "ok": None}],
    }
    monkeypatch.setattr(gpu, "_stage", lambda stage, *_: rows[stage.name])
    monkeypatch.setattr(gpu, "_preload", lambda: None)
    arguments = ["--device", "cpu", "--out", str(tmp_path / "found"), "--stages", "parity,speed"]
    assert gpu.main(arguments) == 1
    stages = json.loads((tmp_path / "found.json").read_text())["stages"]
    assert stages["speed"][0]["result"] == "parity failed"
    assert gpu.main([*arguments, "--keep-going"]) == 1
    assert json.loads((tmp_path / "found.json").read_text())["stages"]["speed"] == rows["speed"]
    # A fault in a stage of speed stops no other.
    rows["speed"], rows["parts"] = (
        [{"what": "y", "result": "error", "ok": False}],
        [{"what": "z", "result": "3", "ok": None}],
    )
    assert gpu.main([*arguments[:-1], "speed,parts", "--out", str(tmp_path / "other")]) == 1
    assert json.loads((tmp_path / "other.json").read_text())["stages"]["parts"] == rows["parts"]
    rows["speed"] = [{"what": "y", "result": "2", "ok": None}]
    # The next call adds to the results, and a stage that does not fit into its time takes nothing
    # away.
    rows["parts"] = [{"what": "z", "result": "3", "ok": None}]
    assert gpu.main([*arguments[:-1], "parts"]) == 0
    assert gpu.main([*arguments[:-1], "speed", "--minutes", "0.1"]) == 0
    assert json.loads((tmp_path / "found.json").read_text())["stages"] == {
        "check": rows["check"],
        "parity": rows["parity"],
        "speed": rows["speed"],
        "parts": rows["parts"],
    }


def test_a_call_that_resumes_measures_only_what_has_no_row(tmp_path, monkeypatch):
    def row(what: str, result: str = "1", ok: bool | None = None) -> dict[str, object]:
        return {"what": what, "result": result, "ok": ok}

    ended, late = row("seconds", "9"), row("c", f"left out: {rig.LATE}")
    rows = {
        "check": [row("GPU", "none")],
        "prove": [row("x"), ended],
        "speed": [row("a"), row("b", "2", False), late, ended],
    }
    calls: list[tuple[str, dict[str, str]]] = []

    def stage(which: rig.Stage, rig: rig.Rig, *_: object) -> list[dict[str, object]]:
        calls.append((which.name, rig.earlier))
        return rows[which.name]

    monkeypatch.setattr(gpu, "_stage", stage)
    monkeypatch.setattr(gpu, "_preload", lambda: None)
    out = tmp_path / "found"
    arguments = ["--device", "cpu", "--out", str(out), "--stages", "prove,speed", "--keep-going"]
    gpu.main(arguments)
    calls.clear()
    rows["speed"] = [row("b"), row("c"), ended]
    assert gpu.main([*arguments, "--resume"]) == 0
    assert calls == [("check", {}), ("speed", {"a": "1"})]
    stages = json.loads((tmp_path / "found.json").read_text())["stages"]
    assert [each["what"] for each in stages["speed"]] == ["a", "b", "c", "seconds"]
    calls.clear()
    gpu.main([*arguments, "--resume"])
    assert calls == [("check", {})]


def test_a_stage_that_hangs_or_fails_becomes_a_row(tmp_path, monkeypatch):
    where = rig.Rig("cpu", True, tmp_path, 0.0)
    noted: list[list[str]] = []
    for name, code, limit, what in (
        (
            "hangs",
            "import time\ndef run(rig):\n    rig.note('before', 1)\n    time.sleep(600)\n",
            3.0,
            "time limit",
        ),
        (
            "fails",
            "def run(rig):\n    rig.note('before', 1)\n    raise ValueError('no luck')\n",
            600.0,
            "error",
        ),
    ):
        (tmp_path / "gpu_stages").mkdir(exist_ok=True)
        (tmp_path / "gpu_stages" / f"{name}.py").write_text(code)
        monkeypatch.setattr(sys.modules["gpu_stages"], "__path__", [str(tmp_path / "gpu_stages")])
        stage = gpu.Stage(name, "planted", limit, True)
        found = gpu._stage(
            stage, where, limit, lambda rows: noted.append([row["what"] for row in rows])
        )
        assert [row["what"] for row in found][-2:] == [what, "seconds"]
        assert found[-2]["ok"] is False
    assert found[0]["what"] == "before"
    assert noted[0] == ["before"]  # while the stage was still running
    assert "no luck" in found[1]["result"]


def test_speed_is_not_measured_after_a_wrong_gradient_but_after_a_slow_first_step(
    tmp_path, monkeypatch, capfd
):
    def planted(stage: Any, *_: Any) -> list[dict[str, Any]]:
        good = stage.name not in ("first", "prove")
        return [{"what": "planted", "result": "planted", "ok": good}]

    monkeypatch.setattr(gpu, "_stage", planted)
    stages = ["--stages", "first,small,prove,speed", "--out", str(tmp_path / "found")]
    assert gpu.main(["--device", "cpu", "--tiny", *stages]) == 1
    printed = capfd.readouterr().out
    assert "small: left out" not in printed
    assert "speed: left out: prove failed" in printed


def test_a_case_of_the_rivals_with_fewer_rounds_goes_on(monkeypatch):
    from loops import race

    begun: list[str] = []

    def compete(case: Any, *_: Any) -> dict[str, Any]:
        begun.append(case.title)
        return {race.OURS: race.SideResult()}

    monkeypatch.setattr(race, "compete", compete)
    (case,) = race.cases(tiny=True)
    for rounds in (1, 2):
        earlier = {case.title: f"rounds: {rounds}"}
        race.race("cpu", False, True, 2, time.monotonic() + 60, lambda *_: None, earlier)
    assert begun == [case.title]


def test_a_machine_without_a_gpu_is_told_so_at_once(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu.main(["--out", str(tmp_path / "found")]) == 2
    assert "torch sees none" in capfd.readouterr().out
    assert not list(tmp_path.iterdir())  # no results to send


def test_layers_are_counted_that_a_module_passes_to_torch_itself():
    """A depthwise and a pointwise kernel are the weights of layers that are never called."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.depthwise = torch.nn.Conv2d(8, 8, 3, groups=8)
            self.pointwise = torch.nn.Conv2d(8, 4, 1)

        def forward(self, x: torch.Tensor, low: bool) -> torch.Tensor:
            x = torch.nn.functional.conv2d(x, self.depthwise.weight, groups=8)
            return torch.nn.functional.conv2d(x, self.pointwise.weight)

    block, image = Block().eval(), torch.zeros(1, 8, 6, 6)
    found = layers.shapes(block, image)
    assert {(name, weight) for name, _, weight, _, _ in found} == {
        ("conv2d", (8, 1, 3, 3)),
        ("conv2d", (4, 8, 1, 1)),
    }
    assert layers.rate(block, image, "fp32", 0, 1) > 0
    assert torch.nn.functional.conv2d is kept


def test_the_gpu_is_idle_where_no_kernel_runs():
    """Steps of 10 us: the network takes 6, and beside it another kernel 2; an update of two kernels
    takes 2; 2 are idle.
    """
    kernels = []
    for step in range(feed.SKIP + 5):
        begin = 10.0 * step
        kernels += [(begin, begin + 6, "conv"), (begin + 3, begin + 5, "copy of a batch")]
        kernels += [
            (begin + 6, begin + 7, "FusedAdamMathFunctor"),
            (begin + 7, begin + 8, "FusedAdamMathFunctor"),
        ]
    assert feed.idle_share(kernels, feed.SKIP + 5) == pytest.approx(0.2)
    with pytest.raises(RuntimeError, match="30 kernels with adam"):
        feed.idle_share(kernels, feed.SKIP + 6)


def test_a_case_that_does_not_end_in_time_is_left_out_and_not_wrong(tmp_path):
    made = rig.Rig("cpu", True, tmp_path, time.monotonic(), tmp_path / "rows")
    with runs.reported(made, "slow"):
        runs.apart(made, time.sleep, 60)
    with runs.reported(made, "bad"):
        runs.apart(made, int, "x")
    slow, bad = (json.loads(line) for line in (tmp_path / "rows").read_text().splitlines())
    assert (slow["result"], slow["ok"]) == ("left out: no time is left", None)
    assert (bad["what"], bad["ok"]) == ("bad", False)


def test_a_run_after_a_comparison_of_large_tensors_does_not_wait_for_threads_that_a_fork_lacks(
    tmp_path,
):
    code = """
import sys, time, numpy, torch
from pathlib import Path
from typing import Any
from gpu_stages import rig, runs
big = {name: torch.from_numpy(numpy.full(4_000_000, number, numpy.float32)) for number, name in enumerate("ab")}
runs.checkpoint.newest = lambda run: runs.checkpoint.NewestCheckpoint(None, {"model": {"w": big[run]}, "ema": {}, "optimizer": {}})
assert "differ" in runs.unequal("a", "b")
def train():
    torch.set_num_threads(2)
    big["a"].add(1).double().sum()
runs.apart(rig.Rig("cpu", True, Path("."), time.monotonic() + 30, Path("rows")), train)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": f"{ROOT / 'bench'}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

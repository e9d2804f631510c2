"""Tests that the speed comparison measures any side that records its steps."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
race = pytest.importorskip("rivals.race", reason="bench/ is not part of an installed package")

if not Path("/proc/self/stat").exists():
    pytest.skip("reads /proc, which this system lacks", allow_module_level=True)

# Steps end at made-up times, so that the result is known; a child process burns CPU and outlives
# its parent's steps.
SIDE = """
import json, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
open(sys.argv[1] + ".pid", "w").write(str(child.pid))
with open(sys.argv[1], "a", buffering=1) as file:
    for line in json.loads(sys.argv[2]):
        file.write(json.dumps(line) + "\\n")
time.sleep(600)
"""


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def start(tmp_path: Path, code: str, *arguments: str) -> race.Result:
    return race.run(
        [sys.executable, "-c", code, str(tmp_path / "marks"), *arguments],
        tmp_path / "work",
        tmp_path / "marks",
        side="a",
        model="m",
        number=1,
        batch=8,
        warmup=2,
        steps=3,
        timeout=240,
    )


@pytest.mark.parametrize(
    "line",
    [
        lambda k, t: f'{{"step": {k}, "time": {t}}}',
        lambda k, t: f'{{"event": "step", "ts": {t}, "step": {k}}}',
    ],
    ids=["rival", "journal"],
)
def test_speed_counts_the_steps_after_the_warm_up_and_nothing_of_a_side_stays_behind(
    tmp_path, line
):
    times = [100.0, 140.0, 141.0, 143.0, 146.0]
    other = ['{"event": "eval", "ts": 120.0}']
    marks = "[" + ",".join([*(line(k + 1, t) for k, t in enumerate(times)), *other]) + "]"
    result = start(tmp_path, SIDE, marks)
    assert result.ok, result.error
    assert result.step_s == [1.0, 2.0, 3.0]
    assert result.images_per_s == pytest.approx(3 * 8 / 6.0)
    pid = int((tmp_path / "marks.pid").read_text())
    limit = time.monotonic() + 120  # on a busy machine a killed process takes a moment to end
    while alive(pid) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not alive(pid)


def test_a_side_that_fails_is_named_with_its_cause_and_gets_no_thread_settings_of_the_shell(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = start(
        tmp_path, "import os; raise ValueError(os.environ.get('OMP_NUM_THREADS', 'unset'))"
    )
    assert not result.ok
    assert "ended with code 1 after 0 steps" in result.error
    assert "ValueError: unset" in result.error
    assert os.environ["OMP_NUM_THREADS"] == "1"

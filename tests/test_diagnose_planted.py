"""Is a cause that was planted into a real run the first that its diagnosis names, and is none named for healthy ones?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Zygote

sys.path.insert(0, str(ROOT / "bench"))

from plants import HEALTHY, PLANTS, SHAPE, SLOW_NETWORK, Plant, code, command, pictures

from segtrain.diagnose import diagnose
from segtrain.diagnose.words import page
from segtrain.observe.journal import read_journal
from segtrain.observe.profile_format import Value, Writer
from segtrain.observe.spans import read_spans

BENCH = os.pathsep.join([str(ROOT), str(ROOT / "bench")])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    pictures(root)
    return root


def train(zygote: Zygote, data: Path, out: Path, name: str, plant: Plant, expected: int = 0) -> str:
    what = code(name, command(data, out, plant), plant.device)
    if plant.ranks > 1:
        ranks = zygote.start_ranks(plant.ranks, code=what, cwd=data, PYTHONPATH=BENCH)
    else:
        ranks = [zygote.start(code=what, cwd=data, PYTHONPATH=BENCH)]
    codes = [rank.wait() for rank in ranks]
    assert codes == [expected] * plant.ranks, ranks[0].output[-3000:]
    return ranks[0].output


@pytest.mark.parametrize("name", PLANTS)
def test_the_planted_cause_comes_first(name: str, zygote: Zygote, data: Path, tmp_path: Path) -> None:
    plant, run = PLANTS[name], tmp_path / "run"
    if name in ("too-few-workers",) and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core has no room for another worker")
    train(zygote, data, run, name, plant, expected=2 if plant.cause == "shm" else 0)
    found = diagnose(run)
    assert found.bound == plant.cause, page(run, found)


@pytest.mark.parametrize("name", HEALTHY)
def test_none_is_named_for_a_healthy_run(name: str, zygote: Zygote, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(zygote, data, run, "", HEALTHY[name])
    found = diagnose(run)
    assert found.bound == "healthy", page(run, found)
    assert found.verdicts == ()


def test_a_host_that_swaps(zygote: Zygote, data: Path, tmp_path: Path) -> None:
    """No test can make a host swap: the readings are planted into the profile of a run that starves as well."""
    run = tmp_path / "run"
    train(zygote, data, run, "storage-latency", PLANTS["storage-latency"])
    windows = read_spans(run)[0].windows
    writer = Writer(run / "profile", "algo-2")
    for window in windows:
        writer.write(window["ts"] + 0.1, [Value("memory", "SwapOutBytesPerSecond", "Swap", 5e7)])
    writer.close()
    found = diagnose(run)
    assert [verdict.cause for verdict in found.verdicts[:2]] == ["memory", "storage-latency"], page(run, found)


def test_a_run_that_starves_says_so_while_it_goes_on(zygote: Zygote, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("train.duration=36st", "log.every=1")
    what = code("storage-latency", command(data, run, PLANTS["storage-latency"], settings), device=True)
    shorter = "import segtrain.observe.spans\nsegtrain.observe.spans.WINDOW_S = 0.2\n"  # than a second
    process = zygote.start(code=shorter + what, cwd=data, PYTHONPATH=BENCH)
    assert process.wait() == 0, process.output
    events = read_journal(run / "journal.jsonl")
    (slow,) = [event for event in events if event["event"] == "slow"]
    assert slow["cause"] == "storage-latency"
    assert slow["step"] < 36
    before, said, after = process.output.partition(f"slow      {slow['text']}\n")
    assert said, process.output
    assert "\nslow " not in before + after
    assert "36/36" in after  # the last step comes later
    assert "\nspeed     bound by the time that storage takes to answer" in after


def test_a_shaped_network(data: Path, tmp_path: Path) -> None:
    """A loopback of 200 Mbit/s, in a network of its own."""
    allowed = subprocess.run(["unshare", "-rn", "sh", "-c", SHAPE.format(rate="200mbit")], capture_output=True)
    if allowed.returncode:
        pytest.skip(f"this machine shapes no loopback in a namespace: {allowed.stderr.decode()[:200]}")
    words = [*command(data, tmp_path / "run", SLOW_NETWORK), "parallel.procs=2"]
    started = f"{SHAPE.format(rate='200mbit')} && exec {sys.executable} -m segtrain {' '.join(words)}"
    done = subprocess.run(
        ["unshare", "-rn", "bash", "-c", started], cwd=data, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = diagnose(tmp_path / "run")
    assert found.bound == "slow-network", page(tmp_path / "run", found)

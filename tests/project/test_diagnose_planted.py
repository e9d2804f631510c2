"""Real runs with a planted cause: the diagnosis must name it first, and must name none for healthy
runs.

These runs are judged by real time on this machine, so they are not part of the default suite: `make
test-planted` runs them. The default suite judges recordings of them (test_diagnose_recorded.py).
`RECORD_PLANTS=tests/recorded make test-planted` writes the recordings again.
"""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from cloud.bucket import BucketServer
from conftest import ROOT, Zygote

sys.path.insert(0, str(ROOT / "bench"))

from plants import (
    ALONE,
    HEALTHY,
    PLANTS,
    SHAPE,
    SLOW_NETWORK,
    UNSEEN,
    Plant,
    code,
    command,
    pictures,
    sync_lines,
)

from segtrain.insight.diagnose.judge import diagnose
from segtrain.insight.diagnose.verdict import Diagnosis
from segtrain.insight.diagnose.words import page
from segtrain.observe.journal import read_journal
from segtrain.observe.profile_format import ProfileWriter, Value
from segtrain.observe.spans import read_spans

pytestmark = pytest.mark.planted

# Name of the recording -> cause, and what the server does.
BUCKETS: dict[str, tuple[str, dict[str, Any]]] = {
    "a slow bucket": ("storage-latency", {"delay": 2.0}),
}

BENCH = os.pathsep.join([str(ROOT), str(ROOT / "bench")])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    pictures(root)
    return root


def train(zygote: Zygote, data: Path, out: Path, name: str, plant: Plant, expected: int = 0) -> str:
    what = code(name, command(data, out, plant), plant.device)
    if plant.ranks > 1:
        ranks = zygote.start_ranks(
            plant.ranks, code=what, cwd=data, PYTHONPATH=BENCH, **plant.environment
        )
    else:
        ranks = [zygote.start(code=what, cwd=data, PYTHONPATH=BENCH, **plant.environment)]
    codes = [rank.wait() for rank in ranks]
    assert codes == [expected] * plant.ranks, ranks[0].output[-3000:]
    return ranks[0].output


# causes that rest on what else this machine does
OF_THE_MACHINE = ("other-programs", "too-few-cores")


def own_causes(found: Diagnosis) -> list[str]:
    return [verdict.cause for verdict in found.verdicts if verdict.cause not in OF_THE_MACHINE]


def record(run: Path, name: str, data: Path) -> None:
    """Keep what the diagnosis reads of ``run``, less names of this machine, as
    RECORD_PLANTS/NAME.tar.gz if that is asked for.
    """
    if not (folder := os.environ.get("RECORD_PLANTS")):
        return
    with tarfile.open(ROOT / folder / f"{name.replace(' ', '-')}.tar.gz", "w:gz") as archive:
        for pattern in ("config.yaml", "journal.jsonl", "spans/**/*", "profile/**/*"):
            for path in sorted(file for file in run.glob(pattern) if file.is_file()):
                text = path.read_text().replace(str(run), "run").replace(str(data), "pictures")
                content = text.replace(f'"{socket.gethostname()}"', '"one-host"').encode()
                member = tarfile.TarInfo(str(path.relative_to(run)))
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def syncing_works(folder: Path) -> float:
    """Of the time in which lines are synced one by one, the share in which the thread computes."""
    with (folder / "probe").open("wb") as file:
        began = time.thread_time()
        sync_lines(file.fileno(), 0.2)
        return (time.thread_time() - began) / 0.2


@pytest.mark.parametrize("name", PLANTS)
def test_the_planted_cause_comes_first(name, zygote, data, tmp_path):
    """Other programs may have the cores meanwhile, which is then a cause as well: what is compared
    are those of the run itself.
    """
    plant, run = PLANTS[name], tmp_path / "run"
    if name in ("too-few-workers",) and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core has no room for another worker")
    if name == "a synced file" and (works := syncing_works(data)) > 0.5:
        pytest.skip(
            f"this file system syncs a file without waiting: the thread computes {works:.0%} of the time"
        )
    train(zygote, data, run, name, plant, expected=2 if plant.cause == "shm" else 0)
    found = diagnose(run)
    assert own_causes(found)[:1] == [plant.cause], page(run, found)
    record(run, name, data)


@pytest.mark.parametrize("name", HEALTHY)
def test_none_is_named_for_a_healthy_run(name, zygote, data, tmp_path):
    run = tmp_path / "run"
    train(zygote, data, run, "", HEALTHY[name])
    found = diagnose(run)
    assert found.bound in ("healthy", *OF_THE_MACHINE), page(run, found)
    if found.bound == "healthy":
        assert found.verdicts == ()
        record(run, name, data)


@pytest.mark.parametrize("name", BUCKETS)
def test_what_holds_a_bucket_up_comes_first(name, zygote, tmp_path_factory, tmp_path):
    pytest.importorskip(
        "obstore", reason="obstore is not installed: pip install 'segtrain[buckets]'"
    )
    root, run = tmp_path_factory.mktemp("bucket"), tmp_path / "run"
    pictures(root, 160)
    server, cause = BucketServer(root.parent), BUCKETS[name][0]
    for key, value in BUCKETS[name][1].items():
        setattr(server, key, value)
    plant = Plant(cause, settings=("data.workers=2", f"data.root=s3://{root.name}"), steps=100)
    what = code("", command(root, run, plant), plant.device)
    try:
        process = zygote.start(
            code=what, cwd=root, PYTHONPATH=BENCH, **plant.environment, **server.environment()
        )
        assert process.wait() == 0, process.output[-3000:]
    finally:
        server.close()
    found = diagnose(run)
    assert own_causes(found)[:1] == [cause], page(run, found)
    record(run, name, root)


def test_a_host_that_swaps(zygote, data, tmp_path):
    """No test can make a host swap: the readings are planted into the profile of a run that starves
    as well.
    """
    run = tmp_path / "run"
    train(zygote, data, run, "storage-latency", PLANTS["storage-latency"])
    windows = read_spans(run)[0].windows
    writer = ProfileWriter(run / "profile", "algo-2")
    for window in windows:
        writer.write(window["ts"] + 0.1, [Value("memory", "SwapOutBytesPerSecond", "Swap", 5e7)])
    writer.close()
    found = diagnose(run)
    assert own_causes(found)[:2] == ["memory", "storage-latency"], page(run, found)


def test_a_run_that_starves_says_so_while_it_goes_on(zygote, data, tmp_path):
    run = tmp_path / "run"
    plant, settings = PLANTS["storage-latency"], ("train.duration=24st", "log.every=1", UNSEEN)
    what = code("storage-latency", command(data, run, plant, settings), device=True)
    # than a second
    shorter = "import segtrain.observe.spans\nsegtrain.observe.spans.WINDOW_S = 0.2\n"
    process = zygote.start(
        code=ALONE + shorter + what, cwd=data, PYTHONPATH=BENCH, **plant.environment
    )
    assert process.wait() == 0, process.output
    events = read_journal(run / "journal.jsonl")
    (slow,) = [event for event in events if event["event"] == "slow"]
    assert slow["cause"] == "storage-latency"
    assert slow["step"] < 24
    before, said, after = process.output.partition(f"slow      {slow['text']}\n")
    assert said, process.output
    assert "\nslow " not in before + after
    assert "24/24" in after  # the last step comes later
    assert "\nspeed     bound by storage latency" in after


def test_a_shaped_network(data, tmp_path):
    """A loopback of 200 Mbit/s, in a network of its own."""
    allowed = subprocess.run(
        ["unshare", "-rn", "sh", "-c", SHAPE.format(rate="200mbit")], capture_output=True
    )
    if allowed.returncode:
        pytest.skip(
            f"this machine shapes no loopback in a namespace: {allowed.stderr.decode()[:200]}"
        )
    words = [*command(data, tmp_path / "run", SLOW_NETWORK), "parallel.procs=2"]
    started = (
        f"{SHAPE.format(rate='200mbit')} && exec {sys.executable} -m segtrain {' '.join(words)}"
    )
    done = subprocess.run(
        ["unshare", "-rn", "bash", "-c", started],
        cwd=data,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = diagnose(tmp_path / "run")
    assert own_causes(found)[:1] == ["slow-network"], page(tmp_path / "run", found)

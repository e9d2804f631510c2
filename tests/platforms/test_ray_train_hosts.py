"""Tests of trainings by Ray Train on hosts with networks of their own, which are killed, come back,
and are drained.
"""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from ray_hosts import HEAD, TRANSFORM, RayHosts, ray_hosts
from small_runs import assert_same_weights, final
from waiting import soon

from segtrain.observe.journal import read_journal

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="the extra 'ray' is not installed"
    ),
]
STEPS = 60
# With exact sums, another number of ranks trains the same, to the bit.
SETTINGS = [
    "data.scenes=24",
    "data.scene_size=[40, 48]",
    "data.crop=[32, 32]",
    "data.workers=1",
    "data.worker_kind=thread",
    "data.transforms=mine.py:slow",
    "parallel.threads=1",
    "train.batch_size=4",
    "train.progressive=[]",
    "train.device=cpu",
    f"train.duration={STEPS}st",
    "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1]}",
    "optim.name=sgd",
    "parallel.exact=2",
    f"eval.every={STEPS}st",
    "checkpoint.every=5st",
    "log.every=1",
    "log.digest=true",
    "log.profile_ms=0",
    "log.pictures=0",
    "log.tensorboard=false",
]


@pytest.fixture(scope="module")
def hosts() -> Iterator[RayHosts]:
    with ray_hosts() as started:
        yield started


class Training:
    """A training on the hosts, whose samples take a second until it may hurry."""

    def __init__(self, hosts: RayHosts, folder: Path, *words: str) -> None:
        self._hosts, self._folder, self.out = hosts, folder, folder / "run"
        (folder / "mine.py").write_text(TRANSFORM.format(quick=str(folder / "quick"), least=0))
        command = [
            sys.executable,
            str(ROOT / "launch/ray.py"),
            str(ROOT / "configs/scenes.yaml"),
            *SETTINGS,
            *words,
        ]
        more = {"SEGTRAIN_CACHE": str(folder / "cache")}
        self._process = hosts.run(
            HEAD,
            *command,
            "--output",
            str(folder),
            "--name",
            "run",
            cwd=folder,
            log=folder / "log",
            **more,
        )

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def events(self, kind: str) -> list[dict[str, Any]]:
        there = (self.out / "journal.jsonl").exists()
        return (
            [event for event in read_journal(self.out) if event["event"] == kind] if there else []
        )

    def digests(self) -> dict[int, int]:
        return {event["step"]: event["digest"] for event in self.events("step")}

    def step(self) -> int:
        return max(self.digests(), default=0)

    def ranks(self) -> list[int]:
        """The number of ranks of each start."""
        return [event["world_size"] for event in self.events("run_start")]

    def until(self, ready: Callable[[], object], seconds: float = 300) -> None:
        assert soon(lambda: ready() or self._process.poll() is not None, seconds), self.log
        assert self._process.poll() is None, self.log

    def hurry(self) -> None:
        (self._folder / "quick").touch()

    def end(self) -> None:
        self.hurry()
        try:
            assert self._process.wait(timeout=400) == 0, self.log
        finally:
            self._process.kill()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(timeout=60)
        finally:
            self._process.kill()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks on this machine, without Ray, that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "mine.py").write_text(TRANSFORM.format(quick=str(folder / "quick"), least=0))
    (folder / "quick").touch()
    words = [
        str(ROOT / "configs/scenes.yaml"),
        *SETTINGS,
        "parallel.strategy=ddp",
        "parallel.procs=2",
        "out=run",
    ]
    subprocess.run(
        [sys.executable, "-m", "segtrain", "train", *words],
        cwd=folder,
        env=RayHosts.plain(),
        check=True,
    )
    return folder / "run"


def digests(run: Path) -> dict[int, int]:
    return {
        event["step"]: event["digest"] for event in read_journal(run) if event["event"] == "step"
    }


def test_a_host_that_is_killed_and_comes_back(hosts, whole, tmp_path):
    with hosts.having("n2", "n3"):
        training = Training(hosts, tmp_path, "--workers", "auto")
        training.until(lambda: training.step() >= 6)
        hosts.lose("n3")
        hosts.add("n3")
        training.until(lambda: len(training.ranks()) == 2)
        training.end()
    assert training.ranks() == [2, 2]
    assert [event["step"] % 5 for event in training.events("resume")] == [0]
    assert training.digests() == digests(whole)
    assert_same_weights(final(training.out), final(whole))


def test_two_hosts_then_one_then_two(hosts, whole, tmp_path):
    with hosts.having("n2", "n3"):
        training = Training(hosts, tmp_path, "--elastic", "1:2", "--resize", "5")
        training.until(lambda: training.step() >= 6)
        hosts.lose("n3")
        training.until(lambda: len(training.ranks()) == 2)
        before = training.step()
        training.until(lambda: training.step() > before + 5)
        hosts.add("n3")
        training.until(lambda: len(training.ranks()) == 3)
        training.end()
    assert training.ranks() == [2, 1, 2]
    assert [event["world_size"] for event in training.events("resume")] == [2, 1]
    assert training.digests() == digests(whole)
    assert_same_weights(final(training.out), final(whole))


def test_a_preemption_leads_to_a_checkpoint_before_its_deadline(hosts, tmp_path):
    with hosts.having("n2", "n3"):
        training = Training(
            hosts, tmp_path, "--elastic", "1:2", "--resize", "600", f"checkpoint.every={STEPS}st"
        )
        training.until(lambda: training.step() >= 3)
        began, seconds = time.time(), 30
        hosts.ray(
            "drain-node",
            "--node-id",
            hosts.nodes()["n3"],
            "--reason",
            "DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message",
            "spot",
            "--deadline-remaining-seconds",
            str(seconds),
        )
        training.until(lambda: training.events("resume"))
        training.stop()
    (saved,), (resumed,) = training.events("checkpoint"), training.events("resume")
    assert saved["step"] == resumed["step"] > 0
    assert saved["ts"] < began + seconds
    assert training.ranks() == [2, 1]

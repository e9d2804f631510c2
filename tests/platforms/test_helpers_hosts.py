"""Tests of whole runs with helpers on a real Ray, whose hosts have networks of their own (make
test-ray).

Each run ends with the batches and the weights of a run without helpers, to the bit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ray_hosts import HEAD, TRANSFORM, RayHosts, ray_hosts
from small_runs import assert_same_weights, final
from waiting import soon

from segtrain.errors import EXIT_RESUMABLE
from segtrain.observe.journal import read_journal

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="the extra 'ray' is not installed"
    ),
]
SETTINGS = [
    "data.scenes=24",
    "data.scene_size=[48, 64]",
    "data.crop=[32, 32]",
    "data.transforms=mine.py:slow",
    "data.workers=1",
    "data.worker_kind=thread",
    "train.batch_size=8",
    "train.duration=100st",
    "train.progressive=[]",
    "optim.name=sgd",
    "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1]}",
    "train.device=cpu",
    "eval.every=100st",
    "checkpoint.every=100st",
    "log.digest=true",
    "log.every=1",
    "log.tensorboard=false",
    "log.pictures=0",
    "log.profile_ms=0",
]
HELPED, HELPS = "data.helpers=ray", "segtrain/role=help"


@pytest.fixture(scope="module")
def hosts() -> Iterator[RayHosts]:
    with ray_hosts() as started:
        yield started


class Run:
    """A run that trains on n1 with one rank. ``quick``: whether its samples take no longer than
    needed.
    """

    def __init__(self, hosts: RayHosts, folder: Path, quick: bool = False) -> None:
        self._hosts, self._folder, self.out = hosts, folder, folder / "run"
        folder.mkdir(exist_ok=True)
        (folder / "mine.py").write_text(TRANSFORM.format(quick=str(folder / "quick"), least=0))
        if quick:
            self.hurry()

    def start(self, *words: str) -> Run:
        given = ("parallel.procs=1", f"out={self.out}", *words)
        command = [sys.executable, "-m", "segtrain", "train", *SETTINGS, *given]
        more = {"SEGTRAIN_CACHE": str(self._folder / "cache"), "GLOO_SOCKET_IFNAME": "lo"}
        self._process = self._hosts.run(
            HEAD, *command, cwd=self._folder, log=self._folder / "log", **more
        )
        return self

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def hurry(self) -> None:
        (self._folder / "quick").touch()

    def until(self, ready: Callable[[], object]) -> None:
        assert soon(lambda: ready() or self._process.poll() is not None), self.log
        assert self._process.poll() is None, self.log

    def until_helped_again(self) -> None:
        made = sum(self.helped().values())
        self.until(lambda: sum(self.helped().values()) > made)

    def end(self, number: int = 0) -> int:
        """Its exit code. ``number``: a signal to send before."""
        if number:
            self._process.send_signal(number)
        else:
            self.hurry()
        try:
            return self._process.wait(timeout=300)
        finally:
            self._process.kill()

    def helped(self) -> Counter[str]:
        """Samples of training that helpers have made for all ranks, by host."""
        found: Counter[str] = Counter()
        for file in self.out.glob("spans/*.jsonl"):
            for line in file.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    found.update(json.loads(line).get("workers", {}).get("helpers", {}))
        return +found

    def digests(self) -> dict[int, int]:
        return {
            event["step"]: event["digest"]
            for event in read_journal(self.out)
            if event["event"] == "step"
        }

    def step(self) -> int:
        return max(self.digests(), default=0) if (self.out / "journal.jsonl").exists() else 0


@pytest.fixture(scope="module")
def alone(hosts: RayHosts, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run without helpers."""
    run = Run(hosts, tmp_path_factory.mktemp("alone"), quick=True).start()
    assert run.end() == 0, run.log
    return run


def assert_same(run: Run, other: Run) -> None:
    assert len(run.digests()) == 100
    assert run.digests() == other.digests()
    assert_same_weights(final(run.out), final(other.out))


def test_two_hosts_that_help(hosts, alone, tmp_path):
    with hosts.having("n2", "n3", labels=HELPS):
        run = Run(hosts, tmp_path).start(HELPED)
        run.until(lambda: run.helped().keys() == {"n2", "n3"})
        assert run.end() == 0, run.log
    assert_same(run, alone)


def test_a_host_that_joins_late(hosts, alone, tmp_path):
    run = Run(hosts, tmp_path).start(HELPED)
    run.until(lambda: "no host of the cluster helps yet" in run.log and run.step() >= 3)
    with hosts.having("n2", labels=HELPS):
        run.until(lambda: run.helped()["n2"] > 8)
        assert run.end() == 0, run.log
    assert_same(run, alone)


@pytest.mark.parametrize(
    "first", [(HELPED,), ()], ids=["with helpers first", "without helpers first"]
)
def test_a_run_that_resumes_with_or_without_helpers(hosts, alone, tmp_path, first):
    with hosts.having("n2", labels=HELPS):
        run = Run(hosts, tmp_path).start(*first)
        run.until(lambda: run.helped()["n2"] > 8 if first else run.step() >= 3)
        assert run.end(signal.SIGTERM) == EXIT_RESUMABLE, run.log
        before, made = run.step(), run.helped()
        assert 0 < before < 100
        run.start(*(() if first else (HELPED,)))
        run.until(lambda: run.step() > before if first else run.helped()["n2"] > 8)
        assert run.end() == 0, run.log
    assert not first or run.helped() == made
    assert_same(run, alone)


def test_helpers_that_are_lost_ten_times(hosts, alone, tmp_path):
    """Of all kinds: a helper is killed or hangs, its host is lost, or the network fails for a
    while.
    """
    seed = random.randrange(1 << 32)
    print("seed", seed)  # for a test that fails
    draw = random.Random(seed)
    with hosts.having("n2", "n3", labels=HELPS):
        run = Run(hosts, tmp_path).start(HELPED)
        run.until(lambda: run.helped().keys() == {"n2", "n3"})
        for number in range(10):
            what = draw.choice(["kill", "hang", "host", "network"])
            print(number, what, run.step())
            if what == "host":
                hosts.lose("n3")
                hosts.add("n3", labels=HELPS)
            elif what == "network":
                hosts.connect("n2", False)
                time.sleep(draw.uniform(0.5, 5))
                hosts.connect("n2", True)
            else:
                run.until(lambda: list(hosts.helpers()))
                one = draw.choice(list(hosts.helpers()))
                one.send_signal(signal.SIGKILL if what == "kill" else signal.SIGSTOP)
            run.until_helped_again()
        assert run.end() == 0, run.log
    assert_same(run, alone)

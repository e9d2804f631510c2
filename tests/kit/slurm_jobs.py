"""Jobs of tests on a private Slurm: submitted, watched, disturbed, and compared by their last
checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cluster_slurm import Cluster, NoSlurm, slurm_cluster

from launch.core.job import load_job
from launch.platforms.slurm import follow as following
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.prepare import write
from launch.platforms.slurm.tools import submit
from segtrain.runfolder import checkpoint

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0
STEPS = 240
TRAINING = {
    "data.layout": "scenes",
    "data.scenes": 8,
    "data.scene_size": [64, 64],
    "data.crop": [64, 64],
    "data.workers": 1,
    "train.batch_size": 4,
    "train.duration": f"{STEPS}st",
    "train.device": "cpu",
    "parallel.threads": 1,
    "eval.every": "9999st",
    "checkpoint.every": "20st",
    "checkpoint.keep": 2,
    "log.every": 5,
    "log.tensorboard": False,
}


@contextlib.contextmanager
def private_slurm(folder: Path, **how: Any) -> Iterator[Cluster]:
    """A cluster that the launcher, and the jobs, of this process use. Skips the test where none can
    be started.
    """
    try:
        with slurm_cluster(folder, **how) as found, pytest.MonkeyPatch.context() as patched:
            for key in ("SLURM_CONF", "PATH"):
                patched.setenv(key, found.environment[key])
            patched.setenv("PYTHONPATH", str(ROOT))
            yield found
    except NoSlurm as why:
        pytest.skip(str(why))


class Run:
    """A job of this test, in a run folder of its own; of an array, its first task."""

    def __init__(self, cluster: Cluster, output: Path, name: str, **keys: Any) -> None:
        settings = {**TRAINING, **keys.pop("settings", {})}
        keys = {"nodes": 2, "cpus": 1, "max_run": 600, "config": "", "most_stops": 9, **keys}
        self.cluster = cluster
        self.job = load_job(
            SlurmJob, {"name": name, "output": str(output), "settings": settings, **keys}, {}
        )
        self.folder = self.job.runs()[0]
        self.number = ""

    def submit(self, edit: Callable[[str], str] = lambda text: text) -> Run:
        script = write(self.job)
        # Ranks on one machine need no minute to follow the first one that has ended.
        text = script.read_text().replace("--wait=120", "--wait=5").replace("sleep 300", "sleep 30")
        script.write_text(edit(text))
        self.number = submit(script)
        return self

    @property
    def shown(self) -> dict[str, str]:
        return self.cluster.job(f"{self.number}_0" if self.job.tasks else self.number)

    @property
    def history(self) -> str:
        file = self.folder / "slurm/history.txt"
        return file.read_text() if file.exists() else ""

    def log(self) -> str:
        return "".join(
            log.read_text(errors="replace") for log in sorted((self.folder / "slurm").glob("*.log"))
        )

    def step(self) -> int:
        """The newest step in the journal."""
        journal = self.folder / "journal.jsonl"
        lines = journal.read_text().splitlines() if journal.exists() else []
        steps = [0]
        for line in lines:
            with contextlib.suppress(ValueError):
                steps.append(int(json.loads(line).get("step") or 0))
        return max(steps)

    def until(self, what: Callable[[], Any], limit_s: float = PATIENCE_S) -> None:
        end = time.monotonic() + limit_s
        while not what():
            assert time.monotonic() < end, f"{self.shown}\n{self.history}\n{self.log()[-3000:]}"
            assert self.shown.get("JobState") not in following.ENDED or what(), (
                f"{self.history}\n{self.log()[-3000:]}"
            )
            time.sleep(0.05)

    def trains(self, step: int = 25) -> Run:
        """Wait for a step behind the first checkpoint."""
        self.until(lambda: self.step() >= step)
        return self

    @contextlib.contextmanager
    def frozen(self, until: Callable[[], Any] | None = None, step: int = 25) -> Iterator[int]:
        """Stop rank 1 at a step behind the first checkpoint, and yield its process.

        It goes on when a signal waits for it, or ``until`` says so: however fast this machine is,
        what happens to the job happens while it trains.
        """
        self.trains(step)
        pid = self.rank(1)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
            self.until(until or (lambda: heard(pid)))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def again(self, restarts: int = 1) -> Run:
        """Wait for a restart that trains."""
        self.until(
            lambda: (
                self.shown.get("Restarts") == str(restarts)
                and self.shown.get("JobState") == "RUNNING"
            )
        )
        return self

    def ends(self, state: str = "COMPLETED") -> Run:
        self.until(lambda: self.shown.get("JobState") in following.ENDED)
        assert self.shown["JobState"] == state, (
            f"{self.shown}\n{self.history}\n{self.log()[-3000:]}"
        )
        return self

    def rank(self, number: int) -> int:
        """The process of a rank."""
        mine = {"SLURM_JOB_ID": self.number}
        if self.job.tasks:
            mine = {"SLURM_ARRAY_JOB_ID": self.number, "SLURM_ARRAY_TASK_ID": "0"}
        marks = {
            f"{key}={value}".encode()
            for key, value in {**mine, "SLURM_PROCID": str(number)}.items()
        }
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if marks <= set((process / "environ").read_bytes().split(b"\0")) and words[1:3] == [
                    b"-m",
                    b"segtrain",
                ]:
                    return int(process.name)
        raise AssertionError(f"rank {number} of job {self.number} does not run")


def heard(pid: int) -> bool:
    """Whether a signal waits for a stopped process, or it is no longer stopped."""
    try:
        status = dict(
            re.findall(r"^(\w+):\s*(\S+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        )
    except OSError:
        return True
    return status["State"] != "T" or int(status["ShdPnd"], 16) > 0


def tensors(content: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, torch.Tensor):
        yield place, content
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from tensors(value, f"{place}/{key}")
    elif isinstance(content, (list, tuple)):
        for key, value in enumerate(content):
            yield from tensors(value, f"{place}/{key}")


def final(folder: Path) -> dict[str, Any]:
    """All tensors of the last checkpoint."""
    newest = checkpoint.checkpoints(folder)[-1]
    assert newest.name == f"step-{STEPS:08d}.pt"
    return dict(tensors(torch.load(newest, weights_only=True, map_location="cpu")))


def assert_same(folder: Path, whole: Path) -> None:
    mine, theirs = final(folder), final(whole)
    assert len(theirs) > 100
    assert mine.keys() == theirs.keys()
    assert [name for name, value in theirs.items() if not torch.equal(mine[name], value)] == []

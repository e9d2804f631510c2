"""Tests of a rehearsed SageMaker job whose second group helps: AWS's toolkit, hosts as namespaces,
and a real Ray.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import refused
from ray_hosts import TRANSFORM

from launch.core.rehearse import network
from launch.core.rehearse.process import RehearsalSpec
from launch.core.rehearse.report import Report
from launch.platforms.sagemaker.bundle import build
from launch.platforms.sagemaker.job import load_job
from launch.platforms.sagemaker.rehearse.run import rehearse
from launch.platforms.sagemaker.request import create_training_job
from segtrain.observe.journal import read_journal
from segtrain.platforms.ray import node as ray_node
from segtrain.platforms.ray.node import RayNode

pytest.importorskip("ray", reason="the extra 'ray' is not installed")
for package in ("boto3", "sagemaker_training", "sagemaker_pytorch_container"):
    pytest.importorskip(package, reason="the extra 'rehearse' is not installed")
if network.namespaces()[0] is None:
    pytest.skip("the kernel gives no namespaces", allow_module_level=True)

NAME = "segtrain-2026-11-21-03-56-05-089"
SETTINGS = [
    "data.scene_size=[40,48]",
    "data.crop=[32,32]",
    "train.batch_size=4",
    "train.progressive=[]",
    "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1]}",
    "log.every=1",
    "optim.name=sgd",
    "data.helpers=ray",
    "data.cache=off",
    "data.transforms=mine.py:slow",
    "data.workers=1",
    "data.worker_kind=thread",
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the job finds mine.py


class Played:
    """A rehearsal in ``folder``, the working folder. ``then``: called once, at the first line of
    the training host that contains ``at``. Until that line, samples take a second.
    """

    def __init__(
        self,
        folder: Path,
        plant: str = "",
        at: str = "help now",
        then: Callable[[], None] = lambda: None,
        helping: int = 1,
        **flags: Any,
    ) -> None:
        (folder / "mine.py").write_text(TRANSFORM.format(quick=str(folder / "quick"), least=0.05))
        groups = ["gpu=ml.g5.xlarge*1:train", f"cpu=ml.c5.4xlarge*{helping}:help"]
        flags = {"groups": groups, "output": "s3://out", "helpers_join": "120s", **flags}
        job = load_job(None, flags, [*SETTINGS, "train.duration=60st", "eval.every=60st"])
        build(job, folder / "code.tar.gz")
        request = create_training_job(
            job, image="image", name=NAME, code=f"s3://out/{NAME}/source/sourcedir.tar.gz"
        )

        def say(line: str) -> None:
            if at in line and not (folder / "quick").exists():
                then()
                (folder / "quick").touch()

        spec = RehearsalSpec(
            str(folder / "code.tar.gz"), str(folder / "stage"), plant=plant, grace_s=30
        )
        self.report: Report = rehearse(job, request, spec, say)
        self._stage, self._trains = folder / "stage", f"algo-{helping + 1}"
        self.head = self.log(self._trains)
        self.codes = {host.name: host.code for host in self.report.hosts}

    def log(self, host: str) -> str:
        return (self._stage / f"logs/{host}.log").read_text(errors="replace")

    def succeeded(self) -> bool:
        return self.report.status == "Completed" and not any(self.codes.values())

    def helped(self) -> dict[str, int]:
        """Samples that helpers have made, by host."""
        (end,) = (
            event
            for event in read_journal(self._stage / f"hosts/{self._trains}/output/data/run")
            if event["event"] == "run_end"
        )
        assert end["step"] == 60
        return dict(end["samples"]["helpers"])


@pytest.mark.slow
def test_both_groups_end_with_success_and_the_helping_one_has_made_samples(tmp_path):
    played = Played(tmp_path, helpers_required=True)
    assert played.succeeded()
    assert "algo-1 has joined" in played.head
    assert "the training is over" in played.log("algo-1")
    assert "weights.safetensors" in played.report.model
    assert played.helped()["algo-1"] > 0


@pytest.mark.ray
def test_a_helping_host_that_is_stopped_costs_speed_alone(tmp_path):
    played = Played(tmp_path, plant="helper:20", at="algo-1 is gone", helpers_required=True)
    assert played.succeeded()
    assert "stopped by a signal" in played.log("algo-1")
    assert "algo-1 is gone" in played.head
    assert played.helped()["algo-1"] > 0
    assert played.report.metrics["train:loss"][0] == 60


@pytest.mark.ray
def test_rank_0_that_is_killed_is_named_by_the_helping_host(tmp_path):
    played = Played(tmp_path, then=lambda: kill("train.py", tmp_path))
    assert played.report.status == "Failed"
    assert played.codes["algo-1"] != 0
    assert "algo-2, is gone" in played.log("algo-1")


def kill(program: str, folder: Path) -> None:
    """Kill the process of this program on the training host of the rehearsal in this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment, command = (
                (process / name).read_bytes() for name in ("environ", "cmdline")
            )
            mine = f"{folder}/stage/hosts/algo-2.cache".encode() in environment
            words = command.split(b"\0")
            if mine and any(
                Path(word.decode(errors="replace")).name == program for word in words[:4]
            ):
                os.kill(int(process.name), signal.SIGKILL)


@pytest.mark.ray
def test_a_wrong_token_is_refused_by_ray_too(tmp_path, monkeypatch):
    for number, name in enumerate(("head", "help")):
        monkeypatch.setenv("RAY_TMPDIR", f"/tmp/st-ray-{os.getpid()}-{number}")
        node = RayNode("127.0.0.1", "127.0.0.1" if number else "", "help", f"{name}" * 8)
        if not number:
            first = node
            first.start()
            continue
        try:
            monkeypatch.setattr(ray_node, "START_S", 60.0)
            with refused("ray-not-started"):
                node.start()
        finally:
            node.end()
            first.end()

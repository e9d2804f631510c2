"""Tests of a rehearsed SageMaker job whose second group helps: AWS's toolkit, hosts as namespaces, and a real Ray."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import refused

from launch.aws.bundle import build
from launch.aws.job import load_job
from launch.aws.rehearse.report import Report
from launch.aws.rehearse.run import rehearse
from launch.aws.request import create_training_job
from launch.job import ROOT
from launch.rehearse import network
from segtrain.observe.journal import read_journal
from segtrain.platforms import ray_node
from segtrain.platforms.ray_node import RayNode

pytest.importorskip("ray", reason="the extra 'ray' is not installed")
for package in ("boto3", "flask", "moto", "sagemaker_training", "sagemaker_pytorch_container"):
    pytest.importorskip(package, reason="the extra 'rehearse' is not installed")
if network.namespaces()[0] is None:
    pytest.skip("the kernel gives no namespaces", allow_module_level=True)

NAME = "segtrain-2026-11-21-03-56-05-089"
SETTINGS = [
    "data.scene_size=[40,48]", "data.crop=[32,32]", "train.batch_size=4", "train.progressive=[]",
    "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1]}", "log.every=1", "optim.name=sgd",
]  # fmt: skip


class Played:
    """A rehearsal in ``folder``; ``at``: called with each line of output."""

    def __init__(
        self,
        folder: Path,
        plant: str = "",
        steps: int = 60,
        settings: Sequence[str] = (),
        at: Callable[[str], None] = lambda _: None,
        **flags: Any,
    ) -> None:
        groups = ["gpu=ml.g5.xlarge*1:train", "cpu=ml.c5.4xlarge*1:help"]
        flags = {"group": groups, "output": "s3://out", "helpers_join": "60s", **flags}
        job = load_job(None, flags, [*SETTINGS, f"train.duration={steps}st", f"eval.every={steps}st", *settings])
        build(ROOT, job, folder / "code.tar.gz")
        request = create_training_job(job, image="image", name=NAME, code=f"s3://out/{NAME}/source/sourcedir.tar.gz")
        self.report: Report = rehearse(
            job, request, folder / "code.tar.gz", folder=folder / "stage", say=at, plant=plant, grace_s=30
        )
        self.helper, self.head = (
            (folder / f"stage/logs/{name}.log").read_text(errors="replace") for name in ("algo-1", "algo-2")
        )

    @property
    def codes(self) -> dict[str, int]:
        return {host.group: host.code for host in self.report.hosts}


SLOW = """
import time
def slow(image, mask, rng):
    time.sleep(0.05)
    return image, mask
"""


@pytest.mark.slow
def test_both_groups_end_with_success_and_the_helping_one_has_made_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SLOW)
    helped = [
        "data.helpers=ray",
        "data.cache=off",
        "data.transforms=mine.py:slow",
        "data.workers=1",
        "data.worker_kind=thread",
    ]
    played = Played(tmp_path, settings=helped, steps=100, helpers_required=True)
    assert (played.report.status, played.codes) == ("Completed", {"cpu": 0, "gpu": 0})
    assert "algo-1 has joined" in played.head
    assert "the training is over" in played.helper
    assert "weights.safetensors" in played.report.model
    (end,) = (
        event for event in read_journal(tmp_path / "stage/hosts/algo-2/output/data/run") if event["event"] == "run_end"
    )
    assert end["samples"]["helpers"]["algo-1"] > 0


@pytest.mark.ray
def test_a_helping_host_that_is_stopped_costs_speed_alone(tmp_path: Path) -> None:
    played = Played(tmp_path, plant="helper:2", helpers_required=True)
    assert (played.report.status, played.codes) == ("Completed", {"cpu": 0, "gpu": 0})
    assert "stopped by a signal" in played.helper
    assert "algo-1 is gone" in played.head
    assert played.report.metrics["train:loss"][0] == 60


@pytest.mark.ray
@pytest.mark.parametrize("required", [False, True])
def test_a_group_that_never_joins_is_missed_or_fails_the_job_as_set(tmp_path: Path, required: bool) -> None:
    played = Played(tmp_path, plant="absent", helpers_join="5s", helpers_required=required)
    if required:
        assert played.report.status == "Failed"
        assert "algo-1 did not join within 5 s" in played.report.failure_reason + played.head
    else:
        assert (played.report.status, played.codes) == ("Completed", {"cpu": 0, "gpu": 0})
        assert "algo-1 did not join within 5 s" in played.head


@pytest.mark.ray
@pytest.mark.parametrize("which", ["gcs_server", "train.py"])
def test_a_head_that_dies_ends_the_help_or_is_named(tmp_path: Path, which: str) -> None:
    def at(line: str) -> None:
        if re.search(r"step +2/200", line):
            kill(which, str(tmp_path))

    played = Played(tmp_path, steps=200, at=at, helpers_required=True)
    if which == "gcs_server":  # Ray alone: the training goes on
        assert (played.report.status, played.codes) == ("Completed", {"cpu": 0, "gpu": 0})
        assert "goes on without helpers" in played.head
    else:
        assert played.report.status == "Failed"
        assert played.codes["cpu"] != 0
        assert "algo-2, is gone" in played.helper


def kill(program: str, mark: str) -> None:
    """Kill the process of this program on the training host of the rehearsal in the folder ``mark``."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment, command = ((folder / name).read_bytes() for name in ("environ", "cmdline"))
            mine = f"{mark}/stage/hosts/algo-2.cache".encode() in environment
            words = command.split(b"\0")
            if mine and any(Path(word.decode(errors="replace")).name == program for word in words[:4]):
                os.kill(int(folder.name), signal.SIGKILL)


@pytest.mark.ray
def test_a_wrong_token_is_refused_by_ray_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

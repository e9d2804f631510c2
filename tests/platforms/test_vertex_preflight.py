"""Tests that each mistake in a Vertex AI job gets its own finding with a fix, and that a sound job
gets none.
"""

from __future__ import annotations

from typing import Any

import pytest
from golden_findings import loud
from vertex_mistakes import (
    ACCOUNT,
    L4,
    NETWORK,
    NFS,
    PLAIN,
    TENSORBOARD,
    look,
)

from launch.core.job import load_job
from launch.platforms.vertex.images import choose
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.machines import machine_of
from launch.platforms.vertex.preflight.machines import gpus
from launch.platforms.vertex.preflight.offline import offline
from launch.platforms.vertex.request import region

pytest.importorskip("yaml")


@pytest.mark.parametrize(
    ("name", "vcpus"),
    [("m1-megamem-96", 96), ("n2d-highcpu-224", 224), ("n1-highmem-8", 8), ("m1-megamem-9x", None)],
)
def test_a_machine_type_says_its_cores(name, vcpus):
    assert getattr(machine_of(name), "vcpus", None) == vcpus


def test_processes_of_the_config_are_counted(tmp_path):
    config = tmp_path / "own.yaml"
    config.write_text("parallel: {procs: 2}\n")
    for batch, expected in ((4, ["gpus-idle"]), (3, ["gpus-idle", "batch-small"])):
        job = load_job(
            VertexJob,
            None,
            {**PLAIN, "config": str(config), "data": None},
            [f"train.batch_size={batch}"],
        )
        found = loud(offline(job, choice=choose(job, region(job), gpus(job))))
        assert [finding.code for finding in found] == expected


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("torch==2.8.0", "error requirement-torch"),
        ("torch>=2.0,<3", ""),
        ("torchvision<0.20", "warning requirement-torch"),
    ],
)
def test_requirements_that_do_not_travel(line, code, tmp_path):
    (tmp_path / "more.txt").write_text(f"{line}\n")
    found = loud(look({"requirements": str(tmp_path / "more.txt")}))
    assert [f"{finding.level} {finding.code}" for finding in found] == [code] * bool(code)
    own = "us-central1-docker.pkg.dev/street-scenes/images/segtrain:1"
    unknown = loud(look({"requirements": str(tmp_path / "more.txt"), "image": own}))
    assert "error requirement-torch" not in [
        f"{finding.level} {finding.code}" for finding in unknown
    ]


SOUND: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "two hosts with T4s": ({}, ("train.precision=fp16",)),
    "one L4": ({"machine": "g2-standard-12", "accelerator": None, "hosts": 1}, ()),
    "spot with checkpoints": (
        {**L4, "scheduling": "spot", "checkpoints": "gs://street-results/run-1", "labels": ["team=seg"]}, ()),
    "flex-start of H100s": (
        {"machine": "a3-highgpu-8g", "accelerator": None, "scheduling": "flex-start", "max_wait": "12h"},
        ("train.precision=bf16",)),
    "TensorBoard, network, key": (
        {**L4, "tensorboard": TENSORBOARD, "service_account": ACCOUNT, "network": NETWORK,
         "reserved_ip_ranges": ["vertex-range"], "kms": "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"}, ()),
    "experiment and PSC": (
        {**L4, "experiment": "streets", "experiment_run": "first-try", "service_account": ACCOUNT,
         "psc_attachment": "mine", "environment": ["NCCL_DEBUG=INFO"]}, ()),
    "own image, restarted as one": (
        {"start": "image", "image": "us-central1-docker.pkg.dev/street-scenes/images/segtrain:1", "restart_all": True}, ()),
    "NFS in Europe": (
        {**NFS, **L4, "network": NETWORK, "region": "europe-west4", "output": "gs://street-results-eu/jobs"}, ()),
    "CPUs on a persistent resource": (
        {"machine": "n2-standard-16", "accelerator": None, "persistent_resource": "cluster-1"}, ()),
    "a size that no table has": ({"machine": "c3-highcpu-300", "accelerator": None}, ()),
    "images drawn in the job": ({"config": "configs/scenes.yaml", "data": None, "hosts": 1}, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_job_has_no_finding(name):
    assert loud(look(*SOUND[name])) == []

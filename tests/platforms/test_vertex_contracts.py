"""Tests that the request of a Vertex AI job equals that of Google's own SDK for the same settings,
field by field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.platforms.vertex import request as made
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.job_parts import Accelerator, Lustre, Nfs

FOLDER = Path(__file__).parents[1] / "contracts/vertex"
FILES = sorted(FOLDER.glob("*.json"))
IMAGE = "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest"
PARENT = "projects/123456789012/locations/us-central1"
ACCOUNT = "trainer@my-project.iam.gserviceaccount.com"
# The SDK sends numbers of enums, the launcher their names.
NAMES = {
    "acceleratorType": {5: "NVIDIA_TESLA_T4", 11: "NVIDIA_L4"},
    "strategy": {3: "STANDARD", 4: "SPOT", 6: "FLEX_START"},
    "reservationAffinityType": {3: "SPECIFIC_RESERVATION"},
}
ONE = VertexJob(
    config="configs/camvid_cpu.yaml",
    project="123456789012",
    region="us-central1",
    machine="g2-standard-48",
    data="gs://seg-data/city",
    output="gs://seg-out/jobs/",
    max_run=3600,
)
JOBS = {
    "one_host": ONE,
    "cpu_host": replace(ONE, machine="n2-standard-16"),
    "spot_five_hosts": replace(
        ONE,
        machine="n1-standard-32",
        accelerator=Accelerator("NVIDIA_TESLA_T4", 4),
        hosts=5,
        scheduling="SPOT",
        labels={"team": "seg"},
    ),
    "flex_start": replace(ONE, scheduling="FLEX_START", max_wait=7200),
    "network": replace(
        ONE,
        network="projects/123456789012/global/networks/mine",
        reserved_ip_ranges=("vertex-range",),
        service_account=ACCOUNT,
    ),
    "psc": replace(
        ONE, psc_attachment="projects/my-project/regions/us-central1/networkAttachments/mine"
    ),
    "tensorboard": replace(ONE, service_account=ACCOUNT, tensorboard=f"{PARENT}/tensorboards/42"),
    "experiment": replace(
        ONE, service_account=ACCOUNT, experiment="streets", experiment_run="first"
    ),
    "persistent": replace(ONE, persistent_resource="my-cluster"),
    "mounts": replace(
        ONE,
        nfs=(Nfs("10.0.0.2", "/data", "data"),),
        lustre=(
            Lustre("lfs", "10.0.0.3", "projects/p/locations/us-central1-a/instances/i", "fast"),
        ),
    ),
    "protected": replace(
        ONE,
        kms="projects/p/locations/us-central1/keyRings/r/cryptoKeys/k",
        restart_all=True,
        web_access=True,
    ),
    "reserved": replace(
        ONE,
        reservation="projects/my-project/zones/us-central1-a/reservations/l4s",
        disable_retries=True,
    ),
}


def fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """``("a.b[0]", value)`` of each value that holds no others, with enums by their names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            named = NAMES.get(key, {}).get(inner, inner) if isinstance(inner, int) else inner
            yield from fields(named, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from fields(inner, f"{path}[{index}]")
    else:
        yield path, value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_request_equals_that_of_the_sdk(path, monkeypatch):
    monkeypatch.setattr(made, "script_lines", lambda name: ["START"])
    # which would read no data
    text = path.read_text(encoding="utf-8").replace("configs/scenes.yaml", ONE.config)
    theirs = dict(fields(json.loads(text)))
    assert dict(fields(made.custom_job(JOBS[path.stem], image=IMAGE, name="job-1"))) == theirs
    assert len(theirs) > 15

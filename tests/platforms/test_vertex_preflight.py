"""Tests that each mistake in a Vertex AI job gets its own finding with a fix, and that a sound job gets none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launch.core.findings import Finding
from launch.core.job import load_job
from launch.platforms.vertex.images import choose
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.preflight.machines import gpus
from launch.platforms.vertex.preflight.offline import offline
from launch.platforms.vertex.request import region

pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
ACCOUNT = "trainer@street-scenes.iam.gserviceaccount.com"
NETWORK = "projects/123456789012/global/networks/default"
TENSORBOARD = "projects/street-scenes/locations/us-central1/tensorboards/42"
PLAIN: dict[str, Any] = {
    "config": "configs/camvid_cpu.yaml",
    "project": "street-scenes",
    "region": "us-central1",
    "machine": "n1-standard-32",
    "accelerator": "NVIDIA_TESLA_T4:4",
    "hosts": 2,
    "data": "gs://street-data/camvid",
    "output": "gs://street-results/jobs",
}
SETTINGS = ("train.batch_size=16", "parallel.procs=auto")


def look(flags: Mapping[str, Any], settings: tuple[str, ...] = ()) -> list[Finding]:
    """What the command line says about a job."""
    job = load_job(VertexJob, None, {**PLAIN, **flags}, [*SETTINGS, *settings])
    return offline(job, root=ROOT, choice=choose(job, region(job), gpus(job)))


def loud(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level != "note"]


L4 = {"machine": "g2-standard-48", "accelerator": None}
NFS = {"nfs": ["data=10.0.0.2:/camvid"], "data": "/mnt/nfs/data/camvid"}
# what is wrong, level and code of the finding, a text of its message
MISTAKES: dict[str, tuple[dict[str, Any], tuple[str, ...], str, str]] = {
    # names
    "variable with a hyphen": ({"environment": ["NCCL-DEBUG=INFO"]}, (), "error env-name", "NCCL-DEBUG"),
    "variable of Vertex AI": ({"environment": ["CLUSTER_SPEC={}"]}, (), "error environment-reserved", "CLUSTER_SPEC"),
    "secret": ({"environment": ["HF_TOKEN=abc"]}, (), "warning secret", "HF_TOKEN"),
    "label of the launcher": ({"labels": ["segtrain-job=mine"]}, (), "error label-reserved", "segtrain-job"),
    "key of another region": (
        {"kms": "projects/p/locations/us-east1/keyRings/r/cryptoKeys/k"}, (), "error kms-region", "us-east1"),
    "no project": ({"project": None}, (), "warning placeholder", "project"),
    "TensorBoard without account": ({"tensorboard": TENSORBOARD}, (), "error tensorboard-service-account", "tensorboards/42"),
    "TensorBoard of another region": (
        {"tensorboard": TENSORBOARD.replace("us-central1", "europe-west4"), "service_account": ACCOUNT}, (),
        "error tensorboard-region", "europe-west4"),
    "experiment without account": ({"experiment": "streets"}, (), "error experiment-service-account", "streets"),
    "run without experiment": ({"experiment_run": "first"}, (), "error experiment-missing", "first"),
    "experiment and TensorBoard": (
        {"experiment": "streets", "tensorboard": TENSORBOARD, "service_account": ACCOUNT}, (),
        "error experiment-tensorboard", "streets"),
    "reservation of another region": (
        {"reservation": "projects/p/zones/us-east1-b/reservations/r"}, (), "error reservation-region", "us-east1-b"),
    "machine misspelled": ({"machine": "n1-standart-32"}, (), "error machine-unknown", "n1-standart-32"),
    "size that N1 has not": ({"machine": "n1-standard-24"}, (), "warning machine-unknown", "n1-standard-24"),
    "accelerator as in Compute Engine": ({"accelerator": "nvidia-tesla-t4:4"}, (), "error accelerator-unknown", "nvidia-tesla-t4"),
    "TPU": ({"accelerator": "TPU_V3:8"}, (), "error accelerator-unknown", "TPU_V3"),
    "K80": ({"accelerator": "NVIDIA_TESLA_K80:4"}, (), "error accelerator-unknown", "K80"),
    "T4 on N2": ({"machine": "n2-standard-32"}, (), "error accelerator-machine", "n2-standard-32"),
    "T4 on G2": ({"machine": "g2-standard-48"}, (), "error accelerator-machine", "4 x NVIDIA_L4"),
    "three GPUs": ({"accelerator": "NVIDIA_TESLA_T4:3"}, ("train.batch_size=12",), "error accelerator-count", "2 or 4"),
    "L4s of another G2": ({"machine": "g2-standard-24", "accelerator": "NVIDIA_L4:4"}, (), "error accelerator-count", "takes 2"),
    "zone as a region": ({"region": "us-central1-a"}, (), "error region-unknown", "us-central1-a"),
    "one H100 on demand": (
        {"machine": "a3-highgpu-1g", "accelerator": None}, (), "error machine-scheduling", "a3-highgpu-1g"),
    "one process on two hosts": ({"strategy": "single"}, (), "error strategy-hosts", "2 hosts"),
    "one process on four GPUs": ({"strategy": "single", "hosts": 1}, (), "warning gpus-idle", "4 GPUs"),
    "one process on each host with four GPUs": ({}, ("parallel.procs=1",), "warning gpus-idle", "4 GPUs"),
    "more processes than GPUs": ({}, ("parallel.procs=8",), "error gpus-few", "4 GPUs"),
    "smddp": ({"strategy": "smddp"}, (), "error strategy-smddp", "SageMaker"),
    "image of AWS": (
        {"image": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch:2.14-cu133"}, (), "error image-registry", "amazonaws"),
    "image that serves": (
        {"image": "us-docker.pkg.dev/vertex-ai/prediction/pytorch-gpu.2-4:latest"}, (), "error image-not-training", "prediction"),
    "image with an old torch": (
        {"image": "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.1-13.py310:latest"}, (), "error image-torch", "1.13"),
    "image for CPUs": (
        {"image": "us-docker.pkg.dev/vertex-ai/training/pytorch-cpu.2-4.py310:latest"}, (), "error image-device", "pytorch-cpu"),
    "image of another region": (
        {"image": "europe-west4-docker.pkg.dev/street-scenes/images/segtrain:1"}, (), "warning image-region", "europe-west4"),
    "entry point of Google's image": ({"start": "image", "restart_all": True}, (), "error image-entry-point", "start=image"),
    "torch without code for the GPU": (
        {"machine": "a4-highgpu-8g", "accelerator": None}, (), "error image-gpu", "B200"),
    # places
    "output on this machine": ({"output": "runs/"}, (), "error output-uri", "runs/"),
    "checkpoints on this machine": ({"checkpoints": "runs/a"}, (), "error checkpoints-uri", "runs/a"),
    "bucket of the example": ({"output": "gs://MY-BUCKET/jobs"}, (), "warning placeholder", "MY-BUCKET"),
    "results inside the data": ({"output": "gs://street-data/camvid/jobs"}, (), "warning results-in-data", "camvid/jobs"),
    "class names nobody gives": ({}, ("data.layout=folders",), "warning classes-unknown", "folders"),
    "data through the mount": ({"data": "/gcs/street-data/camvid"}, (), "warning data-mounted", "/gcs/"),
    "data of this machine": ({"data": "/home/me/CamVid"}, (), "error data-place", "/home/me/CamVid"),
    "data of a web server": ({"data": "ftp://example.com/camvid"}, (), "error data-place", "ftp://"),
    "data in S3": ({"data": "s3://street-data/camvid"}, (), "warning data-elsewhere", "s3://street-data"),
    "data in a mount that is not there": ({"data": "/mnt/nfs/data"}, (), "error data-place", "/mnt/nfs/data"),
    "no data": ({"data": None}, (), "error data-missing", "camvid"),
    "data nobody reads": ({"config": "configs/scenes.yaml"}, (), "warning data-unused", "street-data"),
    "data said twice": ({}, ("data.root=gs://other/camvid",), "warning data-twice", "gs://other/camvid"),
    # scheduling
    "hours without their letter": ({"max_run": "6"}, (), "warning max-run-short", "6 s"),
    "a wait without flex-start": ({"max_wait": "2h"}, (), "error wait-without-flex", "7200"),
    "spot with a run folder of the machine": (
        {"scheduling": "spot"}, ("out=runs/a",), "error spot-without-checkpoints", "runs/a"),
    "run folder of the machine": ({}, ("out=/tmp/run",), "warning out", "/tmp/run"),
    "run folder in the mount": ({}, ("out=/gcs/street-results/a",), "warning out-mounted", "/gcs/"),
    "spot that does not resume": ({"scheduling": "spot"}, ("checkpoint.resume=false",), "error resume-off", "resume=false"),
    "spot without retries": ({"scheduling": "spot", "disable_retries": True}, (), "error spot-without-retries", "SPOT"),
    "restarts that exclude each other": (
        {"restart_all": True, "disable_retries": True}, (), "error restart-contradiction", "disable_retries"),
    "static ranks of an own image": (
        {"start": "image", "image": "us-central1-docker.pkg.dev/street-scenes/images/own:1"}, (),
        "warning restart-static", "restart_all"),
    "peering and PSC": ({"network": NETWORK, "psc_attachment": "mine"}, (), "error network-twice", "exclude"),
    "ranges without a network": ({"reserved_ip_ranges": ["range"]}, (), "error ranges-without-network", "range"),
    "attachment of another region": (
        {"psc_attachment": "projects/p/regions/us-east1/networkAttachments/a"}, (), "error psc-region", "us-east1"),
    "NFS without a network": (NFS, (), "error mount-without-network", "/mnt/nfs/data"),
    "unknown setting": ({}, ("train.batchsize=8",), "error config", "train.batchsize"),
    "batch smaller than the ranks": ({}, ("train.batch_size=6",), "error batch-small", "8 ranks"),
    "bf16 on T4": ({}, ("train.precision=bf16",), "warning precision", "T4"),
    "weights on this machine": ({}, ("model.init=runs/street",), "error weights-missing", "runs/street"),
    "weights to fetch in a VPC": (
        {"network": NETWORK}, ("model.arch=fpn", "model.encoder_weights=imagenet"), "note weights-download", "NAT"),
    "a tracker on this machine": ({}, ("log.mlflow=http://localhost:5000",), "error mlflow-here", "localhost"),
    "class names that are not sent": (
        {}, ("data.classes=/home/me/classes.txt",), "error file-not-bundled", "/home/me/classes.txt"),
    "program of one's own": ({"program": "launch/sagemaker.py"}, (), "error program", "launch/sagemaker.py"),
    "requirements that are not there": ({"requirements": "/nowhere/r.txt"}, (), "error bundle", "/nowhere/r.txt"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_its_finding(name: str) -> None:
    flags, settings, expected, text = MISTAKES[name]
    level, code = expected.split()
    found = [finding for finding in look(flags, settings) if (finding.level, finding.code) == (level, code)]
    assert found, [f"{finding.level} {finding.code}" for finding in loud(look(flags, settings))]
    assert any(text in finding.message for finding in found), found
    assert all(finding.cure for finding in found), found


def test_processes_of_the_config_are_counted(tmp_path: Path) -> None:
    config = tmp_path / "own.yaml"
    config.write_text("parallel: {procs: 2}\n")
    for batch, expected in ((4, ["gpus-idle"]), (3, ["gpus-idle", "batch-small"])):
        job = load_job(VertexJob, None, {**PLAIN, "config": str(config), "data": None}, [f"train.batch_size={batch}"])
        found = loud(offline(job, root=ROOT, choice=choose(job, region(job), gpus(job))))
        assert [finding.code for finding in found] == expected


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("torch==2.8.0", "error requirement-torch"), ("torch>=2.0,<3", ""),
        ("torchvision<0.20", "warning requirement-torch"),
    ],
)  # fmt: skip
def test_requirements_that_do_not_travel(line: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text(f"{line}\n")
    found = loud(look({"requirements": str(tmp_path / "more.txt")}))
    assert [f"{finding.level} {finding.code}" for finding in found] == [code] * bool(code)
    own = "us-central1-docker.pkg.dev/street-scenes/images/segtrain:1"
    unknown = loud(look({"requirements": str(tmp_path / "more.txt"), "image": own}))
    assert "error requirement-torch" not in [f"{finding.level} {finding.code}" for finding in unknown]


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
def test_a_sound_job_has_no_finding(name: str) -> None:
    assert loud(look(*SOUND[name])) == []

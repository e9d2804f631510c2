"""Mistakes in the description of a Vertex AI job, with the finding of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.core.findings import Finding
from launch.core.job import load_job
from launch.platforms.vertex.images import choose
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.preflight.machines import gpus
from launch.platforms.vertex.preflight.offline import offline
from launch.platforms.vertex.request import region

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
    return offline(job, choice=choose(job, region(job), gpus(job)))


def loud(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level != "note"]


L4 = {"machine": "g2-standard-48", "accelerator": None}
NFS = {"nfs": ["data=10.0.0.2:/camvid"], "data": "/mnt/nfs/data/camvid"}
# what is wrong, level and code of the finding
MISTAKES: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    # names
    "variable with a hyphen": ({"environment": ["NCCL-DEBUG=INFO"]}, (), "error env-name"),
    "variable of Vertex AI": ({"environment": ["CLUSTER_SPEC={}"]}, (), "error environment-reserved"),
    "secret": ({"environment": ["HF_TOKEN=abc"]}, (), "warning secret"),
    "label of the launcher": ({"labels": ["segtrain-job=mine"]}, (), "error label-reserved"),
    "key of another region": (
        {"kms": "projects/p/locations/us-east1/keyRings/r/cryptoKeys/k"}, (), "error kms-region"),
    "no project": ({"project": None}, (), "warning placeholder"),
    "TensorBoard without account": ({"tensorboard": TENSORBOARD}, (), "error tensorboard-service-account"),
    "TensorBoard of another region": (
        {"tensorboard": TENSORBOARD.replace("us-central1", "europe-west4"), "service_account": ACCOUNT}, (),
        "error tensorboard-region"),
    "experiment without account": ({"experiment": "streets"}, (), "error experiment-service-account"),
    "run without experiment": ({"experiment_run": "first"}, (), "error experiment-missing"),
    "experiment and TensorBoard": (
        {"experiment": "streets", "tensorboard": TENSORBOARD, "service_account": ACCOUNT}, (),
        "error experiment-tensorboard"),
    "reservation of another region": (
        {"reservation": "projects/p/zones/us-east1-b/reservations/r"}, (), "error reservation-region"),
    "machine misspelled": ({"machine": "n1-standart-32"}, (), "error machine-unknown"),
    "size that N1 has not": ({"machine": "n1-standard-24"}, (), "warning machine-unknown"),
    "accelerator as in Compute Engine": ({"accelerator": "nvidia-tesla-t4:4"}, (), "error accelerator-unknown"),
    "TPU": ({"accelerator": "TPU_V3:8"}, (), "error accelerator-unknown"),
    "K80": ({"accelerator": "NVIDIA_TESLA_K80:4"}, (), "error accelerator-unknown"),
    "T4 on N2": ({"machine": "n2-standard-32"}, (), "error accelerator-machine"),
    "T4 on G2": ({"machine": "g2-standard-48"}, (), "error accelerator-machine"),
    "three GPUs": ({"accelerator": "NVIDIA_TESLA_T4:3"}, ("train.batch_size=12",), "error accelerator-count"),
    "L4s of another G2": ({"machine": "g2-standard-24", "accelerator": "NVIDIA_L4:4"}, (), "error accelerator-count"),
    "zone as a region": ({"region": "us-central1-a"}, (), "error region-unknown"),
    "one H100 on demand": (
        {"machine": "a3-highgpu-1g", "accelerator": None}, (), "error machine-scheduling"),
    "one process on two hosts": ({"strategy": "single"}, (), "error strategy-hosts"),
    "one process on four GPUs": ({"strategy": "single", "hosts": 1}, (), "warning gpus-idle"),
    "one process on each host with four GPUs": ({}, ("parallel.procs=1",), "warning gpus-idle"),
    "more processes than GPUs": ({}, ("parallel.procs=8",), "error gpus-few"),
    "smddp": ({"strategy": "smddp"}, (), "error strategy-smddp"),
    "image of AWS": (
        {"image": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch:2.14-cu133"}, (), "error image-registry"),
    "image that serves": (
        {"image": "us-docker.pkg.dev/vertex-ai/prediction/pytorch-gpu.2-4:latest"}, (), "error image-not-training"),
    "image with an old torch": (
        {"image": "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.1-13.py310:latest"}, (), "error image-torch"),
    "image for CPUs": (
        {"image": "us-docker.pkg.dev/vertex-ai/training/pytorch-cpu.2-4.py310:latest"}, (), "error image-device"),
    "image of another region": (
        {"image": "europe-west4-docker.pkg.dev/street-scenes/images/segtrain:1"}, (), "warning image-region"),
    "entry point of Google's image": ({"start": "image", "restart_all": True}, (), "error image-entry-point"),
    "torch without code for the GPU": (
        {"machine": "a4-highgpu-8g", "accelerator": None}, (), "error image-gpu"),
    # places
    "output on this machine": ({"output": "runs/"}, (), "error output-uri"),
    "checkpoints on this machine": ({"checkpoints": "runs/a"}, (), "error checkpoints-uri"),
    "bucket of the example": ({"output": "gs://MY-BUCKET/jobs"}, (), "warning placeholder"),
    "results inside the data": ({"output": "gs://street-data/camvid/jobs"}, (), "warning results-in-data"),
    "class names nobody gives": ({}, ("data.layout=folders",), "warning classes-unknown"),
    "data through the mount": ({"data": "/gcs/street-data/camvid"}, (), "warning data-mounted"),
    "data of this machine": ({"data": "/home/me/CamVid"}, (), "error data-place"),
    "data of a web server": ({"data": "ftp://example.com/camvid"}, (), "error data-place"),
    "data in S3": ({"data": "s3://street-data/camvid"}, (), "warning data-elsewhere"),
    "data in a mount that is not there": ({"data": "/mnt/nfs/data"}, (), "error data-place"),
    "no data": ({"data": None}, (), "error data-missing"),
    "data nobody reads": ({"config": "configs/scenes.yaml"}, (), "warning data-unused"),
    "data said twice": ({}, ("data.root=gs://other/camvid",), "warning data-twice"),
    # scheduling
    "hours without their letter": ({"max_run": "6"}, (), "warning max-run-short"),
    "a wait without flex-start": ({"max_wait": "2h"}, (), "error wait-without-flex"),
    "spot with a run folder of the machine": (
        {"scheduling": "spot"}, ("out=runs/a",), "error spot-without-checkpoints"),
    "run folder of the machine": ({}, ("out=/tmp/run",), "warning out"),
    "run folder in the mount": ({}, ("out=/gcs/street-results/a",), "warning out-mounted"),
    "spot that does not resume": ({"scheduling": "spot"}, ("checkpoint.resume=false",), "error resume-off"),
    "spot without retries": ({"scheduling": "spot", "disable_retries": True}, (), "error spot-without-retries"),
    "restarts that exclude each other": (
        {"restart_all": True, "disable_retries": True}, (), "error restart-contradiction"),
    "static ranks of an own image": (
        {"start": "image", "image": "us-central1-docker.pkg.dev/street-scenes/images/own:1"}, (),
        "warning restart-static"),
    "peering and PSC": ({"network": NETWORK, "psc_attachment": "mine"}, (), "error network-twice"),
    "ranges without a network": ({"reserved_ip_ranges": ["range"]}, (), "error ranges-without-network"),
    "attachment of another region": (
        {"psc_attachment": "projects/p/regions/us-east1/networkAttachments/a"}, (), "error psc-region"),
    "NFS without a network": (NFS, (), "error mount-without-network"),
    "unknown setting": ({}, ("train.batchsize=8",), "error config"),
    "batch smaller than the ranks": ({}, ("train.batch_size=6",), "error batch-small"),
    "bf16 on T4": ({}, ("train.precision=bf16",), "warning precision"),
    "weights on this machine": ({}, ("model.init=runs/street",), "error weights-missing"),
    "weights to fetch in a VPC": (
        {"network": NETWORK}, ("model.arch=fpn", "model.encoder_weights=imagenet"), "note weights-download"),
    "a tracker on this machine": ({}, ("log.mlflow=http://localhost:5000",), "error mlflow-here"),
    "class names that are not sent": (
        {}, ("data.classes=/home/me/classes.txt",), "error file-not-bundled"),
    "program of one's own": ({"program": "launch/sagemaker.py"}, (), "error program"),
    "requirements that are not there": ({"requirements": "/nowhere/r.txt"}, (), "error bundle"),
}  # fmt: skip

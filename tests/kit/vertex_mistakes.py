"""Mistakes in the description of a Vertex AI job. Their findings: tests/golden/findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch.core.findings import Finding
from launch.core.job import load_job
from launch.platforms.vertex.images import choose
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.preflight.machines import gpus
from launch.platforms.vertex.preflight.offline import offline
from launch.platforms.vertex.request import region

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


L4 = {"machine": "g2-standard-48", "accelerator": None}
NFS = {"nfs": ["data=10.0.0.2:/camvid"], "data": "/mnt/nfs/data/camvid"}
# what is wrong: flags, settings
MISTAKES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # names
    "variable with a hyphen": ({"environment": ["NCCL-DEBUG=INFO"]}, ()),
    "variable of Vertex AI": ({"environment": ["CLUSTER_SPEC={}"]}, ()),
    "secret": ({"environment": ["HF_TOKEN=abc"]}, ()),
    "label of the launcher": ({"labels": ["segtrain-job=mine"]}, ()),
    "label with a capital": ({"labels": ["team=Vision"]}, ()),
    "key of another region": (
        {"kms": "projects/p/locations/us-east1/keyRings/r/cryptoKeys/k"}, ()),
    "no project": ({"project": None}, ()),
    "TensorBoard without account": ({"tensorboard": TENSORBOARD}, ()),
    "TensorBoard of another region": (
        {"tensorboard": TENSORBOARD.replace("us-central1", "europe-west4"), "service_account": ACCOUNT}, ()),
    "experiment without account": ({"experiment": "streets"}, ()),
    "run without experiment": ({"experiment_run": "first"}, ()),
    "experiment and TensorBoard": (
        {"experiment": "streets", "tensorboard": TENSORBOARD, "service_account": ACCOUNT}, ()),
    "reservation of another region": (
        {"reservation": "projects/p/zones/us-east1-b/reservations/r"}, ()),
    "machine misspelled": ({"machine": "n1-standart-32"}, ()),
    "size that N1 has not": ({"machine": "n1-standard-24"}, ()),
    "accelerator as in Compute Engine": ({"accelerator": "nvidia-tesla-t4:4"}, ()),
    "TPU": ({"accelerator": "TPU_V3:8"}, ()),
    "K80": ({"accelerator": "NVIDIA_TESLA_K80:4"}, ()),
    "T4 on N2": ({"machine": "n2-standard-32"}, ()),
    "T4 on G2": ({"machine": "g2-standard-48"}, ()),
    "three GPUs": ({"accelerator": "NVIDIA_TESLA_T4:3"}, ("train.batch_size=12",)),
    "L4s of another G2": ({"machine": "g2-standard-24", "accelerator": "NVIDIA_L4:4"}, ()),
    "zone as a region": ({"region": "us-central1-a"}, ()),
    "one H100 on demand": (
        {"machine": "a3-highgpu-1g", "accelerator": None}, ()),
    "one process on two hosts": ({"strategy": "single"}, ()),
    "one process on four GPUs": ({"strategy": "single", "hosts": 1}, ()),
    "one process on each host with four GPUs": ({}, ("parallel.procs=1",)),
    "more processes than GPUs": ({}, ("parallel.procs=8",)),
    "smddp": ({"strategy": "smddp"}, ()),
    "image of AWS": (
        {"image": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch:2.14-cu133"}, ()),
    "image that serves": (
        {"image": "us-docker.pkg.dev/vertex-ai/prediction/pytorch-gpu.2-4:latest"}, ()),
    "image with an old torch": (
        {"image": "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.1-13.py310:latest"}, ()),
    "image for CPUs": (
        {"image": "us-docker.pkg.dev/vertex-ai/training/pytorch-cpu.2-4.py310:latest"}, ()),
    "image of another region": (
        {"image": "europe-west4-docker.pkg.dev/street-scenes/images/segtrain:1"}, ()),
    "entry point of Google's image": ({"start": "image", "restart_all": True}, ()),
    "torch without code for the GPU": (
        {"machine": "a4-highgpu-8g", "accelerator": None}, ()),
    # places
    "output on this machine": ({"output": "runs/"}, ()),
    "checkpoints on this machine": ({"checkpoints": "runs/a"}, ()),
    "bucket with a capital": ({"output": "gs://Street-results/jobs"}, ()),
    "data in a bucket with a capital": ({"data": "gs://Street-data/camvid"}, ()),
    "bucket of the example": ({"output": "gs://MY-BUCKET/jobs"}, ()),
    "results inside the data": ({"output": "gs://street-data/camvid/jobs"}, ()),
    "class names nobody gives": ({}, ("data.layout=folders",)),
    "data through the mount": ({"data": "/gcs/street-data/camvid"}, ()),
    "data of this machine": ({"data": "/home/me/CamVid"}, ()),
    "data of a web server": ({"data": "ftp://example.com/camvid"}, ()),
    "data in S3": ({"data": "s3://street-data/camvid"}, ()),
    "data in a mount that is not there": ({"data": "/mnt/nfs/data"}, ()),
    "no data": ({"data": None}, ()),
    "data nobody reads": ({"config": "configs/scenes.yaml"}, ()),
    "data said twice": ({}, ("data.root=gs://other/camvid",)),
    # scheduling
    "hours without their letter": ({"max_run": "6"}, ()),
    "no time": ({"max_run": "0h"}, ()),
    "a wait without flex-start": ({"max_wait": "2h"}, ()),
    "spot with a run folder of the machine": (
        {"scheduling": "spot"}, ("out=runs/a",)),
    "run folder of the machine": ({}, ("out=/tmp/run",)),
    "run folder in the mount": ({}, ("out=/gcs/street-results/a",)),
    "spot that does not resume": ({"scheduling": "spot"}, ("checkpoint.resume=false",)),
    "spot without retries": ({"scheduling": "spot", "disable_retries": True}, ()),
    "restarts that exclude each other": (
        {"restart_all": True, "disable_retries": True}, ()),
    "static ranks of an own image": (
        {"start": "image", "image": "us-central1-docker.pkg.dev/street-scenes/images/own:1"}, ()),
    "peering and PSC": ({"network": NETWORK, "psc_attachment": "mine"}, ()),
    "ranges without a network": ({"reserved_ip_ranges": ["range"]}, ()),
    "attachment of another region": (
        {"psc_attachment": "projects/p/regions/us-east1/networkAttachments/a"}, ()),
    "NFS without a network": (NFS, ()),
    "unknown setting": ({}, ("train.batchsize=8",)),
    "batch smaller than the ranks": ({}, ("train.batch_size=6",)),
    "bf16 on T4": ({}, ("train.precision=bf16",)),
    "weights on this machine": ({}, ("model.init=runs/street",)),
    "weights to fetch in a VPC": (
        {"network": NETWORK}, ("model.arch=fpn", "model.encoder_weights=imagenet")),
    "a tracker on this machine": ({}, ("log.mlflow=http://localhost:5000",)),
    "class names that are not sent": (
        {}, ("data.classes=/home/me/classes.txt",)),
    "program of one's own": ({"program": "launch/sagemaker.py"}, ()),
    "requirements that are not there": ({"requirements": "/nowhere/r.txt"}, ()),
}  # fmt: skip

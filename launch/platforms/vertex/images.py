"""Chooses the container image of a Vertex AI job, and checks an image that the user names.

The list of Google's prebuilt images comes from its documentation (page "Prebuilt containers for
training") and from public jobs that use them. Each image has three addresses, one per continent:
us, europe, and asia.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from launch.core.findings import Finding, error, warning
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.job_parts import Accelerator
from launch.platforms.vertex.machines import GPUS
from segtrain.machines import gpus

DATED = "Google's prebuilt PyTorch images, as known on 2026-11-23"
OLDEST_TORCH = (2, 4)  # segtrain's own minimum (pyproject.toml)
_CONTINENTS = {
    "us": "us",
    "europe": "europe",
    "asia": "asia",
    "australia": "asia",
    "me": "europe",
    "africa": "europe",
}
_PREBUILT = re.compile(
    r"(?:us|europe|asia)-docker\.pkg\.dev/vertex-ai/(training|prediction)/([a-z0-9]+)-(cpu|gpu)\.(\d+)-(\d+)"
)
OWN = re.compile(r"([a-z0-9-]+)-docker\.pkg\.dev/([^/]+)/([^/]+)/([^:@]+)(?:[:@].+)?")


# The newest: versions of torch, Python, and CUDA, and the compute capabilities that torch has code
# for.
TORCH, PYTHON, CUDA = "2.4", "3.10", "12.1"
ARCHES = ("sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")


@dataclass(frozen=True)
class VertexImageChoice:
    uri: str
    why: str
    findings: list[Finding] = field(default_factory=list)
    torch: str = ""  # its version; "" if unknown


def choose(job: VertexJob, region: str, accelerator: Accelerator | None) -> VertexImageChoice:
    """The job's own image, or Google's newest prebuilt image for the machine, with findings about
    it.
    """
    if job.image:
        match = _PREBUILT.match(job.image)
        torch = ".".join(match.groups()[-2:]) if match and match[2] == "pytorch" else ""
        return VertexImageChoice(job.image, "", _own_image(job, region, accelerator), torch)
    device = "gpu" if accelerator else "cpu"
    continent = _CONTINENTS.get(region.partition("-")[0], "us")
    uri = f"{continent}-docker.pkg.dev/vertex-ai/training/{_name(device)}:latest"
    why = (
        f"Google's newest prebuilt image with torch for {'GPUs' if accelerator else 'CPUs'} "
        f"({DATED})"
    )
    findings = [*_starts(job, uri, prebuilt=True), *_code_for(accelerator, uri)]
    return VertexImageChoice(uri, why, findings, TORCH)


def _name(device: str) -> str:
    return f"pytorch-{device}.{TORCH.replace('.', '-')}.py{PYTHON.replace('.', '')}"


def _own_image(job: VertexJob, region: str, accelerator: Accelerator | None) -> list[Finding]:
    uri, findings = job.image, []
    prebuilt = _PREBUILT.match(uri)
    findings += _starts(job, uri, prebuilt=prebuilt is not None)
    if prebuilt:
        return [*findings, *_prebuilt(prebuilt, uri, accelerator)]
    own = OWN.fullmatch(uri)
    host = uri.partition("/")[0]
    if (
        own is None
        and "." in host
        and not re.fullmatch(r"((us|eu|asia)\.)?gcr\.io|docker\.io|.+\.pkg\.dev", host)
    ):
        findings.append(
            error(
                "image-registry",
                f"image={uri!r}: Vertex AI pulls from Artifact Registry and Docker Hub, not "
                f"from {host}",
                f"push it to {region}-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG",
            )
        )
    elif (
        own is not None and own[1] != region and own[1] != _CONTINENTS.get(region.partition("-")[0])
    ):
        findings.append(
            warning(
                "image-region",
                f"image={uri!r} is in {own[1]}, the job in {region}: each host pulls it across "
                "regions, which is slower and costs a fee",
                f"copy it to {region}-docker.pkg.dev, or --region {own[1]}",
            )
        )
    return findings


def _prebuilt(match: re.Match[str], uri: str, accelerator: Accelerator | None) -> list[Finding]:
    kind, framework, device, *torch = match.groups()
    cure = f"leave --image out: {_name('gpu')} is chosen"
    if kind == "prediction":
        return [
            error(
                "image-not-training", f"image={uri!r} serves predictions: it does not train", cure
            )
        ]
    if framework != "pytorch":
        return [error("image-not-training", f"image={uri!r} has no PyTorch", cure)]
    if tuple(map(int, torch)) < OLDEST_TORCH:
        return [
            error(
                "image-torch",
                f"image={uri!r} has torch {'.'.join(torch)}; segtrain needs 2.4",
                cure,
            )
        ]
    if device == "cpu" and accelerator:
        return [
            error(
                "image-device", f"image={uri!r} is for CPUs: {accelerator.type} would be idle", cure
            )
        ]
    if device == "gpu" and not accelerator:
        return [
            warning("image-device", f"image={uri!r} is for GPUs, and the machine has none", cure)
        ]
    return _code_for(accelerator, uri) if ".".join(torch) == TORCH else []


def _starts(job: VertexJob, uri: str, prebuilt: bool) -> list[Finding]:
    if job.start != "image" or not prebuilt:
        return []
    return [
        error(
            "image-entry-point",
            f"start=image: {uri} is Google's, and has no entry point that trains",
            "--start bundle, or --image with an image of your own whose entry point is "
            "`python -m segtrain.platforms.vertex`",
        )
    ]


def _code_for(accelerator: Accelerator | None, uri: str) -> list[Finding]:
    """An error if the image's torch has no code for the GPU. Code runs on the same major compute
    capability with the same or a later minor version.
    """
    gpu = gpus().get(GPUS.get(accelerator.type, "")) if accelerator else None
    if gpu is None:
        return []
    wanted = int(gpu.arch.removeprefix("sm_"))
    if any(int(arch[3:]) <= wanted and int(arch[3:]) // 10 == wanted // 10 for arch in ARCHES):
        return []
    return [
        error(
            "image-gpu",
            f"image={uri!r}: its torch {TORCH} with CUDA {CUDA} has no code for {gpu.name} "
            f"({gpu.arch})",
            "--image with an image of your own whose torch knows that GPU (CUDA 12.8 or later "
            "for Blackwell)",
            DATED,
        )
    ]

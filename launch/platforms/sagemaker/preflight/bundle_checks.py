"""Checks of the code bundle: syntax, requirements, and native decoder."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from launch.core import native
from launch.core.findings import Finding, error, note
from launch.core.job_checks import Files
from launch.core.requirements import requirements
from launch.platforms.sagemaker.images import Image, SageMakerImageChoice
from launch.platforms.sagemaker.job import SageMakerJob

# Minor version of glibc 2 in AWS's images: Amazon Linux 2023 from torch 2.11 on, else Ubuntu 22.04.
AL2023, UBUNTU_22 = 34, 35


def decoder_checks(choice: SageMakerImageChoice) -> Iterator[Finding]:
    """A note if the bundle has no native decoder that runs in the image. AWS's images contain none,
    and decoding without it takes several times the CPU time.
    """
    if choice.image is None:  # the user's own image may contain the decoder
        return
    files, problem = native.carried()
    needs, has = native.glibc(files), glibc_of(choice.image)
    if needs > has:
        problem = f"the decoder built on this machine needs glibc 2.{needs}, the image has 2.{has}"
    if problem:
        yield note(
            "native-decoder",
            f"the native decoder does not travel to image {choice.image.tag}: {problem}; reading "
            "an image takes several times the CPU",
            "launch from Linux on x86-64 where segtrain doctor finds the native decoder, or "
            "--image made with docker/sagemaker/Dockerfile",
        )


def glibc_of(image: Image) -> int:
    """The minor version of glibc 2 in one of AWS's images, as ``native.glibc`` returns it."""
    return AL2023 if "amzn2023" in image.tag else UBUNTU_22


def bundle_checks(
    job: SageMakerJob, files: Files, choice: SageMakerImageChoice
) -> Iterator[Finding]:
    minor = int(choice.image.python.split(".")[1]) if choice.image else 10
    for name, item in files.items():
        if name.endswith(".py") and not name.startswith("segtrain/"):  # the user's own code
            yield from _syntax(name, _read(item), minor)
    text = _read(files.get("requirements.txt", b"")).decode("utf-8", "replace")
    yield from requirements(
        text,
        choice.image.tag if choice.image else choice.uri,
        choice.image.torch if choice.image else "",
    )


def _syntax(name: str, source: bytes, minor: int) -> Iterator[Finding]:
    """An error for what the image's Python cannot read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source, feature_version=(3, minor))
    except (SyntaxError, ValueError) as problem:
        where = (
            f"line {getattr(problem, 'lineno', None) or '?'}: {getattr(problem, 'msg', problem)}"
        )
        yield error("code-syntax", f"{name}, {where} (read as Python 3.{minor})", "fix it")


def _read(item: Path | bytes) -> bytes:
    return item if isinstance(item, bytes) else item.read_bytes()

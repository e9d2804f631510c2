"""The choice of AWS's PyTorch image for a job: which image, why, and what is wrong with the
instance type and image that were asked for.

An image runs on a GPU if its torch has code for the same major compute capability and for the same
or a lower minor one. Only images of torch 2.5 and older have SMDDP, whose import fails on instance
types that are not in its list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date

from launch.core.findings import Finding, error, note, warning
from launch.platforms.sagemaker.instances import INSTANCES, about_known, about_type
from launch.platforms.sagemaker.regions import ACCOUNT, ACCOUNTS, ACCOUNTS_FROM, is_region
from segtrain.machines import Machine

STRATEGIES = ("single", "ddp", "fsdp", "dp", "smddp")
OLDEST_TORCH = (2, 4)  # the oldest torch that segtrain supports


@dataclass(frozen=True)
class Image:
    """One of AWS's images. ``arches``: the GPU architectures that its torch has code for, () for a
    CPU image; ``cuda``: its CUDA version, "" for a CPU image; ``smddp``: its SMDDP version, None
    without SMDDP; ``patched_until``: the day on which AWS's patches end, None if not known.
    """

    repository: str
    tag: str
    torch: str
    python: str
    cuda: str
    arches: tuple[str, ...]
    smddp: str | None
    patched_until: date | None
    source: str


@dataclass(frozen=True)
class SageMakerImageChoice:
    image: Image | None  # None: the image that was asked for is not in the table
    uri: str
    why: str
    findings: list[Finding] = field(default_factory=list)


DLC = "aws/deep-learning-containers"
IMAGES_DATED = date(2026, 11, 22)  # the day on which the table was last compared with AWS's list
OLD_AFTER_DAYS = 120  # AWS publishes a new torch about every two months
# GPU architectures that an image's torch has code for: PyTorch's own lists by CUDA version
# (RELEASE.md and .ci/manywheel/build_cuda.sh; pytorch#157517, #172663, #182849, #197555). AWS built
# torch itself for its images up to 2.6: for these, only the architectures that are also in the
# TORCH_CUDA_ARCH_LIST of their Dockerfile.
CU124 = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90")  # CUDA 12.6, too
# CUDA 13.0 to 13.3, too: pytorch#197555 (torch 2.14)
CU128 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
CU129 = ("sm_70", *CU128)
# the day on which AWS's patches end: docs/src/legacy/legacy_support.yml,
# docs/src/data/pytorch-training
PATCHED = {
    "2.4.0": date(2025, 7, 24),
    "2.5.1": date(2025, 10, 29),
    "2.6.0": date(2026, 1, 29),
    "2.7.1": date(2026, 4, 23),
    "2.8.0": date(2026, 8, 6),
    "2.9.0": date(2026, 10, 15),
    "2.10.0": date(2027, 1, 21),
}


def _gpu(
    tag: str, torch: str, python: str, cuda: str, arches: tuple[str, ...], smddp: str | None = None
) -> Image:
    source = f"{DLC} b872b749 (2026-07-31), pytorch/training/docker"
    return Image(
        "pytorch-training", tag, torch, python, cuda, arches, smddp, PATCHED[torch], source
    )


def _al2023(
    tag: str, torch: str, cuda: str, until: date, commit: str = "e0ecedea (2026-08-21)"
) -> Image:
    source = f"{DLC} {commit}, docs/src/data/pytorch"
    return Image("pytorch", tag, torch, "3.12", cuda, CU128 if cuda else (), None, until, source)


IMAGES: tuple[Image, ...] = (  # newest first
    _al2023(
        "2.14-cu133-amzn2023-sagemaker",
        "2.14.0",
        "13.3",
        date(2027, 9, 28),
        "1f8757ef (read 2026-11-22)",
    ),
    _al2023(
        "2.14-cpu-amzn2023-sagemaker", "2.14.0", "", date(2027, 9, 28), "7b9affb2 (read 2026-11-22)"
    ),
    _al2023("2.13-cu133-amzn2023-sagemaker", "2.13.0", "13.3", date(2027, 7, 20)),
    _al2023("2.13-cpu-amzn2023-sagemaker", "2.13.0", "", date(2027, 7, 20)),
    _al2023("2.12-cu130-amzn2023-sagemaker", "2.12.1", "13.0", date(2027, 7, 2)),
    _al2023("2.12-cpu-amzn2023-sagemaker", "2.12.1", "", date(2027, 7, 2)),
    _al2023("2.11-cu130-amzn2023-sagemaker", "2.11.0", "13.0", date(2027, 4, 30)),
    _al2023("2.11-cpu-amzn2023-sagemaker", "2.11.0", "", date(2027, 4, 30)),
    _gpu("2.10.0-gpu-py313", "2.10.0", "3.13", "13.0", CU128),
    _gpu("2.9.0-gpu-py312", "2.9.0", "3.12", "13.0", CU128),
    _gpu("2.8.0-gpu-py312", "2.8.0", "3.12", "12.9", CU129),
    _gpu("2.7.1-gpu-py312", "2.7.1", "3.12", "12.8", CU128),
    _gpu("2.6.0-gpu-py312", "2.6.0", "3.12", "12.6", CU124),
    _gpu("2.5.1-gpu-py311", "2.5.1", "3.11", "12.4", CU124, "2.6.0"),
    _gpu("2.4.0-gpu-py311", "2.4.0", "3.11", "12.4", CU124, "2.5.0"),
)


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def capability(arch: str) -> tuple[int, int]:
    digits = arch.removeprefix("sm_")
    return int(digits[:-1]), int(digits[-1])


def runs_on(image: Image, instance: Machine) -> bool:
    """Does the image have code for the instance's GPU? CPU images fit no GPU instance, GPU images
    no CPU instance.
    """
    if not instance.arch or not image.arches:
        return not instance.arch and not image.arches
    major, minor = capability(instance.arch)
    return any(
        capability(arch)[0] == major and capability(arch)[1] <= minor for arch in image.arches
    )


def uri(image: Image, region: str) -> str:
    """The image's address in AWS's registry of a region. An unknown region gets the account of most
    regions.
    """
    suffix = ".cn" if region.startswith("cn-") else ""
    registry = f"{ACCOUNTS.get(region, ACCOUNT)}.dkr.ecr.{region}.amazonaws.com{suffix}"
    return f"{registry}/{image.repository}:{image.tag}"


def find(wanted: str) -> Image | None:
    """The image of the table with the repository and tag of ``wanted``, in any registry. AWS's long
    tags match too.
    """
    name, _, tag = wanted.rpartition("/")[2].partition("@")[0].partition(":")
    short = re.sub(r"^(\d+\.\d+)\.\d+(?=-.*-amzn2023-sagemaker$)", r"\1", tag)
    short = re.sub(r"^(\S+-py\d+)-.*-sagemaker$", r"\1", short)
    return next(
        (
            image
            for image in IMAGES
            if (image.repository, image.tag) in ((name, tag), (name, short))
        ),
        None,
    )


def choose(
    instance_type: str,
    strategy: str,
    region: str,
    wanted: str = "",
    today: date | None = None,
    unknown_type_ok: bool = False,
) -> SageMakerImageChoice:
    """Choose the image for an instance type and a strategy. Problems are in the findings; nothing
    is changed silently.

    ``unknown_type_ok``: a type that neither the table nor botocore knows is a warning, not an
    error.
    """
    today = today or date.today()
    instance = INSTANCES.get(instance_type)
    findings = [] if wanted else _about_region(region)
    findings += about_type(instance_type, image=wanted, unknown_ok=unknown_type_ok)
    if instance is not None:
        findings += about_known(instance, strategy, region)
    if wanted:
        image = find(wanted)
        findings += _about_wanted(image, wanted, instance, strategy, today)
        return SageMakerImageChoice(image, wanted, "asked for", findings)
    findings += _about_table(today)
    if instance is None:
        gpus = re.match(r"ml\.(c|m|r|t|x|z|i|d|h)\d", instance_type) is None
        image = next(image for image in IMAGES if bool(image.arches) == gpus)
        why = (
            f"the newest for {'GPUs' if gpus else 'CPUs'}, by the type's name: the type is not "
            "in the table"
        )
        return SageMakerImageChoice(image, uri(image, region), why, findings)
    image, why = _pick(instance, strategy, today)
    return SageMakerImageChoice(image, uri(image, region), why, findings + _about_age(image, today))


def _about_region(region: str) -> list[Finding]:
    if region in ACCOUNTS:
        return []
    if not is_region(region):
        message = f"region {region!r} does not look like a region of AWS"
        return [error("region-name", message, "--region us-east-1, or another name of that form")]
    message = (
        f"region {region!r} is not in the table of AWS's image registries: the image's address is "
        f"made with the account of most regions, {ACCOUNT}, which may be wrong there"
    )
    cure = (
        "check --region; or name the image's address: --image "
        "ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG"
    )
    return [warning("image-region", message, cure, ACCOUNTS_FROM)]


def _about_table(today: date) -> list[Finding]:
    days = (today - IMAGES_DATED).days
    if days <= OLD_AFTER_DAYS:
        return []
    message = (
        f"the table of images is from {IMAGES_DATED}, {days} days ago: AWS is likely to "
        "have newer ones"
    )
    return [note("images-old", message, "--image to take a newer one, or update segtrain", DLC)]


def _pick(instance: Machine, strategy: str, today: date) -> tuple[Image, str]:
    """The newest image that runs on the instance, for AWS patches no older image for longer. For
    smddp: the newest with SMDDP, if there is one.
    """
    fit = [image for image in IMAGES if runs_on(image, instance)]
    with_smddp = [image for image in fit if image.smddp]
    if strategy == "smddp" and with_smddp:
        return with_smddp[0], f"the newest with SMDDP ({with_smddp[0].smddp})"
    what = f"{instance.gpu} ({instance.arch})" if instance.arch else "CPUs"
    patched = f", patched until {fit[0].patched_until}" if _patched(fit[0], today) else ""
    return fit[0], f"the newest with code for {what}{patched}"


def _patched(image: Image, today: date) -> bool:
    return image.patched_until is not None and image.patched_until >= today


def _about_wanted(
    image: Image | None, wanted: str, instance: Machine | None, strategy: str, today: date
) -> list[Finding]:
    match = re.search(r"/pytorch-training:(\d+)\.(\d+)", wanted)
    if match and (int(match[1]), int(match[2])) < OLDEST_TORCH:
        message = (
            f"image {wanted!r} has torch {match[1]}.{match[2]}; segtrain needs "
            f"{'.'.join(map(str, OLDEST_TORCH))}"
        )
        return [error("image-torch", message, "leave --image out, or take a newer one")]
    if image is None:
        message = (
            f"image {wanted!r} is not in the table: whether it fits the type and has what "
            "segtrain needs is not known"
        )
        return [note("image-unknown", message)]
    findings = _about_age(image, today)
    if instance is not None and not runs_on(image, instance):
        findings.append(_unfit(image, instance))
    if strategy == "smddp" and not image.smddp:
        have = ", ".join(other.tag for other in IMAGES if other.smddp)
        message = f"strategy smddp: image {image.tag} has no SMDDP (these have: {have})"
        findings.append(
            error(
                "image-smddp",
                message,
                "leave --image out, or --strategy ddp",
                image.source,
            )
        )
    return findings


def _unfit(image: Image, instance: Machine) -> Finding:
    if not image.arches:
        message = (
            f"image {image.tag} is a CPU image, {instance.name} has {instance.gpus} {instance.gpu}"
        )
    elif not instance.arch:
        message = (
            f"image {image.tag} is a GPU image, {instance.name} has no GPU: it runs, but is "
            "several GB larger than it need be"
        )
        return warning("image-gpu", message, "leave --image out: the launcher picks", image.source)
    else:
        message = (
            f"image {image.tag}: its torch has no code for {instance.gpu} ({instance.arch}) of "
            f"{instance.name}, only for {', '.join(image.arches)}"
        )
    return error("image-gpu", message, "leave --image out: the launcher picks", image.source)


def _about_age(image: Image, today: date) -> list[Finding]:
    if _patched(image, today):
        return []
    since = f" since {image.patched_until}" if image.patched_until else ""
    message = f"image {image.tag}: AWS has not patched it{since}, security holes stay open"
    return [warning("image-unpatched", message, "", image.source)]

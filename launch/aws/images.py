"""Which of AWS's PyTorch images does a job run in, why that one, and what speaks against the asked-for pair?

An image runs on a GPU when its torch holds code for it: the same major compute capability, and no later minor one. SMDDP is
in the images of torch 2.0 to 2.5 alone, and from its version 2.3.0 on refuses other types than its list at import.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date

from launch.aws.instances import INSTANCES, SMDDP_TYPES, SMDDP_TYPES_FROM, Instance, like, nearest
from launch.aws.regions import ACCOUNT, ACCOUNTS, ACCOUNTS_FROM, OFFERED_FROM, offered, regions_of
from launch.findings import Finding

STRATEGIES = ("single", "ddp", "fsdp", "dp", "smddp")
OLDEST_TORCH = (2, 0, 1)  # segtrain's own floor (pyproject.toml)
SMDDP_CHECKS_TYPE = (2, 3, 0)  # from this SMDDP on, import fails on other types than SMDDP_TYPES


@dataclass(frozen=True)
class Image:
    """``arches``: the GPUs that the torch inside has code for, () for CPU; ``cuda``: the image's, "" for CPU; ``smddp``: its
    version in the image; ``patched_until``: AWS's end of patches, None: not known.
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
class Choice:
    image: Image | None  # None: a wanted image that is not in the table
    uri: str
    why: str
    findings: list[Finding] = field(default_factory=list)


DLC = "aws/deep-learning-containers"
# What the torch inside has code for: PyTorch's own lists by CUDA version (RELEASE.md and .ci/manywheel/build_cuda.sh;
# pytorch#157517, #172663, #182849, #197555), for the images up to 2.6 as far as TORCH_CUDA_ARCH_LIST of their Dockerfile
# agrees: AWS built those itself.
CU117 = ("sm_70", "sm_75", "sm_80", "sm_86")
CU118_TO_126 = (*CU117, "sm_90")
CU128 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")  # and CUDA 13: torch 2.13 is that of the cu130 index
CU129 = ("sm_70", *CU128)
PATCHED = {  # AWS's end of patches: docs/src/legacy/legacy_support.yml and docs/src/data/pytorch-training
    "1.13.1": date(2024, 10, 28),
    "2.0.1": date(2024, 3, 15),
    "2.1.0": date(2024, 10, 4),
    "2.2.0": date(2025, 1, 30),
    "2.3.0": date(2025, 4, 24),
    "2.4.0": date(2025, 7, 24),
    "2.5.1": date(2025, 10, 29),
    "2.6.0": date(2026, 1, 29),
    "2.7.1": date(2026, 4, 23),
    "2.8.0": date(2026, 8, 6),
    "2.9.0": date(2026, 10, 15),
    "2.10.0": date(2027, 1, 21),
}


def _gpu(tag: str, torch: str, python: str, cuda: str, arches: tuple[str, ...], smddp: str | None = None) -> Image:
    source = f"{DLC} b872b749 (2026-07-31), pytorch/training/docker"
    return Image("pytorch-training", tag, torch, python, cuda, arches, smddp, PATCHED[torch], source)


def _al2023(tag: str, torch: str, cuda: str, until: date) -> Image:
    source = f"{DLC} e0ecedea (2026-08-21), docs/src/data/pytorch"
    return Image("pytorch", tag, torch, "3.12", cuda, CU128 if cuda else (), None, until, source)


IMAGES: tuple[Image, ...] = (  # newest first
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
    _gpu("2.6.0-gpu-py312", "2.6.0", "3.12", "12.6", CU118_TO_126),
    _gpu("2.5.1-gpu-py311", "2.5.1", "3.11", "12.4", CU118_TO_126, "2.6.0"),
    _gpu("2.4.0-gpu-py311", "2.4.0", "3.11", "12.4", CU118_TO_126, "2.5.0"),
    _gpu("2.3.0-gpu-py311", "2.3.0", "3.11", "12.1", CU118_TO_126, "2.3.0"),
    _gpu("2.2.0-gpu-py310", "2.2.0", "3.10", "12.1", CU118_TO_126, "2.2.0"),
    _gpu("2.1.0-gpu-py310", "2.1.0", "3.10", "12.1", CU118_TO_126, "2.1.0"),
    _gpu("2.0.1-gpu-py310", "2.0.1", "3.10", "11.8", CU118_TO_126, "2.0.1"),
    _gpu("1.13.1-gpu-py39", "1.13.1", "3.9", "11.7", CU117, "1.7.0"),
)


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def capability(arch: str) -> tuple[int, int]:
    digits = arch.removeprefix("sm_")
    return int(digits[:-1]), int(digits[-1])


def runs_on(image: Image, instance: Instance) -> bool:
    """Is there code for the instance's GPU in the image? A CPU image is no use to a GPU, and the other way round."""
    if not instance.arch or not image.arches:
        return not instance.arch and not image.arches
    major, minor = capability(instance.arch)
    return any(capability(arch)[0] == major and capability(arch)[1] <= minor for arch in image.arches)


def uri(image: Image, region: str) -> str:
    """The address in AWS's registry of that region; for an unknown region that of the common account."""
    suffix = ".cn" if region.startswith("cn-") else ""
    return f"{ACCOUNTS.get(region, ACCOUNT)}.dkr.ecr.{region}.amazonaws.com{suffix}/{image.repository}:{image.tag}"


def find(wanted: str) -> Image | None:
    """The row of the table that an address names, whatever its registry and region."""
    name, _, tag = wanted.rpartition("/")[2].partition(":")
    return next((one for one in IMAGES if (one.repository, one.tag) == (name, tag)), None)


def choose(instance_type: str, strategy: str, region: str, wanted: str = "", today: date | None = None) -> Choice:
    """The image for a type and a strategy; what is wrong with the pair is in the findings, and nothing is changed silently."""
    today = today or date.today()
    instance = INSTANCES.get(instance_type)
    findings = _about_type(instance_type, instance, strategy, region)
    if wanted:
        image = find(wanted)
        findings += _about_wanted(image, wanted, instance, strategy, today)
        return Choice(image, wanted, "asked for", findings)
    if instance is None:
        image = next(one for one in IMAGES if one.arches)
        return Choice(image, uri(image, region), "the newest, as the type is not known", findings)
    image, why = _pick(instance, strategy, today)
    return Choice(image, uri(image, region), why, findings + _about_age(image, today))


def _pick(instance: Instance, strategy: str, today: date) -> tuple[Image, str]:
    """The newest that runs: AWS patches no older one for longer."""
    fit = [one for one in IMAGES if runs_on(one, instance)]
    if strategy == "smddp":
        checked = instance.name not in SMDDP_TYPES
        some = [one for one in fit if one.smddp and not (checked and version(one.smddp) >= SMDDP_CHECKS_TYPE)]
        if some:
            what = f"whose SMDDP does not refuse {instance.name} at import" if checked else "with SMDDP"
            return some[0], f"the newest {what} (SMDDP {some[0].smddp})"
    what = f"{instance.gpu} ({instance.arch})" if instance.arch else "CPUs"
    patched = f", patched until {fit[0].patched_until}" if _patched(fit[0], today) else ""
    return fit[0], f"the newest with code for {what}{patched}"


def _patched(image: Image, today: date) -> bool:
    return image.patched_until is not None and image.patched_until >= today


def _about_type(name: str, instance: Instance | None, strategy: str, region: str) -> list[Finding]:
    findings = []
    if region not in ACCOUNTS:
        message = f"region {region!r} is not in the table of AWS's image registries"
        cure = "check --region; or name the image's address: --image ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG"
        findings.append(Finding("error", "image-region", message, cure, ACCOUNTS_FROM))
    if instance is None:
        near = like(name)
        cure = f"--type {near[0]}" if near else "--type takes a SageMaker name, such as ml.g5.12xlarge"
        message = f"type {name!r} is not a known training type" + (f"; near: {', '.join(near)}" if near else "")
        return [*findings, Finding("error", "unknown-type", message, cure)]
    if instance.retired:
        others = "; ".join(describe(one, instance) for one in nearest(name))
        message = f"type {name} is retired: EC2 does not offer it any more, so SageMaker is likely to refuse the job or never to start it"
        findings.append(Finding("warning", "retired-type", message, f"--type one of: {others}", instance.retired))
    elif offered(name, region) is False:
        message = f"type {name}: EC2 does not offer it in {region}, so SageMaker cannot start it there"
        findings.append(
            Finding("warning", "region-type", message, f"--region one of {', '.join(regions_of(name))}", OFFERED_FROM)
        )
    if strategy == "smddp":
        findings += _smddp_type(instance)
    return findings


def _smddp_type(instance: Instance) -> list[Finding]:
    listed = ", ".join(SMDDP_TYPES)
    cure = "--strategy ddp (NCCL), or --type ml.p4d.24xlarge"
    source = SMDDP_TYPES_FROM
    if instance.name == "ml.p3.16xlarge":
        message = (
            f"strategy smddp: {instance.name} is no longer listed for SMDDP (listed: {listed}); "
            f"SMDDP {'.'.join(map(str, SMDDP_CHECKS_TYPE))} and later refuse it at import"
        )
        return [Finding("warning", "smddp-type", message, cure, f"{source}; listed last on 2023-02-18")]
    if not instance.smddp:
        message = f"strategy smddp: SMDDP does not support {instance.name} (it does: {listed})"
        return [Finding("error", "smddp-type", message, cure, source)]
    if instance.arch == "sm_70":
        message = f"strategy smddp: SMDDP still runs on {instance.name}, but AWS has stopped optimizing it for P3"
        return [Finding("note", "smddp-type", message, "", source)]
    return []


def _about_wanted(
    image: Image | None, wanted: str, instance: Instance | None, strategy: str, today: date
) -> list[Finding]:
    if image is None:
        message = (
            f"image {wanted!r} is not in the table: whether it fits the type and holds segtrain's needs is not known"
        )
        return [Finding("note", "image-unknown", message)]
    findings = _about_age(image, today)
    if version(image.torch) < OLDEST_TORCH:
        message = (
            f"image {image.tag} has torch {image.torch}; segtrain needs torch >= {'.'.join(map(str, OLDEST_TORCH))}"
        )
        findings.append(
            Finding("error", "image-torch", message, "leave --image out, or take a newer one", image.source)
        )
    if instance is not None and not runs_on(image, instance):
        findings.append(_unfit(image, instance))
    if strategy == "smddp" and not image.smddp:
        have = ", ".join(one.tag for one in IMAGES if one.smddp)
        message = f"strategy smddp: image {image.tag} holds no SMDDP (these do: {have})"
        findings.append(Finding("error", "image-smddp", message, "leave --image out, or --strategy ddp", image.source))
    return findings


def _unfit(image: Image, instance: Instance) -> Finding:
    if not image.arches:
        message = f"image {image.tag} is a CPU image, {instance.name} has {instance.gpus} {instance.gpu}"
    elif not instance.arch:
        message = f"image {image.tag} is a GPU image, {instance.name} has no GPU: it runs, but is several GB larger than it need be"
        return Finding("warning", "image-gpu", message, "leave --image out: the launcher picks", image.source)
    else:
        message = (
            f"image {image.tag}: its torch has no code for {instance.gpu} ({instance.arch}) of {instance.name}, "
            f"only for {', '.join(image.arches)}"
        )
    return Finding("error", "image-gpu", message, "leave --image out: the launcher picks", image.source)


def _about_age(image: Image, today: date) -> list[Finding]:
    if _patched(image, today):
        return []
    since = f" since {image.patched_until}" if image.patched_until else ""
    message = f"image {image.tag}: AWS has not patched it{since}, security holes stay open"
    return [Finding("warning", "image-unpatched", message, "", image.source)]


def describe(one: Instance, asked: Instance | None = None) -> str:
    """A type in a line: GPUs, memory, price and speed where they are known."""
    gpu = one.gpu.partition("-")[0]  # A100-40GB is an A100
    parts = [f"{one.gpus} x {gpu} {one.gpu_memory_gb} GB" if one.gpus else f"{one.vcpus} vCPUs"]
    if one.price is not None:
        parts.append(f"${one.price:.{2 if one.price >= 1 else 3}f}/h")
    if one.speed is not None and asked is not None and asked.speed:
        parts.append(f"about {one.speed / asked.speed:.1f} x the speed")
    return f"{one.name} ({', '.join(parts)})"

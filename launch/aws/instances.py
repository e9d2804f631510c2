"""SageMaker's training types: GPUs, memory, disk, network, price, speed, whether AWS still offers them, and what comes
near.

The table holds every type that botocore 1.44.5 allows for a training job, but for those in ``UNFIT`` (Neuron chips,
ARM, GPUs that are too old). A type that is in neither may be newer than the table: ``allowed`` asks botocore's service
model.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from math import log

from launch.aws.instance_rows import CPU_ROWS, GPU_ROWS, UNFIT
from launch.aws.prices import PRICES, PRICES_DATED

__all__ = ["INSTANCES", "PRICES_DATED", "UNFIT", "Instance", "allowed", "like", "nearest", "unfit"]

SIZES_FROM = "EC2 DescribeInstanceTypes as of moto 5.2.5, 2026-11"
P3_RETIRED = (
    "EC2 no longer describes p3 (dstackai/gpuhunt#233, 2026-05-25; skypilot-org/skypilot#10113, 2026-07-13); "
    "AWS asked to migrate by 2025-12-20"
)
P3_SIZES_FROM = "EC2 DescribeInstanceTypes as of moto 5.0.28, 2025-02"
SMDDP_TYPES_FROM = "SageMaker docs, distributed-data-parallel-support, 2026"
SMDDP_TYPES = ("ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p4de.24xlarge")


@dataclass(frozen=True)
class Instance:
    """``gpu_memory_gb`` is of one GPU; ``arch`` is CUDA's, "" without a GPU; ``network_gbit`` is the burst where EC2
    says "up to"; ``nvme_gb`` 0: EBS only; ``price`` is $/h of an on-demand training job in us-east-1, None where no
    source is known; ``speed`` is that of training on all its GPUs, 8 V100 = 1.0, None where no measurement is known;
    ``source`` is that of the sizes.
    """

    name: str
    gpus: int
    gpu: str
    arch: str
    gpu_memory_gb: int
    vcpus: int
    memory_gb: float
    nvme_gb: int
    network_gbit: float
    efa: bool
    smddp: bool
    price: float | None
    price_source: str
    retired: str = ""
    speed: float | None = None
    source: str = SIZES_FROM


# GPU: compute capability (developer.nvidia.com/cuda-gpus) and memory of one in GB.
GPUS: dict[str, tuple[str, int]] = {
    "": ("", 0),
    "V100": ("sm_70", 16),
    "V100-32GB": ("sm_70", 32),
    "T4": ("sm_75", 16),
    "A100-40GB": ("sm_80", 40),
    "A100-80GB": ("sm_80", 80),
    "A10G": ("sm_86", 24),
    "L4": ("sm_89", 24),
    "L40S": ("sm_89", 48),
    "H100": ("sm_90", 80),
    "H200": ("sm_90", 141),
    "B200": ("sm_100", 180),
    "B300": ("sm_103", 268),
    "RTX PRO 6000": ("sm_120", 96),
    "RTX PRO 4500": ("sm_120", 32),
}

# Training speed of one GPU, V100 16 GB = 1.0: the geometric mean of ResNet-50 and SSD, mixed precision, images a second
# on one GPU (V100: 833 and 229). On H100 and up the software is newer. Several GPUs are counted as so many times one.
SPEEDS_FROM = (
    "lambdal/deeplearning-benchmark aa5addb6 (2025-12-17), pytorch/results and pytorch-train-throughput*-fp16.csv"
)
SPEEDS: dict[str, float] = {
    "V100": 1.0,
    "V100-32GB": 1.0,  # the same chip with more memory
    "A100-40GB": 1.80,  # SXM4: 1455 and 422
    "A100-80GB": 1.95,  # SXM4: 1582 and 458
    "H100": 3.56,  # SXM5: 2791 and 866
    "H200": 3.91,  # SXM: 3079 and 946
    "B200": 4.07,  # 3076 and 1025
}


def _instance(row: str) -> Instance:
    name, gpus, gpu, vcpus, memory, nvme, network, efa = row.split()
    gpu = "" if gpu == "-" else gpu.replace("_", " ")
    arch, gpu_memory = GPUS[gpu]
    price, price_source = PRICES.get(name, (None, ""))
    p3 = name.startswith("ml.p3.")
    return Instance(
        name=name,
        gpus=int(gpus),
        gpu=gpu,
        arch=arch,
        gpu_memory_gb=gpu_memory,
        vcpus=int(vcpus),
        memory_gb=float(memory),
        nvme_gb=int(nvme),
        network_gbit=float(network),
        efa=efa == "efa",
        smddp=name in SMDDP_TYPES,
        price=price,
        price_source=price_source,
        retired=P3_RETIRED if p3 else "",
        speed=round(int(gpus) * SPEEDS[gpu] / 8, 2) if gpu in SPEEDS else None,
        source=P3_SIZES_FROM if p3 else SIZES_FROM,
    )


INSTANCES: dict[str, Instance] = {
    one.name: one for one in (_instance(row) for row in [*GPU_ROWS.split("\n"), *CPU_ROWS.split("\n")] if row)
}


_FAMILY = re.compile(r"(?:ml\.)?(([a-z]+)[^.]*)\.")
# Families that are older or slower than others of the same price: accepted, but never suggested.
_NOT_ADVISED = ("t3", "m4", "c4")


def unfit(name: str) -> str:
    """Why segtrain does not run on a type that the service knows; "" where nothing is known against it."""
    return next((why for start, why in UNFIT.items() if name.startswith(start)), "")


def allowed(name: str) -> bool | None:
    """Does the service model of the installed botocore allow the type for a training job? None without botocore."""
    from launch.aws.service_model import enumeration

    names = enumeration("TrainingInstanceType")
    return None if names is None else name in names


def like(name: str, count: int = 3) -> list[str]:
    """The known names nearest to a mistyped or unknown one: of the same kind (p, g, c, m, r, ...), the same family
    first.
    """
    full = name if name.startswith("ml.") else f"ml.{name}"
    family, kind = _family(full)
    living = [one for one in INSTANCES.values() if not one.retired or _family(one.name)[0] == family]
    same = [one.name for one in living if _family(one.name)[0] == family]
    near = difflib.get_close_matches(full, same, n=count, cutoff=0.6)
    others = [one.name for one in living if _family(one.name)[1] == kind] if kind else []
    others = others or [one.name for one in living]
    near += difflib.get_close_matches(full, [one for one in others if one not in same], n=count, cutoff=0.6)
    return near[:count]


def _family(name: str) -> tuple[str, str]:
    """``("g6e", "g")`` of ``ml.g6e.12xlarge``: the family, and the letters that say its kind."""
    found = _FAMILY.match(name)
    return (found[1], found[2]) if found else ("", "")


def nearest(name: str, count: int = 4) -> list[Instance]:
    """Current types to take in place of ``name``, none of them smaller: no less memory a GPU, or no fewer vCPUs.

    For a GPU type, one of each GPU, as near in the number of GPUs as there is; for a CPU type, one of each family, as
    near in vCPUs and memory as there is. In place of a retired type no other one of its architecture is named: it will
    be retired as well.
    """
    asked = INSTANCES[name]
    best: dict[str, Instance] = {}
    for one in INSTANCES.values():
        key = one.gpu or _family(one.name)[0]
        if _could_replace(one, asked) and (key not in best or _apart(one, asked) < _apart(best[key], asked)):
            best[key] = one
    return sorted(best.values(), key=lambda one: _rank(one, asked))[:count]


def _could_replace(one: Instance, asked: Instance) -> bool:
    if one.retired or one.name == asked.name or bool(one.gpus) != bool(asked.gpus):
        return False
    if not asked.gpus:
        return (
            asked.vcpus <= one.vcpus <= 2 * asked.vcpus
            and 0.9 * asked.memory_gb <= one.memory_gb <= 4 * asked.memory_gb
            and _family(one.name)[0] not in _NOT_ADVISED
        )
    return one.gpu_memory_gb >= asked.gpu_memory_gb and not (asked.retired and one.arch == asked.arch)


def _apart(one: Instance, asked: Instance) -> tuple[float, float, float]:
    if not asked.gpus:
        return abs(one.vcpus - asked.vcpus), abs(one.memory_gb - asked.memory_gb), one.price or 0
    return abs(one.gpus - asked.gpus), abs(one.vcpus - asked.vcpus), one.price or 0


def _rank(one: Instance, asked: Instance) -> tuple[float, ...]:
    if not asked.gpus:  # the same vCPUs and memory say more than the price, which many rows lack
        return (*_apart(one, asked)[:2], abs(log(one.price / asked.price)) if one.price and asked.price else 9)
    if one.price is None or asked.price is None:
        return 1, *_apart(one, asked)
    return 0, abs(log(one.price / asked.price)) + abs(log(one.gpus / asked.gpus)) / 2, 0, 0

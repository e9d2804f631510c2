"""Which SageMaker training types are there: GPUs, memory, disk, network, whether they still live, price and speed?

Sizes are those of EC2's own DescribeInstanceTypes for the type without its "ml." (read from the catalogue that moto 5.2.5
ships, 2026-11; p3, which is gone there, from that of moto 5.0.28); the names are those that botocore 1.44.5 allows for a
training job. Types with a Neuron chip or an ARM processor are left out: segtrain does not run there.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from math import log

from launch.aws.prices import PRICES, PRICES_DATED

__all__ = ["INSTANCES", "PRICES_DATED", "Instance", "like", "nearest"]

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
    """``gpu_memory_gb`` is of one GPU; ``arch`` is CUDA's, "" without a GPU; ``network_gbit`` is the burst where EC2 says
    "up to"; ``nvme_gb`` 0: EBS only; ``price`` is $/h of an on-demand training job in us-east-1, None where no source is
    known; ``speed`` is that of training on all its GPUs, 8 V100 = 1.0, None where no measurement is known; ``source`` is
    that of the sizes.
    """

    name: str
    gpus: int
    gpu: str
    arch: str
    gpu_memory_gb: int
    vcpus: int
    memory_gb: int
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

# type, GPUs, GPU, vCPUs, memory GB, NVMe GB, network Gbit/s, EFA
_ROWS = """
ml.p3.2xlarge      1 V100           8   61     0   10   no
ml.p3.8xlarge      4 V100          32  244     0   10   no
ml.p3.16xlarge     8 V100          64  488     0   25   no
ml.p3dn.24xlarge   8 V100-32GB     96  768  1800  100   efa
ml.p4d.24xlarge    8 A100-40GB     96 1152  8000  400   efa
ml.p4de.24xlarge   8 A100-80GB     96 1152  8000  400   efa
ml.p5.4xlarge      1 H100          16  256  3800  100   efa
ml.p5.48xlarge     8 H100         192 2048 30400 3200   efa
ml.p5e.48xlarge    8 H200         192 2048 30400 3200   efa
ml.p5en.48xlarge   8 H200         192 2048 30400 3200   efa
ml.p6-b200.48xlarge 8 B200        192 2048 30400 3200   efa
ml.p6-b300.48xlarge 8 B300        192 4096 30400 6400   efa
ml.g4dn.xlarge     1 T4             4   16   125   25   no
ml.g4dn.2xlarge    1 T4             8   32   225   25   no
ml.g4dn.4xlarge    1 T4            16   64   225   25   no
ml.g4dn.8xlarge    1 T4            32  128   900   50   efa
ml.g4dn.12xlarge   4 T4            48  192   900   50   efa
ml.g4dn.16xlarge   1 T4            64  256   900   50   efa
ml.g5.xlarge       1 A10G           4   16   250   10   no
ml.g5.2xlarge      1 A10G           8   32   450   10   no
ml.g5.4xlarge      1 A10G          16   64   600   25   no
ml.g5.8xlarge      1 A10G          32  128   900   25   efa
ml.g5.12xlarge     4 A10G          48  192  3800   40   efa
ml.g5.16xlarge     1 A10G          64  256  1900   25   efa
ml.g5.24xlarge     4 A10G          96  384  3800   50   efa
ml.g5.48xlarge     8 A10G         192  768  7600  100   efa
ml.g6.xlarge       1 L4             4   16   250   10   no
ml.g6.2xlarge      1 L4             8   32   450   10   no
ml.g6.4xlarge      1 L4            16   64   600   25   no
ml.g6.8xlarge      1 L4            32  128   900   25   efa
ml.g6.12xlarge     4 L4            48  192  3760   40   efa
ml.g6.16xlarge     1 L4            64  256  1880   25   efa
ml.g6.24xlarge     4 L4            96  384  3760   50   efa
ml.g6.48xlarge     8 L4           192  768  7520  100   efa
ml.g6e.xlarge      1 L40S           4   32   250   20   no
ml.g6e.2xlarge     1 L40S           8   64   450   20   no
ml.g6e.4xlarge     1 L40S          16  128   600   20   no
ml.g6e.8xlarge     1 L40S          32  256   900   25   efa
ml.g6e.12xlarge    4 L40S          48  384  3800  100   efa
ml.g6e.16xlarge    1 L40S          64  512  1900   35   efa
ml.g6e.24xlarge    4 L40S          96  768  3800  200   efa
ml.g6e.48xlarge    8 L40S         192 1536  7600  400   efa
ml.g7.2xlarge      1 RTX_PRO_4500   8   32   440   60   no
ml.g7.4xlarge      1 RTX_PRO_4500  16   64   875  100   no
ml.g7.8xlarge      1 RTX_PRO_4500  32  128   930  100   efa
ml.g7.12xlarge     2 RTX_PRO_4500  48  192  1900  175   efa
ml.g7.24xlarge     4 RTX_PRO_4500  96  384  3800  350   efa
ml.g7.48xlarge     8 RTX_PRO_4500 192  768  7600  700   efa
ml.g7e.2xlarge     1 RTX_PRO_6000   8   64  1900   50   no
ml.g7e.4xlarge     1 RTX_PRO_6000  16  128  1900   50   no
ml.g7e.8xlarge     1 RTX_PRO_6000  32  256  1900  100   efa
ml.g7e.12xlarge    2 RTX_PRO_6000  48  512  3800  400   efa
ml.g7e.24xlarge    4 RTX_PRO_6000  96 1024  7600  800   efa
ml.g7e.48xlarge    8 RTX_PRO_6000 192 2048 15200 1600   efa
ml.m5.large        0 -              2    8     0   10   no
ml.m5.xlarge       0 -              4   16     0   10   no
ml.m5.2xlarge      0 -              8   32     0   10   no
ml.m5.4xlarge      0 -             16   64     0   10   no
ml.m5.12xlarge     0 -             48  192     0   12   no
ml.m5.24xlarge     0 -             96  384     0   25   no
ml.c5.xlarge       0 -              4    8     0   10   no
ml.c5.2xlarge      0 -              8   16     0   10   no
ml.c5.4xlarge      0 -             16   32     0   10   no
ml.c5.9xlarge      0 -             36   72     0   12   no
ml.c5.18xlarge     0 -             72  144     0   25   no
ml.c6i.xlarge      0 -              4    8     0   12.5 no
ml.c6i.2xlarge     0 -              8   16     0   12.5 no
ml.c6i.4xlarge     0 -             16   32     0   12.5 no
ml.c6i.8xlarge     0 -             32   64     0   12.5 no
ml.c6i.16xlarge    0 -             64  128     0   25   no
ml.c6i.32xlarge    0 -            128  256     0   50   efa
ml.m6i.large       0 -              2    8     0   12.5 no
ml.m6i.xlarge      0 -              4   16     0   12.5 no
ml.m6i.2xlarge     0 -              8   32     0   12.5 no
ml.m6i.4xlarge     0 -             16   64     0   12.5 no
ml.m6i.8xlarge     0 -             32  128     0   12.5 no
ml.m6i.16xlarge    0 -             64  256     0   25   no
ml.m6i.32xlarge    0 -            128  512     0   50   efa
ml.c7i.large       0 -              2    4     0   12.5 no
ml.c7i.xlarge      0 -              4    8     0   12.5 no
ml.c7i.2xlarge     0 -              8   16     0   12.5 no
ml.c7i.4xlarge     0 -             16   32     0   12.5 no
ml.c7i.8xlarge     0 -             32   64     0   12.5 no
ml.c7i.16xlarge    0 -             64  128     0   25   no
ml.c7i.48xlarge    0 -            192  384     0   50   efa
"""


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
        memory_gb=int(memory),
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


INSTANCES: dict[str, Instance] = {one.name: one for one in map(_instance, _ROWS.strip().splitlines())}


def like(name: str, count: int = 3) -> list[str]:
    """The known names nearest to a mistyped one."""
    full = name if name.startswith("ml.") else f"ml.{name}"
    return difflib.get_close_matches(full, INSTANCES, n=count, cutoff=0.6)


def nearest(name: str, count: int = 4) -> list[Instance]:
    """Living types to take in place of ``name``: one of each GPU, as near in GPUs as there is, with no less memory a GPU.

    The nearest price comes first; without prices, the nearest number of GPUs. In place of a retired type no other one of
    its architecture is named: that will go as well.
    """
    asked = INSTANCES[name]
    best: dict[str, Instance] = {}
    for one in INSTANCES.values():
        key = one.gpu or one.name
        if _could_replace(one, asked) and (key not in best or _apart(one, asked) < _apart(best[key], asked)):
            best[key] = one
    return sorted(best.values(), key=lambda one: _rank(one, asked))[:count]


def _could_replace(one: Instance, asked: Instance) -> bool:
    if one.retired or one.name == asked.name or bool(one.gpus) != bool(asked.gpus):
        return False
    return one.gpu_memory_gb >= asked.gpu_memory_gb and not (asked.retired and one.arch == asked.arch)


def _apart(one: Instance, asked: Instance) -> tuple[int, int, float]:
    return abs(one.gpus - asked.gpus), abs(one.vcpus - asked.vcpus), one.price or 0


def _rank(one: Instance, asked: Instance) -> tuple[float, ...]:
    if one.price is None or asked.price is None:
        return 1, *_apart(one, asked)
    return 0, abs(log(one.price / asked.price)), 0, 0

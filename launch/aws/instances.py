"""SageMaker's training types: which ones there are, which are similar, and which segtrain does not run on.

segtrain/machines/sagemaker.csv holds every type that botocore 1.44.5 allows for a training job, except those in
``UNFIT`` (Neuron chips, ARM, GPUs that are too old). A type in neither of them may be newer than the table: ``allowed``
looks it up in botocore's service model.
"""

from __future__ import annotations

import difflib
import re
from math import log

from segtrain.machines import Machine, dated, machines, sources

SMDDP_TYPES_FROM = "SageMaker docs, distributed-data-parallel-support, 2026"
INSTANCES: dict[str, Machine] = machines("sagemaker")
SMDDP_TYPES = tuple(one.name for one in INSTANCES.values() if one.smddp)
# The day of the prices of all types but p3.
PRICES_DATED = dated(sources("sagemaker")["list"])

# Types that the service knows but segtrain does not run on: name, or beginning of the name -> reason.
UNFIT = {
    "ml.p2.": "no image of the table has code for its K80 GPU (sm_37), and EC2 no longer describes p2",
    "ml.trn": "AWS Trainium needs torch-neuronx, and segtrain trains on CUDA or on CPUs",
    "ml.p6e-gb200.": "its CPUs are ARM, and the images of the table are for x86-64",
}

_FAMILY = re.compile(r"(?:ml\.)?(([a-z]+)[^.]*)\.")
# Families that are older or slower than others of the same price: accepted, but never suggested.
_NOT_ADVISED = ("t3", "m4", "c4")


def unfit(name: str) -> str:
    """The reason why segtrain does not run on a type that the service knows; "" if there is none."""
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
    """The family of a type, and the family's kind (its first letters): ``("g6e", "g")`` for ``ml.g6e.12xlarge``."""
    found = _FAMILY.match(name)
    return (found[1], found[2]) if found else ("", "")


def nearest(name: str, count: int = 4) -> list[Machine]:
    """Current types that can replace ``name``, with at least its memory per GPU, or for CPU types at least its vCPUs.

    A GPU type gets one type for each GPU model, the nearest in number of GPUs. A CPU type gets one type of each family,
    the nearest in vCPUs and memory. A retired type gets no other type of its GPU architecture, which will be retired as
    well.
    """
    asked = INSTANCES[name]
    best: dict[str, Machine] = {}
    for one in INSTANCES.values():
        key = one.gpu or _family(one.name)[0]
        if _could_replace(one, asked) and (key not in best or _apart(one, asked) < _apart(best[key], asked)):
            best[key] = one
    return sorted(best.values(), key=lambda one: _rank(one, asked))[:count]


def _could_replace(one: Machine, asked: Machine) -> bool:
    if one.retired or one.name == asked.name or bool(one.gpus) != bool(asked.gpus):
        return False
    if not asked.gpus:
        return (
            asked.vcpus <= one.vcpus <= 2 * asked.vcpus
            and 0.9 * asked.memory_gb <= one.memory_gb <= 4 * asked.memory_gb
            and _family(one.name)[0] not in _NOT_ADVISED
        )
    return one.gpu_memory_gb >= asked.gpu_memory_gb and not (asked.retired and one.arch == asked.arch)


def _apart(one: Machine, asked: Machine) -> tuple[float, float, float]:
    if not asked.gpus:
        return abs(one.vcpus - asked.vcpus), abs(one.memory_gb - asked.memory_gb), one.price or 0
    return abs(one.gpus - asked.gpus), abs(one.vcpus - asked.vcpus), one.price or 0


def _rank(one: Machine, asked: Machine) -> tuple[float, ...]:
    if not asked.gpus:  # the same vCPUs and memory say more than the price, which many rows lack
        return (*_apart(one, asked)[:2], abs(log(one.price / asked.price)) if one.price and asked.price else 9)
    if one.price is None or asked.price is None:
        return 1, *_apart(one, asked)
    return 0, abs(log(one.price / asked.price)) + abs(log(one.gpus / asked.gpus)) / 2, 0, 0

"""SageMaker's training types: which ones there are, which are similar, and which segtrain does not run on.

segtrain/machines/sagemaker.csv holds every type that botocore 1.44.5 allows for a training job, except those in
``UNFIT`` (Neuron chips, ARM, GPUs that are too old). A type in neither of them may be newer than the table: ``allowed``
looks it up in botocore's service model.
"""

from __future__ import annotations

import difflib

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


def unfit(name: str) -> str:
    """The reason why segtrain does not run on a type that the service knows; "" if there is none."""
    return next((why for start, why in UNFIT.items() if name.startswith(start)), "")


def allowed(name: str) -> bool | None:
    """Does the service model of the installed botocore allow the type for a training job? None without botocore."""
    from launch.platforms.sagemaker.service_model import enumeration

    names = enumeration("TrainingInstanceType")
    return None if names is None else name in names


def like(name: str, count: int = 3) -> list[str]:
    """The known names nearest to a mistyped or unknown one."""
    living = [one.name for one in INSTANCES.values() if not one.retired]
    return difflib.get_close_matches(f"ml.{name.removeprefix('ml.')}", living, n=count, cutoff=0.75)


def nearest(name: str, count: int = 4) -> list[Machine]:
    """Current GPU types that can replace ``name``, with at least its memory per GPU: of each GPU model the type that is
    nearest in number of GPUs and price. A retired type gets no other type of its GPU architecture, which will be
    retired as well.
    """
    asked = INSTANCES[name]
    fit = [
        one
        for one in INSTANCES.values()
        if one.gpus and not one.retired and one.name != name and one.gpu_memory_gb >= asked.gpu_memory_gb
        if not (asked.retired and one.arch == asked.arch)
    ]
    fit.sort(key=lambda one: (abs(one.gpus - asked.gpus), abs((one.price or 1e9) - (asked.price or 0))))
    of_each_model = {one.gpu: one for one in reversed(fit)}
    return sorted(of_each_model.values(), key=fit.index)[:count]

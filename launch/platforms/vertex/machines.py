"""Machine types and accelerators of Vertex AI custom jobs: the GPUs that a type includes or
accepts.

From Google's documentation, not tried with an account: pages "Configure compute resources for
training" and "Accelerator optimized machine family" at cloud.google.com, and the enum
AcceleratorType of google-cloud-aiplatform 2.7.0. The sizes of types with GPUs are those of
segtrain/machines/vertex.csv. A type that is in no table, but could be a newer type of a known
family, is a warning, not an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from launch.platforms.vertex.job_parts import Accelerator
from segtrain.machines import machines

DATED = "Google's documentation of Vertex AI training, as known on 2026-11-23"


@dataclass(frozen=True)
class VertexMachine:
    """A machine type. ``accelerator``: the GPUs that it includes; None if it has none, or if a job
    attaches them (N1 only).
    """

    name: str
    vcpus: int
    accelerator: Accelerator | None = None

    @property
    def attaches(self) -> bool:
        return self.name.startswith("n1-")


# Names in the API's enum, without those that segtrain cannot train on -> names in segtrain's
# tables.
GPUS = {
    "NVIDIA_TESLA_P100": "P100",
    "NVIDIA_TESLA_V100": "V100",
    "NVIDIA_TESLA_P4": "P4",
    "NVIDIA_TESLA_T4": "T4",
    "NVIDIA_TESLA_A100": "A100-40GB",
    "NVIDIA_A100_80GB": "A100-80GB",
    "NVIDIA_L4": "L4",
    "NVIDIA_H100_80GB": "H100",
    "NVIDIA_H100_MEGA_80GB": "H100",
    "NVIDIA_H200_141GB": "H200",
    "NVIDIA_B200": "B200",
    "NVIDIA_GB200": "B200",
    "NVIDIA_RTX_PRO_6000": "RTX PRO 6000",
}
# The largest number of vCPUs that an N1 type may have, by the number of GPUs that are attached to
# it.
ATTACHED = {
    "NVIDIA_TESLA_P100": {1: 16, 2: 32, 4: 64},
    "NVIDIA_TESLA_V100": {1: 12, 2: 24, 4: 48, 8: 96},
    "NVIDIA_TESLA_P4": {1: 24, 2: 48, 4: 96},
    "NVIDIA_TESLA_T4": {1: 24, 2: 48, 4: 96},
}
# Types that are not offered with STANDARD scheduling.
NOT_STANDARD = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")
_CPUS = re.compile(
    r"(?:e2|n2d?|c2d?|c3)-(?:standard|highmem|highcpu)-(\d+)|m1-(?:ultramem|megamem)-(\d+)"
)


def _known() -> dict[str, VertexMachine]:
    """The types that may have GPUs."""
    types = {}
    for family in ("n1-standard", "n1-highmem", "n1-highcpu"):
        for vcpus in (4, 8, 16, 32, 64, 96):
            if family != "n1-highcpu" or vcpus >= 16:
                types[f"{family}-{vcpus}"] = VertexMachine(f"{family}-{vcpus}", vcpus)
    in_api = {name: key for key, name in reversed(GPUS.items())}
    for name, row in machines("vertex").items():
        if "+" not in name:
            gpu = "NVIDIA_H100_MEGA_80GB" if name.startswith("a3-mega") else in_api[row.gpu]
            types[name] = VertexMachine(name, row.vcpus, Accelerator(gpu, row.gpus))
    types["a4x-highgpu-4g"] = VertexMachine("a4x-highgpu-4g", 140, Accelerator("NVIDIA_GB200", 4))
    return types


MACHINES = _known()


def machine_of(name: str) -> VertexMachine | None:
    """The machine type; None if it is unknown."""
    plain = _CPUS.fullmatch(name)
    return VertexMachine(name, int(plain[1] or plain[2])) if plain else MACHINES.get(name)


def accelerator_of(machine: str) -> Accelerator | None:
    """The GPUs that a machine type includes; None if it includes none or is unknown."""
    return MACHINES[machine].accelerator if machine in MACHINES else None


def counts(machine: VertexMachine, accelerator: str) -> list[int]:
    """The numbers of GPUs of a kind that a machine type can have; [] if it cannot have this
    kind.
    """
    if machine.accelerator is not None:
        return [machine.accelerator.count] if machine.accelerator.type == accelerator else []
    limits = ATTACHED.get(accelerator, {}) if machine.attaches else {}
    return [count for count, vcpus in limits.items() if machine.vcpus <= vcpus]


def taking(accelerator: Accelerator) -> list[str]:
    """The machine types that take as many of these GPUs; all that take some of them if there is
    none.
    """
    some = {
        name: numbers
        for name, machine in MACHINES.items()
        if (numbers := counts(machine, accelerator.type))
    }
    return [name for name, numbers in some.items() if accelerator.count in numbers] or list(some)

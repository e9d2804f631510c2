"""Machine types and accelerators of Vertex AI custom jobs: the GPUs that a type includes or accepts, and their regions.

From Google's documentation, not tried with an account: pages "Configure compute resources for training", "Accelerator
optimized machine family", and "Vertex AI locations" at cloud.google.com, and the enum AcceleratorType of
google-cloud-aiplatform 2.7.0. A type that is not in the table, but could be a newer type of a known family, is a
warning, not an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from launch.gcp.job_parts import Accelerator
from segtrain.errors import closest

DATED = "Google's documentation of Vertex AI training, as known on 2026-11-23"
REGIONS_DATED = "Google's documentation of accelerators by region, as known on 2026-11-23"


@dataclass(frozen=True)
class Gpu:
    """A GPU model. ``arch``: compute capability, such as sm_75. ``regions``: where Vertex AI offers it for training; ()
    if unknown.
    """

    name: str
    arch: str
    regions: tuple[str, ...] = ()
    retired: bool = False


@dataclass(frozen=True)
class Machine:
    """A machine type. ``accelerator``: the GPUs that it includes; None if it has none, or if a job attaches them (N1
    only).
    """

    name: str
    vcpus: int
    accelerator: Accelerator | None = None

    @property
    def attaches(self) -> bool:
        return self.name.startswith("n1-")


_V100 = ("us-central1", "us-east1", "us-west1", "europe-west4", "asia-east1")
_P100 = (*_V100, "europe-west1")
_P4 = (
    "us-central1", "us-east4", "us-west2", "northamerica-northeast1", "europe-west4", "asia-southeast1",
    "australia-southeast1",
)  # fmt: skip
_A100_80 = ("us-central1", "us-east4", "us-east5", "europe-west4", "asia-southeast1")
_ANYWHERE = ("us-central1", "us-east1", "us-east4", "us-west1", "europe-west4")
_T4 = (
    *_ANYWHERE, "us-west2", "us-west4", "northamerica-northeast1", "southamerica-east1", "europe-west1", "europe-west2",
    "europe-west3", "europe-central2", "asia-east1", "asia-east2", "asia-northeast1", "asia-northeast3", "asia-south1",
    "asia-southeast1", "asia-southeast2", "australia-southeast1", "me-west1",
)  # fmt: skip
_L4 = (
    *_ANYWHERE, "northamerica-northeast2", "europe-west1", "europe-west2", "europe-west3", "europe-west6",
    "asia-east1", "asia-northeast1", "asia-northeast3", "asia-south1", "asia-southeast1", "me-central2",
)  # fmt: skip
_A100 = (
    "us-central1", "us-east1", "us-west1", "us-west3", "us-west4", "europe-west4", "asia-northeast1", "asia-northeast3",
    "asia-southeast1", "me-west1",
)  # fmt: skip
_H100 = (
    "us-central1", "us-east4", "us-east5", "us-west1", "us-west4", "europe-west1", "europe-west2", "europe-west3",
    "europe-west4", "asia-northeast1", "asia-northeast3", "asia-south1", "asia-southeast1", "australia-southeast1",
)  # fmt: skip
# The keys are names in the API's enum. No regions: Google's page lists none, or changes too often.
GPUS = {
    "NVIDIA_TESLA_K80": Gpu("K80", "sm_37", retired=True),
    "NVIDIA_TESLA_P100": Gpu("P100", "sm_60", _P100),
    "NVIDIA_TESLA_V100": Gpu("V100", "sm_70", _V100),
    "NVIDIA_TESLA_P4": Gpu("P4", "sm_61", _P4),
    "NVIDIA_TESLA_T4": Gpu("T4", "sm_75", _T4),
    "NVIDIA_TESLA_A100": Gpu("A100", "sm_80", _A100),
    "NVIDIA_A100_80GB": Gpu("A100 80 GB", "sm_80", _A100_80),
    "NVIDIA_L4": Gpu("L4", "sm_89", _L4),
    "NVIDIA_H100_80GB": Gpu("H100", "sm_90", _H100),
    "NVIDIA_H100_MEGA_80GB": Gpu("H100 Mega", "sm_90", _H100),
    "NVIDIA_H200_141GB": Gpu("H200", "sm_90"),
    "NVIDIA_B200": Gpu("B200", "sm_100"),
    "NVIDIA_GB200": Gpu("GB200", "sm_100"),
    "NVIDIA_RTX_PRO_6000": Gpu("RTX PRO 6000", "sm_120"),
}
# The enum's other names: TPUs, which PyTorch trains on only with torch_xla.
TPUS = ("TPU_V2", "TPU_V3", "TPU_V4_POD", "TPU_V5_LITEPOD")
# The largest number of vCPUs that an N1 type may have, by the number of GPUs that are attached to it.
ATTACHED = {
    "NVIDIA_TESLA_K80": {1: 8, 2: 16, 4: 32, 8: 64},
    "NVIDIA_TESLA_P100": {1: 16, 2: 32, 4: 64},
    "NVIDIA_TESLA_V100": {1: 12, 2: 24, 4: 48, 8: 96},
    "NVIDIA_TESLA_P4": {1: 24, 2: 48, 4: 96},
    "NVIDIA_TESLA_T4": {1: 24, 2: 48, 4: 96},
}
# Types that are not offered with STANDARD scheduling.
NOT_STANDARD = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")
_SIZES = {
    "e2-standard": (4, 8, 16, 32), "e2-highmem": (2, 4, 8, 16), "e2-highcpu": (16, 32),
    "n1-standard": (4, 8, 16, 32, 64, 96), "n1-highmem": (2, 4, 8, 16, 32, 64, 96), "n1-highcpu": (16, 32, 64, 96),
    "n2-standard": (4, 8, 16, 32, 48, 64, 80), "n2-highmem": (2, 4, 8, 16, 32, 48, 64, 80),
    "n2-highcpu": (16, 32, 48, 64, 80), "n2d-standard": (4, 8, 16, 32, 48, 64, 80, 96, 128, 224),
    "n2d-highmem": (2, 4, 8, 16, 32, 48, 64, 80, 96), "n2d-highcpu": (16, 32, 48, 64, 80, 96, 128, 224),
    "c2-standard": (4, 8, 16, 30, 60), "c2d-standard": (2, 4, 8, 16, 32, 56, 112),
    "c2d-highcpu": (2, 4, 8, 16, 32, 56, 112), "c2d-highmem": (2, 4, 8, 16, 32, 56, 112),
    "c3-highcpu": (4, 8, 22, 44, 88, 176), "m1-ultramem": (40, 80, 160), "m1-megamem": (96,),
}  # fmt: skip
_OPTIMIZED = {  # accelerator-optimized: vCPUs, accelerator, count
    "a2-highgpu-1g": (12, "NVIDIA_TESLA_A100", 1), "a2-highgpu-2g": (24, "NVIDIA_TESLA_A100", 2),
    "a2-highgpu-4g": (48, "NVIDIA_TESLA_A100", 4), "a2-highgpu-8g": (96, "NVIDIA_TESLA_A100", 8),
    "a2-megagpu-16g": (96, "NVIDIA_TESLA_A100", 16),
    "a2-ultragpu-1g": (12, "NVIDIA_A100_80GB", 1), "a2-ultragpu-2g": (24, "NVIDIA_A100_80GB", 2),
    "a2-ultragpu-4g": (48, "NVIDIA_A100_80GB", 4), "a2-ultragpu-8g": (96, "NVIDIA_A100_80GB", 8),
    "a3-highgpu-1g": (26, "NVIDIA_H100_80GB", 1), "a3-highgpu-2g": (52, "NVIDIA_H100_80GB", 2),
    "a3-highgpu-4g": (104, "NVIDIA_H100_80GB", 4), "a3-highgpu-8g": (208, "NVIDIA_H100_80GB", 8),
    "a3-megagpu-8g": (208, "NVIDIA_H100_MEGA_80GB", 8), "a3-ultragpu-8g": (224, "NVIDIA_H200_141GB", 8),
    "a4-highgpu-8g": (224, "NVIDIA_B200", 8), "a4x-highgpu-4g": (140, "NVIDIA_GB200", 4),
    "g2-standard-4": (4, "NVIDIA_L4", 1), "g2-standard-8": (8, "NVIDIA_L4", 1), "g2-standard-12": (12, "NVIDIA_L4", 1),
    "g2-standard-16": (16, "NVIDIA_L4", 1), "g2-standard-24": (24, "NVIDIA_L4", 2),
    "g2-standard-32": (32, "NVIDIA_L4", 1), "g2-standard-48": (48, "NVIDIA_L4", 4),
    "g2-standard-96": (96, "NVIDIA_L4", 8),
    "g4-standard-48": (48, "NVIDIA_RTX_PRO_6000", 1), "g4-standard-96": (96, "NVIDIA_RTX_PRO_6000", 2),
    "g4-standard-192": (192, "NVIDIA_RTX_PRO_6000", 4), "g4-standard-384": (384, "NVIDIA_RTX_PRO_6000", 8),
}  # fmt: skip
MACHINES = {
    **{f"{family}-{size}": Machine(f"{family}-{size}", size) for family, sizes in _SIZES.items() for size in sizes},
    **{name: Machine(name, vcpus, Accelerator(gpu, count)) for name, (vcpus, gpu, count) in _OPTIMIZED.items()},
}
REGIONS = (
    "us-central1", "us-east1", "us-east4", "us-east5", "us-south1", "us-west1", "us-west2", "us-west3", "us-west4",
    "northamerica-northeast1", "northamerica-northeast2", "southamerica-east1", "southamerica-west1",
    "europe-central2", "europe-north1", "europe-southwest1", "europe-west1", "europe-west2", "europe-west3",
    "europe-west4", "europe-west6", "europe-west8", "europe-west9", "europe-west12", "asia-east1", "asia-east2",
    "asia-northeast1", "asia-northeast2", "asia-northeast3", "asia-south1", "asia-southeast1", "asia-southeast2",
    "australia-southeast1", "australia-southeast2", "africa-south1", "me-central1", "me-central2", "me-west1",
)  # fmt: skip


def accelerator_of(machine: str) -> Accelerator | None:
    """The GPUs that a machine type includes; None if it includes none or is unknown."""
    return MACHINES[machine].accelerator if machine in MACHINES else None


def nearest(name: str) -> str | None:
    """The known machine type that is closest to a misspelled name."""
    return closest(name, MACHINES, 0.6)


def meant(accelerator: str) -> str:
    """The API's name of the GPU that a name such as "L4" or "nvidia-tesla-t4" means; that of a T4 if none is near."""
    name, known = accelerator.upper().replace("-", "_"), [key for key, gpu in GPUS.items() if not gpu.retired]
    short = next((key for key in known if f"_{name}_" in f"{key}_"), None)
    return short or closest(name, known, 0.4) or "NVIDIA_TESLA_T4"


def counts(machine: Machine, accelerator: str) -> list[int]:
    """The numbers of GPUs of a kind that a machine type can have; [] if it cannot have this kind."""
    if machine.accelerator is not None:
        return [machine.accelerator.count] if machine.accelerator.type == accelerator else []
    limits = ATTACHED.get(accelerator, {}) if machine.attaches else {}
    return [count for count, vcpus in limits.items() if machine.vcpus <= vcpus]


def advise(machine: Machine, asked: Accelerator, standard: bool) -> str:
    """Flags for the smallest machine that takes as many of these GPUs, or, if none does, the next number of them.

    N1 types stay in their family, with the most vCPUs that the number of GPUs allows. ``standard``: the scheduling.
    """
    family = machine.name.rpartition("-")[0] if machine.attaches else "n1-standard"
    fitting = []
    for name, one in MACHINES.items():
        size = (0, -one.vcpus) if name.startswith(f"{family}-") else (1, one.vcpus)
        for count in counts(one, asked.type):
            fitting.append((count < asked.count, abs(count - asked.count), size, name, count))
    *_, name, count = min(fitting)
    changed = "" if count == asked.count else f" --accelerator {asked.type}:{count}"
    return f"--machine {name}{changed}" + (" --scheduling spot" if standard and name in NOT_STANDARD else "")

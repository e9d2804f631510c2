"""Readings of the NVIDIA GPUs of this host from NVML (the library behind nvidia-smi), through
nvidia-ml-py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from segtrain.observe.journal import say_on_stderr
from segtrain.observe.profile_format import Value


def open_gpus() -> Callable[[], list[Value]]:
    """A function that reads the GPUs in CUDA_VISIBLE_DEVICES, or all GPUs of the host if it is not
    set.

    If they cannot be read, one line says why, so that the gap does not look like idle GPUs.
    """
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return list
    try:
        import pynvml
    except ImportError:
        say_on_stderr(
            "the system profile lacks the GPUs: it needs the package 'nvidia-ml-py': pip install "
            "nvidia-ml-py"
        )
        return list
    try:
        pynvml.nvmlInit()
        handles = visible(pynvml, os.environ)
    except pynvml.NVMLError as error:
        say_on_stderr(f"the system profile lacks the GPUs: {error}: nvidia-smi should say more")
        return list
    return read_with(pynvml, handles)


def visible(nvml: Any, environ: Mapping[str, str]) -> list[Any]:
    """Handles of the GPUs that CUDA shows to a process, in the order of CUDA, as far as NVML can
    tell.

    NVML numbers GPUs by bus id. CUDA does so only with CUDA_DEVICE_ORDER=PCI_BUS_ID, and otherwise
    by speed, so a number is ambiguous on a host with several kinds of GPUs.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return handles
    uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
    kinds = {nvml.nvmlDeviceGetName(handle) for handle in handles}
    chosen = []
    for entry in (part.strip() for part in listed.split(",")):
        if entry.startswith("MIG-"):
            chosen.append(nvml.nvmlDeviceGetHandleByUUID(entry))
        elif entry.startswith("GPU-") and (
            named := [k for k, uuid in enumerate(uuids) if uuid.startswith(entry)]
        ):
            chosen.append(handles[named[0]])  # CUDA accepts the unique start of a UUID.
        elif entry.isdigit() and int(entry) < len(handles):
            if len(kinds) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
                say_on_stderr(
                    f"the system profile has all {len(handles)} GPUs of this host: "
                    f"CUDA_VISIBLE_DEVICES={listed} does not say which of "
                    f"{', '.join(sorted(kinds))} are meant; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
                )
                return handles
            chosen.append(handles[int(entry)])
        else:  # CUDA ignores the rest of the list.
            break
    return chosen


def read_with(nvml: Any, handles: list[Any]) -> Callable[[], list[Value]]:
    """A function that reads the GPUs. A reading that a GPU does not support is left out from then
    on.
    """

    def memory(handle: Any) -> float:
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
        return 100.0 * info.used / info.total

    readings: dict[str, Callable[[Any], float]] = {
        "GPUUtilization": lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "GPUMemoryUtilization": memory,
        "PowerInWatts": lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "SMClockInMHz": lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "MemoryClockInMHz": lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
    }
    missing = set[tuple[str, str]]()

    def read() -> list[Value]:
        values = []
        for number, handle in enumerate(handles):
            for dimension, reading in readings.items():
                name = f"gpu{number}"
                if (name, dimension) in missing:
                    continue
                try:
                    values.append(Value("gpu", name, dimension, float(reading(handle))))
                except nvml.NVMLError as error:
                    missing.add((name, dimension))
                    say_on_stderr(
                        f"the system profile lacks {dimension} of {name} from now on: {error}"
                    )
        return values

    return read

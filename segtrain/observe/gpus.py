"""What do the NVIDIA GPUs of this host do? Read by NVML, the library of nvidia-smi, through the package nvidia-ml-py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from segtrain.observe.profile_format import Value


def open_gpus(say: Callable[[str], None]) -> Callable[[], list[Value]]:
    """A function that reads all GPUs of the host, also those that this job does not use.

    What keeps the GPUs from being read is said once: a profile without them must not look like idle ones.
    """
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return lambda: []
    try:
        import pynvml
    except ImportError:
        say("the system profile lacks the GPUs: it needs the package 'nvidia-ml-py': pip install 'segtrain[gpu]'")
        return lambda: []
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(k) for k in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        say(f"the system profile lacks the GPUs: {error}: nvidia-smi should say more")
        return lambda: []
    return read_with(pynvml, handles, say)


def read_with(nvml: Any, handles: list[Any], say: Callable[[str], None]) -> Callable[[], list[Value]]:
    """``nvml``: the module ``pynvml``. A reading that a GPU does not give (a slice of one has no use) is left out from then on."""
    readings: list[tuple[str, dict[str, Callable[[], float]]]] = [
        (f"gpu{number}", _readings(nvml, handle)) for number, handle in enumerate(handles)
    ]

    def look() -> list[Value]:
        values = []
        for name, given in readings:
            for dimension in list(given):
                try:
                    values.append(Value("gpu", name, dimension, given[dimension]()))
                except nvml.NVMLError as error:
                    del given[dimension]
                    say(f"the system profile lacks {dimension} of {name} from here on: {error}")
        return values

    return look


def _readings(nvml: Any, handle: Any) -> dict[str, Callable[[], float]]:
    def memory() -> float:
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
        return 100.0 * info.used / info.total

    return {
        "GPUUtilization": lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "GPUMemoryUtilization": memory,
        "PowerInWatts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "SMClockInMHz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "MemoryClockInMHz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
    }

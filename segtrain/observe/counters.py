"""Counters of the cores, memory, disks, and network of this host, read by psutil, and the rates
between two samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from segtrain.observe.profile_format import Value

# user and nice include guest time
_PARTS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


@dataclass(frozen=True)
class Counters:
    """One sample. Values that are not percentages are totals since the host started."""

    at: float  # monotonic seconds
    # cpuN -> time of work, of I/O wait, and in total (any unit)
    cores: dict[str, tuple[float, float, float]]
    memory: float  # percent
    swap: float  # percent
    swapped: tuple[float, float]  # bytes in, out
    disk: tuple[float, float, float]  # transfers, bytes read, bytes written
    network: tuple[float, float]  # bytes received, sent


ReadCounters = Callable[[], Counters]


def rates(before: Counters, after: Counters) -> list[Value]:
    """Readings between two samples. A counter that was reset counts as unchanged."""
    values = []
    for name, (work, wait, whole) in after.cores.items():
        work_0, wait_0, whole_0 = before.cores.get(name, (work, wait, whole))
        if whole > whole_0:
            values.append(
                Value("cpu", name, "CPUUtilization", _percent(work - work_0, whole - whole_0))
            )
            values.append(
                Value("cpu", name, "I/OWaitPercentage", _percent(wait - wait_0, whole - whole_0))
            )
    seconds = max(after.at - before.at, 1e-6)
    totals = ((*sample.disk, *sample.network, *sample.swapped) for sample in (before, after))
    transfers, read, written, received, sent, swap_in, swap_out = (
        max(0.0, b - a) / seconds for a, b in zip(*totals)
    )
    return [
        *values,
        Value("memory", "MemoryUsedPercent", "", after.memory),
        Value("i/o", "IOPS", "", transfers),
        Value("i/o", "ReadThroughputInBytesPerSecond", "", read),
        Value("i/o", "WriteThroughputInBytesPerSecond", "", written),
        Value("network", "ReceiveBytesPerSecond", "Algorithm", received),
        Value("network", "TransmitBytesPerSecond", "Algorithm", sent),
        Value("network", "ReceiveBytesPerSecond", "Platform", 0.0),
        Value("network", "TransmitBytesPerSecond", "Platform", 0.0),
        Value("memory", "SwapUsedPercent", "Swap", after.swap),
        Value("memory", "SwapInBytesPerSecond", "Swap", swap_in),
        Value("memory", "SwapOutBytesPerSecond", "Swap", swap_out),
    ]


def _percent(part: float, whole: float) -> float:
    # The kernel's counter of I/O wait may decrease.
    return min(100.0, max(0.0, 100.0 * part / whole))


def open_counters() -> ReadCounters:
    import psutil

    disk_counters = partial(psutil.disk_io_counters, perdisk=True, nowrap=False)
    link_counters = partial(psutil.net_io_counters, pernic=True, nowrap=False)
    disks = _physical(disk_counters(), "/sys/block", ("loop", "ram", "zram", "dm-", "md"))
    links = _physical(link_counters(), "/sys/class/net", ("lo",))

    def read() -> Counters:
        cores = {}
        for number, times in enumerate(psutil.cpu_times(percpu=True)):
            parts = {name: getattr(times, name, 0.0) for name in _PARTS}
            whole, waited = sum(parts.values()), parts["iowait"]
            cores[f"cpu{number}"] = (whole - parts["idle"] - waited, waited, whole)
        swap = psutil.swap_memory()
        disk = [count for name, count in disk_counters().items() if name in disks]
        link = [count for name, count in link_counters().items() if name in links]
        return Counters(
            at=time.monotonic(),
            cores=cores,
            memory=psutil.virtual_memory().percent,
            swap=swap.percent,
            swapped=(swap.sin, swap.sout),
            disk=(
                sum(counts.read_count + counts.write_count for counts in disk),
                sum(counts.read_bytes for counts in disk),
                sum(counts.write_bytes for counts in disk),
            ),
            network=(
                sum(counts.bytes_recv for counts in link),
                sum(counts.bytes_sent for counts in link),
            ),
        )

    return read


def _physical(names: Iterable[str], folder: str, virtual: tuple[str, ...]) -> frozenset[str]:
    """Physical devices, so that traffic through a bridge or a volume counts once; if there are
    none, all others.

    A partition counts with its disk: Linux has no folder of its own for it in ``folder``.
    """
    candidates = [name for name in names if not name.startswith(virtual)]
    listed = [name for name in candidates if Path(folder, name).exists()]
    hardware = [name for name in listed if Path(folder, name, "device").exists()]
    return frozenset(hardware or listed or candidates)

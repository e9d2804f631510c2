"""Counters of the cores, memory, disks, and network of this host, and the rates between two samples.

On Linux, the files of /proc stay open and are read again, because psutil opens and parses them for each value
(bench/sampler_cost.py compares the two). On other systems, psutil reads the counters.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from segtrain.errors import MissingExtra
from segtrain.observe.profile_format import Value

SECTOR = 512  # bytes in /proc/diskstats, for disks of any sector size


@dataclass(frozen=True)
class Counters:
    """One sample. Values that are not percentages are totals since the host started."""

    at: float  # monotonic seconds
    cores: dict[str, tuple[float, float, float]]  # cpuN -> time of work, of I/O wait, and in total (any unit)
    memory: float  # percent
    swap: float  # percent
    swapped: tuple[float, float]  # bytes in, out
    disk: tuple[float, float, float]  # transfers, bytes read, bytes written
    network: tuple[float, float]  # bytes received, sent


Look = Callable[[], Counters]


def rates(before: Counters, after: Counters) -> list[Value]:
    """Readings between two samples. A counter that was reset counts as unchanged."""
    values = []
    for name, (work, wait, whole) in after.cores.items():
        work_0, wait_0, whole_0 = before.cores.get(name, (work, wait, whole))
        if whole > whole_0:
            values.append(Value("cpu", name, "CPUUtilization", _percent(work - work_0, whole - whole_0)))
            values.append(Value("cpu", name, "I/OWaitPercentage", _percent(wait - wait_0, whole - whole_0)))
    seconds = max(after.at - before.at, 1e-6)
    transfers, read, written = (max(0.0, b - a) / seconds for a, b in zip(before.disk, after.disk))
    received, sent = (max(0.0, b - a) / seconds for a, b in zip(before.network, after.network))
    swap_in, swap_out = (max(0.0, b - a) / seconds for a, b in zip(before.swapped, after.swapped))
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
    return min(100.0, max(0.0, 100.0 * part / whole))  # The kernel's counter of I/O wait may decrease.


def open_counters() -> Look:
    """The cheapest reader of counters on this system."""
    return linux() if sys.platform == "linux" else portable()


def linux(read: Callable[[str], bytes] | None = None) -> Look:
    """A reader of the files of /proc. ``read(name)`` returns the content of one (for tests and the benchmark)."""
    read = read or _Proc().read
    disks, links = _real("/sys/block", ("loop", "ram", "zram", "dm-", "md")), _real("/sys/class/net", ("lo",))
    page = os.sysconf("SC_PAGE_SIZE")

    def look() -> Counters:
        memory = _fields(read("meminfo"), (b"MemTotal", b"MemAvailable", b"SwapTotal", b"SwapFree"))
        paging = _fields(read("vmstat"), (b"pswpin", b"pswpout"))
        return Counters(
            at=time.monotonic(),
            cores=_cores(read("stat")),
            memory=_used(memory[b"MemTotal"], memory[b"MemAvailable"]),
            swap=_used(memory[b"SwapTotal"], memory[b"SwapFree"]),
            swapped=(paging[b"pswpin"] * page, paging[b"pswpout"] * page),
            disk=_disks(read("diskstats"), disks),
            network=_network(read("net/dev"), links),
        )

    return look


class _Proc:
    """Files of /proc that stay open: reading an open file again takes a third of the time of opening it."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def read(self, name: str) -> bytes:
        file = self._open.get(name)
        if file is None:
            file = self._open[name] = os.open(f"/proc/{name}", os.O_RDONLY | os.O_CLOEXEC)
        content = part = os.pread(file, 1 << 18, 0)
        while part:  # The kernel returns most of these files page by page.
            part = os.pread(file, 1 << 16, len(content))
            content += part
        return content

    def __del__(self) -> None:
        for file in self._open.values():
            os.close(file)


def _real(folder: str, never: tuple[str, ...]) -> frozenset[bytes]:
    """Physical devices, so that traffic through a bridge or a volume counts once; all devices if all are virtual."""
    names = [name for name in os.listdir(folder) if not name.startswith(never)] if os.path.isdir(folder) else []
    hardware = [name for name in names if Path(folder, name, "device").exists()]
    return frozenset(name.encode() for name in hardware or names)


def _cores(content: bytes) -> dict[str, tuple[float, float, float]]:
    cores: dict[str, tuple[float, float, float]] = {}
    for line in content.split(b"\n")[1:]:  # The first line is the sum of all cores.
        if not line.startswith(b"cpu"):
            break
        name, user, nice, system, idle, wait, *rest = line.split()
        waited = int(wait)
        work = int(user) + int(nice) + int(system) + sum(map(int, rest[:3]))  # user and nice include guest time.
        cores[name.decode()] = (work, waited, work + waited + int(idle))
    return cores


def _fields(content: bytes, names: tuple[bytes, ...]) -> dict[bytes, int]:
    """The number after each name at the start of a line; 0 if the name is absent (a kernel without swap)."""
    found = {}
    for name in names:
        at = content.find(b"\n" + name, 0) + 1 if not content.startswith(name) else 0
        words = content[at + len(name) : at + len(name) + 32].lstrip(b":").split(None, 1)
        found[name] = int(words[0]) if words and content.startswith(name, at) else 0
    return found


def _used(whole: float, free: float) -> float:
    return 100.0 * (whole - free) / whole if whole else 0.0


def _disks(content: bytes, names: frozenset[bytes]) -> tuple[float, float, float]:
    lines = [words for line in content.split(b"\n") if len(words := line.split(None, 10)) > 9 and words[2] in names]
    read, written = (SECTOR * sum(int(words[field]) for words in lines) for field in (5, 9))
    return sum(int(words[3]) + int(words[7]) for words in lines), read, written


def _network(content: bytes, names: frozenset[bytes]) -> tuple[float, float]:
    parts = (line.partition(b":") for line in content.split(b"\n"))
    counts = [rest.split(None, 9) for name, colon, rest in parts if colon and name.strip() in names]
    return sum(int(words[0]) for words in counts), sum(int(words[8]) for words in counts)


def portable() -> Look:
    """A reader with psutil. Raises MissingExtra without it."""
    try:
        import psutil
    except ImportError:
        raise MissingExtra("psutil", "", "the system profile") from None

    def look() -> Counters:
        cores = {}
        for number, times in enumerate(psutil.cpu_times(percpu=True)):
            part = {name: getattr(times, name, 0.0) for name in _PARTS}
            whole, waited = sum(part.values()), part["iowait"]
            cores[f"cpu{number}"] = (whole - part["idle"] - waited, waited, whole)
        swap, disk = psutil.swap_memory(), psutil.disk_io_counters()
        links = [link for name, link in psutil.net_io_counters(pernic=True).items() if not name.startswith("lo")]
        return Counters(
            at=time.monotonic(),
            cores=cores,
            memory=psutil.virtual_memory().percent,
            swap=swap.percent,
            swapped=(swap.sin, swap.sout),
            disk=(disk.read_count + disk.write_count, disk.read_bytes, disk.write_bytes) if disk else (0, 0, 0),
            network=(sum(link.bytes_recv for link in links), sum(link.bytes_sent for link in links)),
        )

    return look


_PARTS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

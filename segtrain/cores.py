"""CPU cores that this process may use, and the time for which a thread waited for one."""

from __future__ import annotations

import os
import threading
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
# Belongs to the thread that opens it. See Documentation/scheduler/sched-stats.rst in Linux.
SCHEDSTAT = "/proc/thread-self/schedstat"


def affinity() -> int:
    """Cores that this process may be scheduled on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(cgroup: Path = CGROUP) -> float | None:
    """Cores that the container may use (cgroup v2 or v1), possibly a fraction. None: no limit."""
    try:
        if (cgroup / "cpu.max").is_file():
            quota, period = (cgroup / "cpu.max").read_text().split()
        else:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def usable_cores(cgroup: Path = CGROUP) -> float:
    """Cores that this process can keep busy, possibly a fraction."""
    return min(float(affinity()), cpu_quota(cgroup) or float("inf"))


def cores(cgroup: Path = CGROUP) -> int:
    """Whole usable cores, at least one: a sensible number of ranks or threads."""
    return max(1, int(usable_cores(cgroup)))


class _Schedstat:
    """A file that stays open as long as its thread lives: a read takes 2 us instead of 7, for each sample."""

    def __init__(self) -> None:
        self.process = os.getpid()
        try:
            self.number = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # not Linux, or a kernel without these statistics
            self.number = -1

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


_here = threading.local()


def runqueue_wait() -> float | None:
    """Run-queue wait: seconds for which this thread was ready but had no core. None if Linux does not count them."""
    file = getattr(_here, "file", None)
    if file is None or file.process != os.getpid():  # forked: the file belongs to a thread of the parent
        file = _here.file = _Schedstat()
    try:
        return int(os.pread(file.number, 64, 0).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None

"""CPU cores that this process may use, how long a thread waited for a core, and how often it waited
for the disk.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
# Statistics of the thread that opens this file. See Documentation/scheduler/sched-stats.rst in
# Linux.
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


def tasks_per_node(environ: Mapping[str, str]) -> list[int]:
    """Tasks of a Slurm step on each of its nodes: ``2(x3),1`` means 2 on each of three nodes, then
    1 on the next.
    """
    return [
        int(count)
        for count, times in re.findall(
            r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", "")
        )
        for _ in range(int(times or 1))
    ]


def slurm_cores(environ: Mapping[str, str]) -> tuple[int | None, int]:
    """Cores that a Slurm job has on this node (None: outside of a job), and the tasks of this step
    that share them.

    Slurm may bind each task to its own cores, or leave the job free to use all of the node's.
    """
    cores = environ.get("SLURM_CPUS_ON_NODE", "")
    if "SLURMD_NODENAME" not in environ or not cores.isdigit():
        return None, 1
    tasks, node = tasks_per_node(environ), environ.get("SLURM_NODEID", "0")
    here = tasks[int(node)] if node.isdigit() and int(node) < len(tasks) else 1
    each = environ.get("SLURM_CPUS_PER_TASK", "")
    return min(int(cores), int(each) * here) if each.isdigit() and tasks else int(cores), here


def usable_cores(cgroup: Path = CGROUP) -> float:
    """Cores that this process and the other ranks of its host can keep busy, possibly a
    fraction.
    """
    job, sharing = slurm_cores(os.environ)
    return min(float(affinity() * sharing), cpu_quota(cgroup) or float("inf"), job or float("inf"))


def cores(cgroup: Path = CGROUP) -> int:
    """Whole usable cores, at least one: a sensible number of ranks or threads."""
    return max(1, int(usable_cores(cgroup)))


class _Schedstat:
    """The schedstat file of a thread, open as long as the thread lives: a read then takes 2 us
    instead of 7 us.
    """

    def __init__(self) -> None:
        import ctypes

        self.process, self.text = os.getpid(), ctypes.create_string_buffer(64)
        try:
            self.number = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
            # os.pread gives up the GIL, and waiting for it takes longer than this read.
            self.pread = ctypes.PyDLL(None).pread
            self.pread.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
        except OSError:  # not Linux, or a kernel without these statistics
            self.number = -1

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


_here = threading.local()


def runqueue_wait() -> float | None:
    """Run-queue wait: seconds for which this thread was ready but had no core. None if Linux does
    not count them.
    """
    file = getattr(_here, "file", None)
    # forked: the file belongs to a thread of the parent
    if file is None or file.process != os.getpid():
        file = _here.file = _Schedstat()
    try:
        if file.number < 0 or file.pread(file.number, file.text, 64, 0) < 0:
            return None
        return int(file.text.value.split()[1]) / 1e9
    except (ValueError, IndexError):
        return None


def major_faults() -> int:
    """How often this thread needed a page of a mapped file that was not in memory; 0 if the system
    does not count.
    """
    with suppress(ImportError, AttributeError):
        import resource

        return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    return 0

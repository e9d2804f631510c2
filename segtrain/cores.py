"""Number of CPU cores that this process may use: its affinity, limited by the container's quota."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


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

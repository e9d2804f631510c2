"""How many CPU cores may this process use? Its affinity, cut by the container's quota. No room: everybody may ask."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def affinity() -> int:
    """Cores that this process may be scheduled on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(cgroup: Path = CGROUP) -> float | None:
    """Cores that the container grants (cgroup v2 or v1), perhaps a fraction; None: no limit."""
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
    """Cores that this process can keep busy, perhaps a fraction."""
    return min(float(affinity()), cpu_quota(cgroup) or float("inf"))


def cores(cgroup: Path = CGROUP) -> int:
    """Whole cores, at least one: how many ranks or threads make sense here."""
    return max(1, int(usable_cores(cgroup)))

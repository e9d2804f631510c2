"""How much memory may this process use, and how much is free? The host's, cut by the container's limit. No room: everybody may ask."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def memory_limit(cgroup: Path = CGROUP) -> tuple[float, str]:
    """Bytes that this process may use at all, and who says so: 'host' or 'cgroup' (v2 or v1). (inf, 'unknown') where nobody does."""
    limit, says = float("inf"), "unknown"
    if {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(getattr(os, "sysconf_names", ())):
        limit, says = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")), "host"
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            granted = float((cgroup / name).read_text())
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
        return (granted, "cgroup") if granted < limit else (limit, says)
    return limit, says


def memory_free(cgroup: Path = CGROUP) -> float:
    """Bytes that are free now: the host's by Linux's own estimate, or what a container has left if that is less."""
    free, _ = memory_limit(cgroup)
    try:
        fields = dict(line.split(b":", 1) for line in Path("/proc/meminfo").read_bytes().splitlines())
        free = min(free, 1024.0 * float(fields[b"MemAvailable"].split()[0]))
        most, used = ((cgroup / name).read_bytes() for name in ("memory.max", "memory.current"))
        kinds = dict(line.split() for line in (cgroup / "memory.stat").read_bytes().splitlines())
        # Copies of files, which the kernel gives up when memory is asked for.
        files = float(kinds[b"active_file"]) + float(kinds[b"inactive_file"])
        free = min(free, max(0.0, float(most) - float(used) + files))  # a number, or "max"
    except (OSError, ValueError, KeyError):
        pass  # no Linux, or no limit of a container
    return free

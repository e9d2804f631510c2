"""Memory limit and free memory of this process: of the host, or of the container if that is
less.
"""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
# For cgroup versions 2 and 1: the files with the memory limit, the memory in use, and the memory in
# use by kind. The last entry is the prefix of the names of the kinds.
_CGROUPS = (
    ("memory.max", "memory.current", "memory.stat", b""),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        b"total_",
    ),
)


def memory_limit(cgroup: Path = CGROUP) -> tuple[float, str]:
    """Bytes that this process may use, and their source: 'host' or 'cgroup' (v2 or v1)."""
    limit = float(psutil.virtual_memory().total)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            granted = float((cgroup / name).read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        return (granted, "cgroup") if granted < limit else (limit, "host")
    return limit, "host"


def memory_free(cgroup: Path = CGROUP) -> float:
    """Free bytes of the host, by the system's estimate, or of the container (cgroup v2 or v1) if
    that is less.
    """
    free = min(memory_limit(cgroup)[0], float(psutil.virtual_memory().available))
    for most_file, used_file, kinds_file, prefix in _CGROUPS:
        try:
            most, used = ((cgroup / name).read_bytes() for name in (most_file, used_file))
            kinds = dict(line.split() for line in (cgroup / kinds_file).read_bytes().splitlines())
            # The page cache counts as free, because the kernel frees it when needed.
            files = sum(float(kinds[prefix + kind]) for kind in (b"active_file", b"inactive_file"))
            # float("max"), no limit, raises ValueError
            free = min(free, max(0.0, float(most) - float(used) + files))
        except (OSError, ValueError, KeyError):
            continue  # another version, or no container limit
    return free

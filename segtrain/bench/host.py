"""What has this process used of its host? The memory and the CPU time of it and its children."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def descendants(root: int | None = None) -> list[int]:
    """This process (or ``root``) and all its children, their children, ...; only itself where there is no /proc."""
    root = root or os.getpid()
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # it ended just now
            continue
    tree = [root]
    for process in tree:
        tree.extend(child for child, parent in parents.items() if parent == process)
    return tree


def tree_cpu_s() -> float:
    """CPU seconds that this process, its children and those of them that have ended have used so far."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    total = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    for process in descendants()[1:]:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / _TICK  # utime, stime, cutime, cstime
    return total


def tree_memory() -> int:
    """Bytes of memory of this process and its children; what they share counts once (PSS), or 0 where it cannot be read."""
    total = 0
    for process in descendants():
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024
    return total

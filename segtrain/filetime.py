"""Current time by the clock of a folder's file system, which may be that of a file server."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path


def now_ns(folder: Path) -> int:
    """Unix time in nanoseconds, from a temporary file in ``folder``; of this machine if it is not writable."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return time.time_ns()

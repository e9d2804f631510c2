"""The time by the clock that stamps the files of a folder: that of a file server may differ from this machine's."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path


def now_ns(folder: Path) -> int:
    """Unix time in nanoseconds, of a file that is made in ``folder`` and gone at once; this machine's where none can be made."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return time.time_ns()

"""Time to read a file that is not in the page cache: its pages are dropped first, where the system can show that."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

WHY_NOT = {
    "no files": "the samples are no plain files",
    "no call": "this system cannot drop pages",
    "kept": "the file system keeps its pages in memory",
}


class ColdRead:
    """Cold reads of one file after another, and the reason where they cannot be told from warm ones."""

    def __init__(self) -> None:
        self._wall_ms: list[float] = []
        self._bytes = 0
        self._why = "no files"

    def file(self, path: str) -> int:
        """Drop the pages of a file and read it. Returns the bytes read; 0 if it is not a file or stayed in memory."""
        if not path or not os.path.isfile(path):
            return 0
        if not dropped(path):
            self._why = "kept" if hasattr(os, "posix_fadvise") else "no call"
            return 0
        begin = time.perf_counter()
        content = Path(path).read_bytes()
        self._wall_ms.append(1000 * (time.perf_counter() - begin))
        self._bytes += len(content)
        return len(content)

    def to_dict(self) -> dict[str, Any]:
        """``ms_a_file`` (mean wall) and ``mb_per_s`` of one stream; or ``why_not``."""
        if not self._wall_ms:
            return {"why_not": WHY_NOT[self._why]}
        seconds = sum(self._wall_ms) / 1000
        return {
            "files": len(self._wall_ms),
            "ms_a_file": statistics.fmean(self._wall_ms),
            "mb_per_s": self._bytes / 1e6 / max(seconds, 1e-9),
        }


def dropped(path: str) -> bool:
    """Ask the system to forget the file's pages; whether its first page has really gone."""
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "preadv"):
        return False
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(handle)  # pages that are still to be written cannot be dropped
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.preadv(handle, [bytearray(1)], 0, os.RWF_NOWAIT)
        return False  # it was there at once
    except BlockingIOError:
        return True
    except OSError:  # a file system that knows no RWF_NOWAIT (tmpfs, some network and union ones)
        return False
    finally:
        os.close(handle)

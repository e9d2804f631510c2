"""Time to read a file that is not in the page cache: its pages are dropped first, where the system can show that."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NO_FILES = "the samples are not files of their own"
NO_CALL = "this system cannot drop pages"
KEPT = "the file system keeps its pages in memory"


def cold_reads(paths: Iterable[str | None]) -> dict[str, Any]:
    """``ms_a_file`` (mean wall milliseconds) and ``mb_per_s`` of one reader; or ``why_not``, where pages stay."""
    sizes, seconds, why = [], 0.0, NO_FILES
    for path in paths:
        if not path or not os.path.isfile(path):
            continue
        if not dropped(path):
            why = KEPT if hasattr(os, "posix_fadvise") else NO_CALL
            continue
        begin = time.perf_counter()
        sizes.append(len(Path(path).read_bytes()))
        seconds += time.perf_counter() - begin
    if not sizes:
        return {"why_not": why}
    mean, rate = 1000 * seconds / len(sizes), sum(sizes) / 1e6 / max(seconds, 1e-9)
    return {"files": len(sizes), "ms_a_file": mean, "mb_per_s": rate}


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

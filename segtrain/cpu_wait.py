"""Run-queue wait of a thread: the time in which it was ready to run but had no core, as Linux counts it."""

from __future__ import annotations

import os
import threading

# Belongs to the thread that opens it. See Documentation/scheduler/sched-stats.rst in Linux.
FILE = "/proc/thread-self/schedstat"


class _File:
    """Stays open as long as its thread lives, so that a read takes only microseconds."""

    def __init__(self) -> None:
        try:
            self.number = os.open(FILE, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # not Linux, or a kernel without these statistics
            self.number = -1

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class _ThreadWait(threading.local):
    def __init__(self) -> None:
        self.file, self.process = _File(), os.getpid()


_here = _ThreadWait()


def runqueue_wait() -> float | None:
    """Seconds that this thread has waited for a core since it started. None if the kernel does not count them."""
    here = _here
    if here.process != os.getpid():  # forked: the file belongs to a thread of the parent
        here.file, here.process = _File(), os.getpid()
    if here.file.number < 0:
        return None
    try:
        return int(os.pread(here.file.number, 64, 0).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None

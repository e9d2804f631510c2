"""How long did this thread wait for a core? Linux counts it: time in which a thread could have run, and others had all cores."""

from __future__ import annotations

import os
import threading

FILE = "/proc/thread-self/schedstat"  # of the thread that opens it; Documentation/scheduler/sched-stats.rst of Linux


class _File:
    """Open as long as its thread lives: to ask costs some microseconds then."""

    def __init__(self) -> None:
        try:
            self.number = os.open(FILE, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # no Linux, or a kernel that does not count
            self.number = -1

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class _ThreadWait(threading.local):
    def __init__(self) -> None:
        self.file, self.process = _File(), os.getpid()


_here = _ThreadWait()


def runqueue_wait() -> float | None:
    """Seconds since this thread began; None where nobody counts them."""
    here = _here
    if here.process != os.getpid():  # a fork took the file of its parent's thread along
        here.file, here.process = _File(), os.getpid()
    if here.file.number < 0:
        return None
    try:
        return int(os.pread(here.file.number, 64, 0).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None

"""Is the time in which a thread could have run, and had no core, counted for that thread alone?"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

import segtrain.late
from segtrain.late import late
from segtrain.observe.clock import Clock

if late() is None:
    pytest.skip("this system does not count how late a thread is", allow_module_level=True)

BUSY = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


def work(seconds: float) -> float:
    """Seconds of CPU time; returns the wall time."""
    begin, end = time.perf_counter(), time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return time.perf_counter() - begin


def asked() -> float:
    seconds = late()
    assert seconds is not None
    return seconds


def beside(do: object) -> None:
    """``do`` in a thread that shares one core with another program."""
    core = min(os.sched_getaffinity(0))
    other = subprocess.Popen([sys.executable, "-c", BUSY, str(core)], stdout=subprocess.PIPE)
    failed: list[BaseException] = []

    def run() -> None:
        os.sched_setaffinity(0, {core})  # of this thread
        try:
            do()  # type: ignore[operator]
        except BaseException as error:
            failed.append(error)

    try:
        assert other.stdout is not None
        other.stdout.readline()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        other.kill()
        other.communicate()
    if failed:
        raise failed[0]


def test_a_thread_that_shares_its_core_is_late_by_what_it_does_not_run() -> None:
    def shared() -> None:
        before, cpu = asked(), time.thread_time()
        wall = work(0.2)
        missing = wall - (time.thread_time() - cpu)
        assert missing > 0.05  # the other program had its part
        assert asked() - before == pytest.approx(missing, rel=0.2)

    beside(shared)


def test_a_thread_that_sleeps_is_not_late() -> None:
    before, begin = asked(), time.perf_counter()
    time.sleep(0.3)
    assert asked() - before < 0.5 * (time.perf_counter() - begin)


def test_a_clock_leaves_the_time_of_waiting_out() -> None:
    def shared() -> None:
        found = {}
        for phase in ("forward", "wait"):
            clock = Clock()
            for _ in range(20):  # of which it looks at some, that stand for all
                with clock(phase):
                    work(0.02)
                clock.mark()
            found[phase] = clock.late
        assert found["forward"] > 0.1  # type: ignore[operator]
        assert found["wait"] < found["forward"] / 2  # type: ignore[operator]

    beside(shared)


def test_a_fork_counts_for_itself() -> None:
    asked()
    child = os.fork()
    if not child:
        asked()
        os._exit(f"/{os.getpid()}/" not in os.readlink(f"/proc/self/fd/{segtrain.late._here.file.number}"))
    assert os.waitpid(child, 0)[1] == 0

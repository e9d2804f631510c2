"""Tests that the time in which a thread had no core is counted for that thread only."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from segtrain.base.cores import SCHEDSTAT, runqueue_wait
from segtrain.observe.clock import Clock

if runqueue_wait() is None:
    pytest.skip("this system does not count how late a thread is", allow_module_level=True)

BUSY = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


PATIENCE_S = 600.0


def counted() -> float:
    """What the kernel's file says of this thread, read without the code that is tested: seconds
    without a core.
    """
    with open(SCHEDSTAT) as file:
        return int(file.read().split()[1]) / 1e9


def work_until_cpu_wait_by(seconds: float) -> None:
    """However the cores are shared out, the kernel itself says when it is enough."""
    goal, end = counted() + seconds, time.monotonic() + PATIENCE_S
    while counted() < goal:
        assert time.monotonic() < end, "the other program never had the core"


def asked() -> float:
    seconds = runqueue_wait()
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


def test_a_thread_that_shares_its_core_is_late_by_what_the_kernel_counts():
    def shared() -> None:
        outer = counted()
        before = asked()
        inner = counted()
        work_until_cpu_wait_by(0.1)
        inner = counted() - inner
        found = asked() - before
        outer = counted() - outer
        assert 0.1 <= inner <= found <= outer

    beside(shared)


def test_a_thread_that_sleeps_is_not_late():
    """At most by what it slept too long, when it had no core to wake up on."""

    def slept() -> bool:
        begin, before = time.perf_counter(), asked()
        time.sleep(0.3)
        runqueue_wait = asked() - before
        return runqueue_wait <= time.perf_counter() - begin - 0.3 + 1e-3

    # it may also lose its core between two calls, on the way into its sleep
    assert any(slept() for _ in range(5))


def test_a_clock_leaves_the_time_of_waiting_out(monkeypatch):
    """Late by 3 s in ``forward``, by 5 s in ``wait``, by 1 s outside of both, in each of 21 laps.

    It looks at every other one.
    """
    now = [0.0, 0.0]  # seconds that passed, and those without a core
    monkeypatch.setattr("segtrain.observe.clock.runqueue_wait", lambda: now[1])
    clock = Clock(lambda: now[0])
    for _ in range(21):
        with clock("forward"):
            now[1] += 3
        with clock("wait"):
            now[1] += 5
        now[0] += 1.0
        now[1] += 1
        clock.mark()
    assert clock.cpu_wait == 21 * 4


def test_a_fork_counts_for_itself():
    asked()
    child = os.fork()
    if not child:
        before, found = counted(), asked()
        os._exit(not before <= found <= counted())
    assert os.waitpid(child, 0)[1] == 0

"""Shows the project's own modules a Mac; libraries still see Linux. Use: PYTHONPATH=tests/as_mac
segtrain ...

It shows missing calls, files, and start methods. It does not show another kernel, C library, or
file system.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import resource
import select
import signal
import socket
import sys
import time
import types
from collections import namedtuple
from collections.abc import Callable
from multiprocessing import context
from typing import Any

import psutil  # while /proc is still there

OURS = {"segtrain", "launch"}
# Modules that open or look up a path for their caller.
PASSED = {
    "pathlib",
    "os",
    "genericpath",
    "posixpath",
    "shutil",
    "glob",
    "io",
    "ctypes",
    "tempfile",
    __name__,
}
# What Linux has and a Mac lacks.
ABSENT: dict[Any, str] = {
    os: "sched_getaffinity sched_setaffinity posix_fadvise posix_fallocate memfd_create setns unshare eventfd "
    "fdatasync pidfd_open copy_file_range splice getxattr setxattr O_DIRECT O_PATH O_TMPFILE O_NOATIME RWF_NOWAIT "
    "waitid pipe2",
    select: "epoll",
    resource: "RUSAGE_THREAD prlimit",
    time: "CLOCK_BOOTTIME pthread_getcpuclockid",
    signal: "SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT SIGPOLL sigwaitinfo sigtimedwait pidfd_send_signal",
    socket: "AF_NETLINK AF_PACKET AF_VSOCK SO_BINDTODEVICE SO_PEERCRED SOCK_NONBLOCK SOCK_CLOEXEC TCP_USER_TIMEOUT "
    "TCP_KEEPIDLE TCP_QUICKACK TCP_INFO MSG_NOSIGNAL",
    psutil.Process: "cpu_affinity io_counters ionice rlimit memory_maps",
}


def asked_by_us(frame: types.FrameType | None) -> bool:
    """Whether the project asks, directly or through the standard library's functions for paths."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in PASSED:
            return package in OURS
        frame = frame.f_back
    return False


def refuse(path: object, frame: types.FrameType | None) -> None:
    """Raise FileNotFoundError if the project asks for a path that only Linux has."""
    if isinstance(path, (str, bytes, os.PathLike)):
        name = os.fsdecode(path)
        if re.match("/(proc|sys|dev/shm)(/|$)", name) and asked_by_us(frame):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
    def guard(path: Any = ".", *more: Any, **named: Any) -> Any:
        refuse(path, sys._getframe(1))
        return call(path, *more, **named)

    return guard


def audited(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        refuse(arguments[0], sys._getframe().f_back)


class System(types.ModuleType):
    """The module sys of a Mac."""

    @property
    def platform(self) -> str:
        return "darwin" if asked_by_us(sys._getframe(1)) else "linux"


Times = namedtuple("Times", "user nice system idle")
linux_times = psutil.cpu_times


def cpu_times(percpu: bool = False) -> Any:
    return [Times(*row[:4]) for row in linux_times(True)] if percpu else Times(*linux_times()[:4])


for module, names in ABSENT.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("stat", "lstat", "readlink", "access", "statvfs", "listdir", "scandir"):
    setattr(os, name, guarded(getattr(os, name)))
sys.addaudithook(audited)
sys.__class__ = System
linux_system = platform.system
platform.system = lambda: "Darwin" if asked_by_us(sys._getframe(1)) else linux_system()
psutil.cpu_times = cpu_times
context._default_context._default_context = context._concrete_contexts["spawn"]  # type: ignore[attr-defined]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

"""Hosts as network namespaces, joined by links with a given rate and latency.

The kernel here may have no netem, so the links are TUN devices: a process takes each packet from the sender's device,
and writes it to the receiver's when a link of that rate and latency would have delivered it. Rate and latency are in a
shared file, and may change at any time. Needs root.
"""

from __future__ import annotations

import fcntl
import heapq
import mmap
import os
import select
import struct
import subprocess
import sys
import time
from pathlib import Path

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
# Large packets cost a Python process less. One packet takes 1.4 ms at 50 Mbit/s, and 0.04 ms at 2 Gbit/s.
MTU = 9000
SUBNET = "10.99.0"
_STATE = struct.Struct("dd")  # bytes/s of each direction of a host's link, seconds of one way


class Link:
    """Rate in bytes/s and latency in seconds of all links, in a file that processes share."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_STATE.pack(1e9, 0.0))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _STATE.size)

    def set(self, rate: float, latency: float) -> None:
        self._memory[:] = _STATE.pack(rate, latency)  # in one piece; pack_into writes zeros first

    def get(self) -> tuple[float, float]:
        return _STATE.unpack_from(self._memory)


def address(host: int) -> str:
    return f"{SUBNET}.{host + 1}"


def space(host: int) -> str:
    return f"seglink{host}"


def inside(host: int, *command: str) -> list[str]:
    """The command, run in the namespace of a host."""
    return ["nsenter", f"--net=/run/netns/{space(host)}", *command]


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def make(host: int) -> int:
    """Make a host's namespace and its device; returns the file descriptor of the device."""
    name = space(host)
    _run("ip", "netns", "add", name)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    _run("ip", "link", "set", name, "netns", name)
    _run("ip", "-n", name, "link", "set", "lo", "up")
    _run("ip", "-n", name, "addr", "add", f"{address(host)}/24", "dev", name)
    _run("ip", "-n", name, "link", "set", name, "mtu", str(MTU), "txqueuelen", "20000", "up")
    # As after minutes of training, TCP should be limited by the link alone, and not by a window that has yet to grow.
    # (Cubic ends its slow start early when delays vary, and then needs many seconds.)
    memory = "4096 8388608 16777216"
    for setting in (
        "tcp_congestion_control=reno", "tcp_slow_start_after_idle=0", f"tcp_rmem={memory}", f"tcp_wmem={memory}",
    ):  # fmt: skip
        _run(*inside(host, "sysctl", "-qw", f"net.ipv4.{setting}"))
    return tun


def remove(host: int) -> None:
    subprocess.run(["ip", "netns", "delete", space(host)], check=False, stderr=subprocess.DEVNULL)


def serve(hosts: int, link: Link) -> None:
    """Carry packets until this process is killed."""
    tuns = [make(host) for host in range(hosts)]
    print("ready", flush=True)
    of = {bytes(map(int, address(host).split("."))): host for host in range(hosts)}
    free = [0.0] * hosts  # when the sender's link has sent all that it took
    due: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        now = time.perf_counter()
        while due and due[0][0] <= now:
            _, _, to, packet = heapq.heappop(due)
            os.write(tuns[to], packet)
        wait = max(0.0, due[0][0] - time.perf_counter()) if due else None
        ready = select.select(tuns, [], [], wait)[0]
        rate, latency = link.get()
        for tun in ready:
            source = tuns.index(tun)
            for _ in range(64):
                try:
                    packet = os.read(tun, MTU + 100)
                except BlockingIOError:
                    break
                to = of.get(packet[16:20])
                if to is None:  # such as IPv6 and multicast
                    continue
                free[source] = max(free[source], time.perf_counter()) + len(packet) / rate
                number += 1
                heapq.heappush(due, (free[source] + latency, number, to, packet))


if __name__ == "__main__":
    os.nice(-10)
    serve(int(sys.argv[1]), Link(Path(sys.argv[2])))

"""A network for nodes on one machine: each in a namespace of its own, on one bridge, and able to
vanish in silence.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass, field

UPLINK = "e0"  # the interface of a node


class NoNetwork(Exception):
    """Why this machine allows no network namespaces."""


def _ip(*words: str) -> str:
    """The output of ``ip``. Raises NoNetwork where it fails."""
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoNetwork("no ip (apt-get install iproute2)") from None
    if done.returncode:
        raise NoNetwork(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass
class NodeNetworks:
    """A bridge of this process, and the namespaces of its nodes. A context manager: it takes all
    away at its end.
    """

    nodes: list[str] = field(default_factory=list)
    bridge: str = f"seg{os.getpid()}"
    subnet: str = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"

    def __enter__(self) -> NodeNetworks:
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.subnet}.254/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for node in list(self.nodes):
            self.vanish(node)
        with contextlib.suppress(NoNetwork):
            _ip("link", "delete", self.bridge)

    @property
    def address(self) -> str:
        """The address of the machine outside of all nodes."""
        return f"{self.subnet}.254"

    def of(self, node: str) -> str:
        """The address of a node, now and whenever it comes back: nodes are called n1, n2, ..."""
        return f"{self.subnet}.{node.removeprefix('n')}"

    def add(self, node: str) -> None:
        """Make a node's namespace, with its link to the bridge."""
        space = self._space(node)
        _ip("netns", "add", space)
        self.nodes.append(node)
        _ip("link", "add", space, "type", "veth", "peer", "name", UPLINK, "netns", space)
        _ip("link", "set", space, "master", self.bridge, "up")
        _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", space, "addr", "add", f"{self.of(node)}/24", "dev", UPLINK)
        _ip("-n", space, "link", "set", UPLINK, "up")

    def inside(self, node: str, *command: str) -> list[str]:
        """The command, run in a node with the node's host name. (``ip netns exec`` would hide the
        cgroups.)
        """
        names = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', node]
        return ["nsenter", f"--net=/run/netns/{self._space(node)}", *names, *command]

    def connect(self, node: str, up: bool) -> None:
        """Pull a node's cable, or plug it in again."""
        _ip("link", "set", self._space(node), "up" if up else "down")

    def vanish(self, node: str) -> None:
        """As if the power went off: first the link, so that no peer hears of it, then all
        processes, then the rest.
        """
        space = self._space(node)
        self.nodes.remove(node)
        self.connect(node, False)
        for pid in self.pids(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _ip("link", "delete", space)
        _ip("netns", "delete", space)

    def pids(self, node: str) -> list[int]:
        """The processes of a node."""
        return [int(pid) for pid in _ip("netns", "pids", self._space(node)).split()]

    def _space(self, node: str) -> str:
        """The name of the namespace, and of the link's end at the bridge."""
        return f"{self.bridge}-{node}"

"""Hosts of a Ray cluster on this machine, each with a network and a folder of Ray of its own. n1
has the head.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import psutil
import pytest
from conftest import ROOT
from node_networks import NodeNetworks, NoNetwork
from waiting import soon

HEAD, PORT = "n1", 6379
# A host's folder of Ray takes the place of the one that the head names: Ray finds its node on a
# host by that folder.
OWN_FOLDER = 'mkdir -p "$0" && mount --bind "$0" "$1" && shift && exec "$@"'


NODES = """
import ray
ray.init(logging_level="error", log_to_driver=False)
for node in ray.nodes():
    if node["Alive"]:
        print(node["NodeManagerHostname"], node["NodeID"])
"""


# A transform that takes a second until the file ``quick`` is there, and then ``least`` seconds. It
# needs enough CPU time that helpers pay.
TRANSFORM = """
import time
from pathlib import Path

def slow(image, mask, rng):
    end = time.thread_time() + 0.005
    while time.thread_time() < end:
        pass
    time.sleep({least} if Path({quick!r}).exists() else 1)
    return image, mask
"""


class RayHosts:
    """A context manager, see ``ray_hosts``. ``folder``: a short path."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ray = folder, folder / "ray"
        self._ray.mkdir()
        self._networks = NodeNetworks()
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> RayHosts:
        self._networks.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._networks.__exit__(kind, error, at)  # ends all processes in them
        for node in self._nodes.values():
            node.wait()

    @property
    def environment(self) -> dict[str, str]:
        ray = {
            "ADDRESS": f"{self._networks.of(HEAD)}:{PORT}",
            "USAGE_STATS_ENABLED": "0",
            "worker_niceness": "0",
        }
        token = {"AUTH_MODE": "token", "AUTH_TOKEN": "ab" * 32}
        return {**self.plain(), **{f"RAY_{key}": value for key, value in {**ray, **token}.items()}}

    @staticmethod
    def plain() -> dict[str, str]:
        """Variables of all processes, also of those without Ray."""
        return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def run(
        self, host: str, *command: str, cwd: Path, log: Path, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host, with its output appended to ``log``."""
        with log.open("ab") as out:
            return subprocess.Popen(
                self._networks.inside(host, *self._apart(host), *command),
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                env={**self.environment, **environment},
            )

    def start(self) -> None:
        """Start the head."""
        self._networks.add(HEAD)
        head = (
            "--head",
            f"--port={PORT}",
            "--num-cpus=0",
            "--include-dashboard=false",
            f"--temp-dir={self._ray}",
        )
        self._start(HEAD, *head)

    def add(self, host: str, cores: int = 1, labels: str = "") -> None:
        """A host, new or back after it was lost, joins."""
        if host not in self._networks.nodes:
            self._networks.add(host)
        labeled = (f"--labels={labels}",) if labels else ()
        self._start(
            host, f"--address={self._networks.of(HEAD)}:{PORT}", f"--num-cpus={cores}", *labeled
        )

    def nodes(self) -> dict[str, str]:
        """The IDs of the nodes that have joined, by host."""
        return dict(line.split() for line in self._ask("-c", NODES).splitlines())

    def ray(self, *words: str) -> None:
        """Run a command of Ray."""
        self._ask("-m", "ray.scripts.scripts", *words)

    def _ask(self, *words: str) -> str:
        command = self._networks.inside(HEAD, *self._apart(HEAD), sys.executable, *words)
        return subprocess.run(
            command, env=self.environment, check=True, capture_output=True, text=True
        ).stdout

    def _apart(self, host: str) -> list[str]:
        """What gives a command the host's folder of Ray."""
        return [
            "unshare",
            "--mount",
            "sh",
            "-c",
            OWN_FOLDER,
            str(self._folder / host),
            str(self._ray),
        ]

    def lose(self, host: str) -> None:
        """As if the power went off."""
        self._networks.vanish(host)
        self._nodes[host].wait()

    def connect(self, host: str, up: bool) -> None:
        self._networks.connect(host, up)

    def helpers(self) -> Iterator[psutil.Process]:
        """The processes of helpers that run."""
        for host in self._networks.nodes:
            for pid in self._networks.pids(host):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one = psutil.Process(pid)
                    if (
                        one.name().startswith("ray::RayHelper")
                        and one.status() != psutil.STATUS_STOPPED
                    ):
                        yield one

    @contextlib.contextmanager
    def having(self, *hosts: str, labels: str = "") -> Iterator[None]:
        """Hosts of one core each, which leave at the end."""
        try:
            for host in hosts:
                self.add(host, labels=labels)
            assert soon(lambda: self.nodes().keys() >= set(hosts)), (
                "the head does not know all hosts"
            )
            yield
        finally:
            for host in set(hosts).intersection(self._networks.nodes):
                self._nodes[host].terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._nodes[host].wait(30)
                self.lose(host)

    def _start(self, host: str, *words: str) -> None:
        """Start Ray on a host, and wait until it is up. Ray itself gives up after 30 s; a busy
        machine may need more.
        """
        ray = (
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            "--object-store-memory=100000000",
        )
        address = f"--node-ip-address={self._networks.of(host)}"
        for _ in range(4):
            log = Path(tempfile.mkstemp(suffix=f"-{host}.log", dir=self._folder)[1])
            self._nodes[host] = self.run(
                host, *ray, address, *words, cwd=self._folder, log=log, RAY_ADDRESS=""
            )
            if _runs(self._nodes[host], log):
                return
        raise AssertionError(log.read_text())


def _runs(node: subprocess.Popen[bytes], log: Path) -> bool:
    """Whether a node is up, after waiting for that or for its end."""
    assert soon(lambda: "Ray runtime started" in log.read_text() or node.poll() is not None)
    return node.poll() is None


@contextlib.contextmanager
def ray_hosts() -> Iterator[RayHosts]:
    """n1 with the head. Skips the test where no namespaces can be made."""
    with contextlib.ExitStack() as stack:
        # sockets need short names
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="st", dir="/tmp"))
        try:
            started = stack.enter_context(RayHosts(Path(folder)))
        except NoNetwork as why:
            pytest.skip(f"no network namespaces here: {why}")
        started.start()
        yield started

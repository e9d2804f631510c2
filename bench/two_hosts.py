"""Two hosts on this machine with a Ray cluster: a small one that trains, on core 0, and one that
helps, on core 1.

A host is a network namespace whose processes are held to its cores, and counted in a cgroup. It
needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "tests/kit")]

from node_networks import UPLINK, NodeNetworks  # noqa: E402

PYTHONPATH = f"{HERE.parent}:{HERE}"  # for all processes
TRAINS, HELPS = "n1", "n2"
CORE = {TRAINS: "0", HELPS: "1"}
_PORT = 6379
_STORE = 300_000_000
_UP_S, _END_S = 60.0, 20.0
_TRIES = 3  # on a machine that is busy, Ray gives up after half a minute


def soon(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for a condition. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"no {what} after {seconds:g} s")
        time.sleep(0.1)


def _up(node: subprocess.Popen[bytes], log: Path) -> bool:
    """Wait until a node of Ray is up, or has ended."""
    soon(
        lambda: node.poll() is not None or "Ray runtime started" in log.read_text(),
        _UP_S,
        "node of Ray",
    )
    return node.poll() is None


class Processes:
    """The processes of a host: a cgroup, of version 1 or 2."""

    def __init__(self, name: str) -> None:
        old = Path("/sys/fs/cgroup/cpuacct")
        self._old = old.is_dir()
        self.folder = (old if self._old else old.parent) / name
        self.folder.mkdir()

    def cpu_s(self) -> float:
        """Of all processes, also those that have ended."""
        if self._old:
            return int((self.folder / "cpuacct.usage").read_text()) / 1e9
        lines = dict(line.split() for line in (self.folder / "cpu.stat").read_text().splitlines())
        return int(lines["usage_usec"]) / 1e6

    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()]

    def hold(self, cores: str) -> None:
        """Hold all to these cores from now on."""
        for pid in self.pids():
            subprocess.run(
                ["taskset", "-apc", cores, str(pid)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def end(self) -> None:
        """Kill all, and remove the cgroup."""

        def gone() -> bool:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not self.pids()

        soon(gone, _END_S, "end of all processes")
        self.folder.rmdir()


class TwoHosts:
    """A context manager: it takes all away at its end."""

    def __init__(self) -> None:
        # Ray's sockets need short names
        self.folder = Path(tempfile.mkdtemp(prefix="th", dir="/tmp"))
        self._networks = NodeNetworks()
        self.processes: dict[str, Processes] = {}
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._started = 0

    def __enter__(self) -> TwoHosts:
        self._networks.__enter__()
        for host in CORE:
            self._networks.add(host)
            self.processes[host] = Processes(f"{self._networks.bridge}-{host}")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_ray()
        for processes in self.processes.values():
            processes.end()
        self._networks.__exit__()
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        """Of all processes: one token for the cluster, and one thread for each process."""
        ray = {"USAGE_STATS_ENABLED": "0", "AUTH_MODE": "token", "AUTH_TOKEN": "ab" * 32}
        return {
            **os.environ,
            **{f"RAY_{key}": value for key, value in ray.items()},
            "PYTHONPATH": PYTHONPATH,
            "OMP_NUM_THREADS": "1",
            "SEGTRAIN_CACHE": str(self.folder / "cache"),
        }

    @property
    def address(self) -> str:
        """Of the cluster's head."""
        return f"{self._networks.of(TRAINS)}:{_PORT}"

    def start(
        self, host: str, *command: str, log: str, cores: str = "", **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host, or also on other ``cores``. Its output goes to the file
        ``log``.
        """
        enter = [
            "sh",
            "-c",
            'echo $$ > "$0/cgroup.procs" && exec "$@"',
            str(self.processes[host].folder),
        ]
        held = ["taskset", "-c", cores or CORE[host], *self._networks.inside(host, *command)]
        with open(self.folder / f"{log}.log", "ab") as output:
            return subprocess.Popen(
                [*enter, *held],
                env={**self.environment(), **variables},
                cwd=self.folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def start_ray(self, head_cores: int = 0) -> None:
        """Start the head on the host that trains, with ``head_cores`` for tasks, and a node on the
        host that helps.
        """
        head = [
            "--head",
            f"--port={_PORT}",
            "--include-dashboard=false",
            f"--temp-dir={self.folder / 'ray'}",
        ]
        self._ray(TRAINS, *head, f"--num-cpus={head_cores}")
        self._ray(HELPS, f"--address={self.address}", "--num-cpus=1", "--labels=segtrain/role=help")

    def _ray(self, host: str, *arguments: str) -> None:
        """Start a node of Ray, and wait for it. Its start may use all cores."""
        ray = [
            str(Path(sys.executable).parent / "ray"),
            "start",
            "--block",
            f"--object-store-memory={_STORE}",
        ]
        own = f"--node-ip-address={self._networks.of(host)}"
        for _ in range(_TRIES):
            self._started += 1
            node = self.start(
                host,
                *ray,
                own,
                *arguments,
                log=f"ray-{self._started}",
                cores=",".join(CORE.values()),
            )
            self._nodes.append(node)
            if _up(node, self.folder / f"ray-{self._started}.log"):
                self.processes[host].hold(CORE[host])
                return
        raise RuntimeError(f"Ray does not start on {host}")

    def stop_ray(self) -> None:
        for node in reversed(self._nodes):
            node.terminate()
        for node in self._nodes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(timeout=_END_S)
        self._nodes.clear()

    def wire(self) -> int:
        """Bytes that the host which trains has received and sent over the link."""
        line = self._networks.inside(TRAINS, "cat", "/proc/net/dev")
        output = subprocess.run(line, check=True, capture_output=True, text=True).stdout
        fields = (
            next(row for row in output.splitlines() if row.strip().startswith(f"{UPLINK}:"))
            .split(":")[1]
            .split()
        )
        return int(fields[0]) + int(fields[8])

    def cpu_s(self) -> float:
        """CPU time of all processes of both hosts."""
        return sum(processes.cpu_s() for processes in self.processes.values())

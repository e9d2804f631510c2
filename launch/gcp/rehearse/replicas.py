"""Replicas of a rehearsed Vertex AI job: their containers, with restarts, and their exit codes and times."""

from __future__ import annotations

import math
import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launch.gcp.rehearse import plan
from launch.gcp.rehearse.report import Transition
from launch.gcp.rehearse.storage import StorageServer
from launch.rehearse import apart, network
from launch.rehearse.cluster import RehearsalCluster, RehearsalHost
from launch.rehearse.container import KEPT, Container
from launch.rehearse.guard import MARK
from launch.rehearse.logs import HostLogs

PAUSE_S = 0.05


@dataclass(frozen=True)
class Orders(apart.Orders):
    sample_place: str  # gs:// address of the data, or ""


@dataclass
class Replica:
    """A host and its container, which may be restarted several times."""

    host: RehearsalHost
    container: Container | None = None
    due: float = 0.0  # time.monotonic() of the container's next start; 0: no start is planned
    began: float = 0.0
    codes: list[int] = field(default_factory=list)
    failures: int = 0  # times that it ended by itself with an error
    step: int = -1  # the job's training step at the last failure of this replica
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"replica {self.host.name}"


class Act:
    """The state of a rehearsal while it runs."""

    def __init__(
        self, orders: Orders, stage: RehearsalCluster, store: StorageServer, say: Callable[[str], None]
    ) -> None:
        self.orders, self.stage, self.store, self.say = orders, stage, store, say
        self.folder, self.began, self.port = Path(orders.folder), time.monotonic(), plan.PORT
        self.logs = HostLogs(self.folder / "logs", stage.leader.name, say, {})
        self.replicas = [Replica(host) for host in stage.hosts]
        self.transitions: list[Transition] = []
        self.remarks = [*orders.said, *stage.said]
        self.first_step_s: float | None = None
        self._readers: list[threading.Thread] = []

    def state(self, name: str, message: str = "") -> None:
        second = time.monotonic() - self.began
        self.transitions.append(Transition(name, second, message))
        self.say(f"{second:7.1f} s  {name}  {message}".rstrip())

    def start(self, replica: Replica, plant: str = "") -> None:
        """Start the container of a replica, with an empty disk and the same name as before."""
        host, base = replica.host, self.folder / "hosts" / replica.host.name
        shutil.rmtree(base, ignore_errors=True)
        (base / "tmp").mkdir(parents=True)
        self.logs.heading(host.name, f"start {len(replica.codes) + 1}")
        described = plan.container_of(host, self.orders.request)
        argv = plan.command(described, self.orders.settings)
        env = self._environment(host, base, plan.environment_of(described), plant)
        replica.container = Container(host, base, self.folder, argv, env, self.orders.isolated)
        replica.began = time.monotonic()
        reader = threading.Thread(target=replica.container.read, args=(self.logs.listener(host.name),), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _environment(self, host: RehearsalHost, base: Path, asked: Mapping[str, str], plant: str) -> dict[str, str]:
        found = {key: os.environ[key] for key in KEPT if key in os.environ}
        found |= {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), network.search_path()]),
            "CUDA_VISIBLE_DEVICES": "",
            **plan.variables(self.orders.request),
            "CLUSTER_SPEC": plan.cluster_spec(host, self.stage, self.orders.request, self.port),
            **asked,
            **self.store.environment,
            # Missing packages are not installed: pip would install them into this machine's Python.
            "SEGTRAIN_PIP": "0",
            "SEGTRAIN_CODE": str(base / "code"),
            "SEGTRAIN_CACHE": str(base / "cache"),
            "TMPDIR": str(base / "tmp"),
            MARK: f"{self.orders.mark}-{uuid.uuid4().hex}",
        }
        if plant:
            found["SEGTRAIN_PLANT"] = plant
            planted = str(Path(network.__file__).parent / "planted")
            found["PYTHONPATH"] = os.pathsep.join(part for part in (planted, found.get("PYTHONPATH")) if part)
        return found

    def note_first_step(self) -> None:
        if self.first_step_s is None and self.logs.first_step is not None:
            self.first_step_s = self.logs.first_step - min(one.began for one in self.replicas if one.began)

    def take_codes(self) -> list[Replica]:
        """Record the exit codes of containers that have ended since the last call, and return their replicas."""
        ended = []
        for replica in self.replicas:
            if replica.container is not None and (code := replica.container.code) is not None:
                replica.container.kill()  # ends processes that the container's first process left behind
                replica.codes.append(code)
                replica.seconds = replica.container.ended - replica.began
                replica.container = None
                ended.append(replica)
        return ended

    def tell(self, what: str) -> None:
        for replica in self.replicas:
            if replica.container is not None and replica.container.code is None:
                getattr(replica.container, what)()

    def end(self, grace_s: float) -> None:
        """Send SIGTERM to all containers, and SIGKILL to those that still run after ``grace_s``."""
        self.tell("stop")
        self.wait(grace_s)
        self.tell("kill")
        self.wait(math.inf)

    def wait(self, limit_s: float) -> None:
        """Wait until all containers have ended, at most ``limit_s`` seconds."""
        deadline = time.monotonic() + limit_s
        while any(one.container is not None for one in self.replicas) and time.monotonic() < deadline:
            self.take_codes()
            time.sleep(PAUSE_S)

    def close(self) -> None:
        self.tell("kill")
        for reader in self._readers:
            reader.join()

"""Ray as the engine of helpers: it finds hosts that help, and places a helper on each of their
cores.

It imports ray inside its functions, like raydata.py. The trainer joins a cluster that others have
started.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from segtrain.config import Data
from segtrain.errors import ConfigError, MissingExtra, one_line
from segtrain.platforms.ray.helpers.helper import Helper, identity, serve
from segtrain.platforms.ray.helpers.protocols import HelperSlot
from segtrain.platforms.ray.helpers.remote_helper import MOST_SAMPLES
from segtrain.platforms.ray.helpers.wire import Link
from segtrain.platforms.ray.node import FOREVER_S, HELPS, RECONNECT, ROLE

ANSWER_S = 10.0  # for the head of the cluster to accept a connection
PLACE_S = 60.0  # for Ray to start a helper, and for it to import what it needs
# Calls that an actor answers side by side: all orders that a rank may have sent, and ``alive``. It
# makes one at a time.
CALLS = 2 * MOST_SAMPLES + 2
_LENGTH = 4


class RayHelper:
    """The actor on a core of a helping host."""

    def __init__(self) -> None:
        self._helper, self._one = Helper(), threading.Lock()

    def identity(self, transforms: bool) -> dict[str, str]:
        return identity(transforms)

    def meet(self, name: bytes, content: bytes, folder: str, path: list[str]) -> None:
        self._helper.meet(name, content, folder, path)

    def connect(self, address: tuple[str, int], key: bytes, limit_s: float) -> None:
        def run() -> None:
            with contextlib.suppress(OSError, EOFError):
                serve(self._helper, address, key, limit_s)

        threading.Thread(target=run, daemon=True).start()

    def answer(self, order: bytes) -> np.ndarray:
        """The answers to an order, for Ray's object store."""
        begun = self._helper.begin(order)
        with self._one:
            parts = [bytes(buffer) for buffers in self._helper.answers(begun) for buffer in buffers]
        return np.frombuffer(b"".join(parts), np.uint8)

    def alive(self) -> None:
        pass


class Placed:
    """A helper that Ray has placed; see RemoteWorker in protocols.py."""

    def __init__(self, actor: Any, limit_s: float, stopping: threading.Event) -> None:
        self._actor, self._limit_s, self._stopping = actor, limit_s, stopping

    def _get(self, reference: Any) -> Any:
        """Wait for an answer, in short parts: a thread that used Ray after its end would end the
        process.
        """
        import ray

        until = time.monotonic() + PLACE_S
        while not self._stopping.is_set():
            try:
                return ray.get(reference, timeout=0.5)
            except ray.exceptions.GetTimeoutError:
                pass
            except ray.exceptions.RayTaskError as error:
                # what the helper raised, without Ray's report of it
                raise (error.cause or error) from None
            if time.monotonic() > until:
                raise TimeoutError
        raise EOFError

    def identity(self, transforms: bool) -> dict[str, str]:
        return dict(self._get(self._actor.identity.remote(transforms)))

    def meet(self, name: bytes, content: bytes) -> None:
        self._get(self._actor.meet.remote(name, content, os.getcwd(), sys.path))

    def connect(self, address: tuple[str, int], key: bytes) -> None:
        self._get(self._actor.connect.remote(address, key, self._limit_s))

    def link(self, limit_s: float) -> Link:
        return StoreLink(self._actor, limit_s)

    def close(self) -> None:
        import ray

        if not self._stopping.is_set():  # Ray itself ends the helpers of a run that ends
            with contextlib.suppress(Exception):
                ray.kill(self._actor)


class StoreLink:
    """A link through Ray's object store. Raises an exception of Ray, or TimeoutError."""

    def __init__(self, actor: Any, limit_s: float) -> None:
        self._actor, self._limit_s = actor, limit_s
        self.heard = math.inf  # Ray says whether the actor is alive
        self._coming: deque[Any] = deque()
        self._view = memoryview(b"")

    def order(self, content: bytes) -> None:
        self._coming.append(self._actor.answer.remote(content))

    def message(self) -> bytes:
        import ray

        while not self._view:
            try:
                self._view = memoryview(ray.get(self._coming[0], timeout=self._limit_s))
                self._coming.popleft()
            except ray.exceptions.GetTimeoutError:
                # It may still be making samples; then it answers this call at once.
                ray.get(self._actor.alive.remote(), timeout=self._limit_s)
        length = int.from_bytes(self._view[:_LENGTH], "little")
        content = bytes(self._view[_LENGTH : _LENGTH + length])
        self._view = self._view[_LENGTH + length :]
        return content

    def read_into(self, view: memoryview) -> None:
        view[:] = self._view[: len(view)]
        self._view = self._view[len(view) :]

    def close(self) -> None:
        self._coming.clear()


class RayEngine:
    """This rank's share of the helping cores of a Ray cluster: every ``world``-th one, from
    ``rank`` on.

    ``joined``: this process joined the cluster for it, and leaves it at the end.
    """

    def __init__(self, data: Data, rank: int, world: int, joined: bool) -> None:
        import ray

        self._data, self._rank, self._world, self._joined = data, rank, world, joined
        self._stopping = threading.Event()
        self.address = ray.util.get_node_ip_address()

    def slots(self) -> list[HelperSlot]:
        import ray

        return slots_of(ray.nodes(), self._data.helper_cores, self._rank, self._world)

    def hire(self, slot: HelperSlot) -> Placed:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(slot.node, soft=False)
        # Ray would repeat a lost call without a word. So it must not restart anything: the pool
        # starts another helper.
        options = {
            "num_cpus": 1,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": CALLS,
        }
        actor = ray.remote(RayHelper).options(scheduling_strategy=where, **options).remote()
        return Placed(actor, self._data.helper_timeout_s, self._stopping)

    def stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        import ray

        if self._joined:
            ray.shutdown()


def slots_of(nodes: list[Mapping[str, Any]], most: Any, rank: int, world: int) -> list[HelperSlot]:
    """The slots of a rank, on the living nodes that help. ``most``: cores to use for all ranks, or
    'auto'.
    """
    helping = sorted(
        (
            node["NodeID"],
            node["NodeManagerHostname"] or node["NodeManagerAddress"],
            int(node["Resources"].get("CPU", 0)),
        )
        for node in nodes
        if node["Alive"] and node.get("Labels", {}).get(ROLE) == HELPS
    )
    # Core 0 of each host first, so that all ranks and hosts get about the same.
    slots = [
        HelperSlot(node, host, number)
        for number in range(max((cores for *_, cores in helping), default=0))
        for node, host, cores in helping
        if number < cores
    ]
    return slots[: len(slots) if most == "auto" else int(most)][rank::world]


def join_ray(helpers: str) -> bool:
    """Join the cluster at RAY_ADDRESS, unless this process is part of one. Returns whether it has
    joined.

    ``helpers``: the value of ``data.helpers``. Raises MissingExtra without ray, ConfigError if no
    cluster answers.
    """
    # Before ray is imported: it would end this process 60 seconds after the head of the cluster is
    # gone.
    os.environ.setdefault(RECONNECT, FOREVER_S)
    _require_ray(helpers)
    import ray

    if ray.is_initialized():
        return False
    _join(os.environ.get("RAY_ADDRESS", ""), helpers)
    return True


def _require_ray(helpers: str) -> None:
    """Raises MissingExtra without ray, ConfigError without the address of a cluster."""
    try:
        import ray

        if helpers == "ray-data":
            import ray.data
    except ImportError as missing:
        raise MissingExtra(missing.name or "ray", "ray", f"data.helpers={helpers}") from None
    if not ray.is_initialized() and not os.environ.get("RAY_ADDRESS"):
        fix = "set it to HOST:PORT of the cluster's head (ray start --head)"
        message = f"data.helpers={helpers}: RAY_ADDRESS is not set: {fix}"
        raise ConfigError(
            message, code="ray-address-missing", key="data.helpers", variable="RAY_ADDRESS"
        )


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's signal handlers: with Ray's, SIGTERM would abort the run instead of
    saving its state.
    """
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in before.items():
            if handler is not None:  # None: it was not installed from Python
                signal.signal(number, handler)


def reach(address: str) -> None:
    """Raises OSError where nothing answers at HOST:PORT, for which ``ray.init`` would try for
    minutes.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()


def _join(address: str, helpers: str) -> None:
    import ray

    try:
        reach(address)
        # Ray would print a paragraph for each lost helper; the pool says it in a line.
        with _own_signals():
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:
        reason = one_line(error)[:300]
        fix = "start the cluster first, and give the trainer the same RAY_AUTH_TOKEN"
        message = (
            f"data.helpers={helpers}: no Ray cluster answers at RAY_ADDRESS={address} "
            f"({reason}): {fix}"
        )
        raise ConfigError(
            message, code="ray-not-reached", key="data.helpers", address=address
        ) from None

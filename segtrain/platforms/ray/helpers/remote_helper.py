"""The rank's side of one helper: hire it, check it, send it orders, and read samples straight into
their batches.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import statistics
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from segtrain.data.bucket.prefetched import maker_of, task_of
from segtrain.data.workers.batch import SampleTask
from segtrain.platforms.ray.helpers import wire
from segtrain.platforms.ray.helpers.helper import identity, refuse_other_files
from segtrain.platforms.ray.helpers.protocols import (
    HelperRefused,
    HelperSlot,
    RemoteWorker,
    other_than,
)

if TYPE_CHECKING:
    from segtrain.platforms.ray.helpers.manager import Manager
    from segtrain.platforms.ray.helpers.pool import HelpedPool

MOST_BYTES = 4 << 20  # of an order
MOST_SAMPLES = 32
MOST_ERRORS = 3  # samples in a row that a helper cannot make
CONNECT_S = 5.0  # for a helper to connect to the rank
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # before a lost helper is hired again


@dataclass(eq=False)
class Ordered:
    sample: SampleTask
    since: float
    twice: bool = False  # it is in the queue of the local workers again


@dataclass(eq=False)
class RemoteHelper:
    """A helper as the pool sees it."""

    slot: HelperSlot
    flight: deque[Ordered] = field(default_factory=deque)
    # seconds from order to answer
    turns: deque[float] = field(default_factory=lambda: deque([0.1], maxlen=15))
    seconds: float = 0.0  # to make a sample, a running mean; 0: not known
    link: wire.Link | None = None
    refused: str = ""
    working: bool = False
    pause_s: float = FIRST_PAUSE_S

    def disconnect(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            link.close()

    def silent_s(self, ordered: Ordered, now: float) -> float:
        """Seconds since its last sign of life; the time before ``ordered`` does not count."""
        link = self.link
        return now - max(ordered.since, link.heard) if link is not None else 0.0

    @property
    def turnaround(self) -> float:
        return statistics.median(self.turns)

    def wants(self, size: int, ahead_s: float) -> int:
        """How many samples of ``size`` bytes to order now. ``ahead_s``: seconds that an order may
        take a helper.
        """
        chunk = min(
            MOST_SAMPLES,
            MOST_BYTES // max(1, size),
            int(ahead_s / self.seconds) if self.seconds else 1,
        )
        return max(1, chunk) if len(self.flight) <= max(1, chunk) else 0


class Serving:
    """Hires the helper of a slot, again and again, until the pool is closed or the helper is
    refused.
    """

    def __init__(self, pool: HelpedPool, manager: Manager, helping: RemoteHelper) -> None:
        self._pool, self._manager, self._helper = pool, manager, helping
        self._known: set[bytes] = set()
        self._scratch = np.empty(0, np.uint8)
        self._failed = 0  # samples in a row that the helper could not make

    def run(self) -> None:
        """The thread of a slot. It catches every exception: the samples of a thread that ended
        would never come.
        """
        pool, manager, helper = self._pool, self._manager, self._helper
        while manager.wants(helper):
            hired: RemoteWorker | None = None
            reason = ""
            try:
                hired = pool.engine.hire(helper.slot)
                self._check(hired)
                helper.working = True
                while manager.wants(helper):
                    self._turn(hired)
            except HelperRefused as error:
                helper.refused = reason = str(error)
            except Exception as error:
                reason = _reason(error)
            helper.working = False
            # before its samples are given to others: nothing writes into them any more
            helper.disconnect()
            samples = pool.give_back(helper)
            if hired is not None:
                hired.close()
            if not manager.wants(helper):
                return
            manager.lost(helper, reason, samples)
            if helper.refused:
                return
            manager.pause(helper.pause_s)
            helper.pause_s = min(LONGEST_PAUSE_S, 2 * helper.pause_s)

    def _check(self, hired: RemoteWorker) -> None:
        """Compare versions, connect, and compare the pixels of a few samples.

        Raises HelperRefused.
        """
        pool, helper = self._pool, self._helper
        example = pool.example()
        transforms = example.maker.transforms is not None
        if differs := other_than(hired.identity(transforms), identity(transforms)):
            raise HelperRefused(
                f"it would make other pixels: {differs}: install the same on all hosts"
            )
        self._known.clear()
        name = self._meet(hired, example.maker)
        helper.link = self._connected(hired)
        for task, made in pool.probes(example):
            self._link().order(wire.order(name, [task], len(made) > 2))
            reply = self._reply(example.maker.source, task.index)
            if reply.error:
                raise HelperRefused(f"it cannot make a sample: {reply.error}")
            self._read(reply, helper_parts := [np.empty_like(part) for part in made])
            if not all(map(np.array_equal, helper_parts, made)):
                raise HelperRefused(
                    "it makes other pixels, with the same versions: its processor or a "
                    "library differs"
                )

    def _meet(self, hired: RemoteWorker, maker: Any) -> bytes:
        name, content = self._pool.packed(maker)
        if name not in self._known:
            hired.meet(name, content)
            self._known.add(name)
        return name

    def _connected(self, hired: RemoteWorker) -> wire.Link:
        pool, key = self._pool, secrets.token_bytes(32)
        with socket.create_server((pool.engine.address, 0)) as listener:
            hired.connect(listener.getsockname()[:2], key)
            connection = accept(listener, key, CONNECT_S, pool.limit_s)
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return wire.SocketLink(connection, pool.limit_s)
        other = hired.link(pool.limit_s)
        if other is None:
            raise ConnectionError(
                f"it does not connect to {pool.engine.address} within {CONNECT_S:g} s"
            )
        self._manager.tell_once(
            f"helpers on {self._helper.slot.host} cannot connect to {pool.engine.address}: samples "
            "travel through Ray's object store, which takes more CPU time here; allow connections "
            "from there to all ports of this host"
        )
        return other

    def _turn(self, hired: RemoteWorker) -> None:
        """Order samples if the helper has few, and read the next one that it has made."""
        pool, helper, began = self._pool, self._helper, time.thread_time()
        samples = pool.take(helper, sum(self._manager.cores().values()))
        if samples:
            name = self._meet(hired, maker_of(samples[0].batch))
            self._link().order(
                wire.order(name, [task_of(sample) for sample in samples], len(samples[0].areas) > 2)
            )
        elif helper.flight:
            ordered = helper.flight[0]
            reply = self._reply(
                maker_of(ordered.sample.batch).source, task_of(ordered.sample).index
            )
            self._receive(ordered, reply)
            helper.flight.popleft()
            helper.turns.append(time.monotonic() - ordered.since)
            helper.seconds += (0.2 if helper.seconds else 1.0) * (
                reply.cost.seconds - helper.seconds
            )
            helper.pause_s = FIRST_PAUSE_S
        else:
            pool.wait_for_work()
            return
        pool.paid(time.thread_time() - began)

    def _reply(self, source: Any, index: int) -> wire.Reply:
        """What the helper says about its next sample. Raises HelperRefused if it read other files
        than this rank has.
        """
        reply = wire.Reply.read(self._link().message())
        if not reply.error:
            refuse_other_files(source, index, reply.files)
        return reply

    def _receive(self, ordered: Ordered, reply: wire.Reply) -> None:
        """Read a sample into its batch, or, if a local worker makes it or has made it, to
        nowhere.
        """
        pool, sample = self._pool, ordered.sample
        if reply.error:
            pool.not_made(sample)
            message = (
                f"a helper on {self._helper.slot.host} could not make a sample, so it is made "
                f"here: {reply.error}"
            )
            self._manager.tell_once(message)
            self._failed += 1
            if self._failed >= MOST_ERRORS:
                raise HelperRefused(f"it cannot make samples: {reply.error}")
            return
        self._failed = 0
        if pool.claim(sample):
            try:
                self._read(reply, [sample.batch.block.part(*area) for area in sample.areas])
            except BaseException:
                pool.unclaim(sample)
                raise
            pool.received(self._helper, sample)
        else:
            sizes = [int(np.prod(shape)) for _, shape in sample.areas]
            if self._scratch.size < sum(sizes):
                self._scratch = np.empty(sum(sizes), np.uint8)
            ends = np.cumsum(sizes)
            self._read(
                reply, [self._scratch[end - size : end] for end, size in zip(ends.tolist(), sizes)]
            )

    def _read(self, reply: wire.Reply, parts: list[np.ndarray]) -> None:
        """Read the image, the mask, and perhaps the colors of a sample."""
        link = self._link()
        link.read_into(wire.flat(parts[0]))
        wire.read_mask(link, reply.mask, parts[1])
        for part in parts[2:]:
            link.read_into(wire.flat(part))

    def _link(self) -> wire.Link:
        """The connection. Raises EOFError if the manager has closed it."""
        link = self._helper.link
        if link is None:
            raise EOFError
        return link


def accept(
    listener: socket.socket, key: bytes, connect_s: float, limit_s: float
) -> socket.socket | None:
    """The first connection that knows the key; None if there is none within ``connect_s``
    seconds.
    """
    until, trusted = time.monotonic() + connect_s, deque[socket.socket]()

    def meet(connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            if wire.greet(connection, key, b"rank", b"helper", limit_s):
                trusted.append(connection)
                return
        connection.close()

    listener.settimeout(0.02)  # between two looks at the connections that are greeted
    while not trusted and time.monotonic() < until:
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            # Side by side: a stranger may be silent.
            threading.Thread(target=meet, args=(connection,), daemon=True).start()
    return trusted.popleft() if trusted else None


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no sign of life"
    if isinstance(error, EOFError):
        return "the connection ended"
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__

"""Meeting of the hosts of a job: they start their ranks together, and start them again after a host
was lost.

The primary host runs a Coordinator. Every host runs a RoundMember, which exchanges lines of JSON
with it over one TCP connection. A round begins when all hosts have reported that they are
ready. It is over when the ranks of all hosts are done. It ends early when a connection breaks (a
container was restarted, or its machine is gone) or a host asks for a new round.

torch's elastic agent (2.15.0 and 2.4.1) is not used, because it lost jobs when the primary host was
killed while it exported, and when rank 0 needed longer than 30 s to save after a signal. Each lost
primary also cost the other hosts one of their 5 restarts.
"""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from segtrain.errors import SegtrainError
from segtrain.parallel.cluster import free_port
from segtrain.platforms.json_lines import Line, Message, Say, Server

MEET_S = 1800.0  # longest wait for all hosts, because machines start at different times
SAY_S = 30.0  # seconds between two printed lines about missing hosts
ANSWER_S = 5.0  # longest wait for the answer of the primary host
_PAUSE_S = 0.5


@dataclass(frozen=True)
class Round:
    """One start of the ranks on all hosts. ``counts``: number of ranks of each host; ``port``: the
    port of rank 0.
    """

    number: int
    counts: tuple[int, ...]
    port: int


@dataclass(frozen=True)
class News:
    """What a host hears while its round runs: that it is over (``over``), or ``why`` it ends early.

    ``saving``: another host was stopped by a signal. The ranks of all hosts stop after the same
    step, so the ranks of this host may still be saving their state.
    """

    why: str = ""
    over: bool = False
    saving: bool = False


class Coordinator(Server):
    """Begins and ends the rounds, on the primary host. ``names``: the names of all hosts, by
    number.
    """

    def __init__(self, names: Sequence[str], port: int, say: Say, say_s: float = SAY_S) -> None:
        super().__init__(port, len(names), "meeting-port-taken")
        self._names, self._say, self._say_s = names, say, say_s
        # host -> number of its ranks, for hosts that are ready for the next round
        self._counts: dict[int, int] = {}
        self._done: set[int] = set()
        self._round, self._running, self._said = 0, False, time.monotonic()

    def _tick(self) -> None:
        if time.monotonic() - self._said < self._say_s:
            return
        self._said = time.monotonic()
        with self._lock:
            missing = (
                []
                if self._running
                else [n for k, n in enumerate(self._names) if k not in self._counts]
            )
            if missing and self._counts:
                self._say(
                    f"waiting for {', '.join(missing)}: {len(self._counts)} of "
                    f"{len(self._names)} hosts are here"
                )
                self._tell(missing=missing)

    def _gone(self, host: int) -> None:
        self._counts.pop(host, None)
        self._end(f"{self._names[host]} is gone")

    def _take(self, line: Line, message: Message) -> None:
        host = int(message["host"])
        if "here" in message:
            if message["hosts"] != len(self._names) or not 0 <= host < len(self._names):
                line.send(
                    refused=f"host {host} lists {message['hosts']} hosts, the primary host "
                    f"{len(self._names)}"
                )
                return
            if self._lines.get(host) is not line:
                self._lines[host] = line
                self._end(f"{self._names[host]} has started again")
            self._counts[host] = int(message["here"])
            if len(self._counts) == len(self._names):
                self._begin()
        elif self._lines.get(host) is not line:
            return
        elif "done" in message and self._running:
            self._done.add(host)
            if len(self._done) == len(self._names):
                self._running = False
                self._tell(over=True)
        elif "again" in message:
            self._end(f"{self._names[host]} {message['again']}", bool(message.get("saving")))

    def _begin(self) -> None:
        self._round, self._running, self._done = self._round + 1, True, set()
        counts = [self._counts[host] for host in range(len(self._names))]
        self._counts = {}
        self._tell(start=[self._round, counts, free_port()])

    def _end(self, why: str, saving: bool = False) -> None:
        if self._running:
            self._running, self._counts = False, {}
            self._tell(again=why, saving=saving)


class RoundMember:
    """This host, number ``host`` of ``hosts``, which starts ``ranks`` ranks in each round."""

    def __init__(
        self, address: tuple[str, int], host: int, hosts: int, ranks: int, say: Say
    ) -> None:
        self._address, self._host, self._hosts, self._ranks, self._say = (
            address,
            host,
            hosts,
            ranks,
            say,
        )
        self._line: Line | None = None
        self._heard: queue.Queue[Message] = queue.Queue()

    def meet(
        self, stopped: Callable[[], bool], patience_s: float = MEET_S, say_s: float = SAY_S
    ) -> Round | None:
        """Wait for all hosts; return the round, or None if ``stopped()``. Raises SegtrainError
        after ``patience_s``.
        """
        end, said, missing = time.monotonic() + patience_s, time.monotonic(), [self._primary]
        self._send(here=self._ranks, hosts=self._hosts)
        while not stopped():
            if time.monotonic() >= end:
                raise SegtrainError(
                    f"{', '.join(missing)} did not come within {patience_s:g} s: look at the logs "
                    "of these replicas, and start the job again",
                    code="hosts-not-met",
                    missing=missing,
                )
            if self._line is None and not self._connected():
                if time.monotonic() - said >= say_s:
                    said = time.monotonic()
                    self._say(f"waiting for the primary host {self._primary}")
                time.sleep(_PAUSE_S)
                continue
            try:
                message = self._heard.get(timeout=_PAUSE_S)
            except queue.Empty:
                continue
            if "start" in message:
                number, counts, port = message["start"]
                return Round(number, tuple(counts), port)
            if "missing" in message:
                missing = message["missing"]
            elif "refused" in message:
                text = (
                    f"{message['refused']}: CLUSTER_SPEC must be the same on all replicas: "
                    "start the job again"
                )
                raise SegtrainError(text, code="hosts-differ", found=self._hosts)
            elif "closed" in message:
                self.close()
        return None

    @property
    def _primary(self) -> str:
        return "{}:{}".format(*self._address)

    def _connected(self) -> bool:
        try:
            connection = socket.create_connection(self._address, timeout=10)
        except OSError:
            return False
        self._line = Line(connection)
        self._heard = self._line.queue()
        self._send(here=self._ranks, hosts=self._hosts)
        return True

    def _send(self, **message: Any) -> None:
        if self._line is not None:
            self._line.send(host=self._host, **message)

    def heard(self, wait_s: float = 0.0) -> News | None:
        """News of the round; None if no message has come."""
        try:
            message = self._heard.get(timeout=wait_s) if wait_s else self._heard.get_nowait()
        except queue.Empty:
            return None
        if "closed" in message:
            self.close()
            return News(f"the primary host {self._primary} is gone")
        if "again" in message:
            return News(str(message["again"]), saving=bool(message.get("saving")))
        return News(over=True) if "over" in message else None

    def done(self) -> None:
        """The ranks of this host are done."""
        self._send(done=True)

    def again(self, why: str, saving: bool = False) -> News | None:
        """Ask for another round. Returns the answer of the primary host; None if none came in time.

        ``why`` is a phrase such as "was stopped". The other hosts read it after the name of this
        host.
        """
        self._send(again=why, saving=saving)
        return self.heard(ANSWER_S)

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

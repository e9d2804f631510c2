"""TCP connections between the hosts of a job, which carry lines of JSON, and the server that
accepts them.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from segtrain.errors import SegtrainError

# TCP keep-alive: a peer whose machine vanished without closing its connections counts as gone after
# about 35 seconds. TCP_USER_TIMEOUT (milliseconds) sets the same limit for the time in which sent
# data waits to be acknowledged, because TCP sends no keep-alive probes during that time.
_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 35_000}


_PAUSE_S = 0.2

Say = Callable[[str], None]
Message = dict[str, Any]


class Line:
    """One end of a connection. ``send`` may be called by any thread, and ignores a peer that is
    gone.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _ALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._connection, self._lock = connection, threading.Lock()

    def send(self, **message: Any) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def messages(self, take: Callable[[Message], None]) -> None:
        """Call ``take`` with each message, until the connection ends or a foreign peer sends
        something invalid.
        """
        with (
            contextlib.suppress(OSError, ValueError, KeyError, TypeError),
            self._connection.makefile("rb") as lines,
        ):
            for line in lines:
                take(json.loads(line))

    def queue(self) -> queue.Queue[Message]:
        """A queue that a thread fills with all messages, and with ``closed`` when the connection
        has ended.
        """
        heard: queue.Queue[Message] = queue.Queue()

        def listen() -> None:
            self.messages(heard.put)
            heard.put({"closed": True})

        threading.Thread(target=listen, name="line", daemon=True).start()
        return heard

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class Server(ABC):
    """Accepts connections from other hosts, each served by a thread, until the end of the context.

    A subclass handles the messages in ``_take``, with the lock held. ``_lines`` are the connections
    by host.
    """

    def __init__(self, port: int, hosts: int, code: str) -> None:
        """``code``: that of the SegtrainError that is raised if the port is taken."""
        try:
            self._listener = socket.create_server(("", port), backlog=hosts + 16)
        except OSError as error:
            problem = (
                f"cannot listen on port {port}, where the other hosts expect this one "
                f"({error.strerror})"
            )
            fix = "start nothing else in this container that uses it"
            raise SegtrainError(f"{problem}: {fix}", code=code, port=port) from None
        self.port = int(self._listener.getsockname()[1])
        self._lock, self._closed = threading.RLock(), False
        self._lines: dict[Any, Line] = {}
        self._thread = threading.Thread(target=self._listen, name="server", daemon=True)

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._thread.join()
        self._listener.close()
        with self._lock:
            lines = list(self._lines.values())
        for line in lines:
            line.close()

    def _listen(self) -> None:
        self._listener.settimeout(_PAUSE_S)
        while not self._closed:
            with contextlib.suppress(TimeoutError, OSError):
                line = Line(self._listener.accept()[0])
                threading.Thread(
                    target=self._serve, args=(line,), name="server-host", daemon=True
                ).start()
            self._tick()

    def _serve(self, line: Line) -> None:
        def take(message: Message) -> None:
            with self._lock:
                self._take(line, message)

        line.messages(take)
        with self._lock:
            for host in [host for host, other in self._lines.items() if other is line]:
                del self._lines[host]
                self._gone(host)
        line.close()

    def _tell(self, **message: Any) -> None:
        with self._lock:
            for line in self._lines.values():
                line.send(**message)

    @abstractmethod
    def _take(self, line: Line, message: Message) -> None:
        """Handle a message. An error ends the connection."""

    @abstractmethod
    def _gone(self, host: Any) -> None:
        """The connection of a host has ended, and it has no newer one."""

    @abstractmethod
    def _tick(self) -> None:
        """Called about every ``_PAUSE_S`` seconds."""

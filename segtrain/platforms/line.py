"""One end of a TCP connection between two hosts of a job, which carries lines of JSON."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

# TCP keep-alive: a peer whose machine vanished without closing its connections counts as gone after about 35 seconds.
# TCP_USER_TIMEOUT (milliseconds) sets the same limit for the time in which sent data waits to be acknowledged, because
# TCP sends no keep-alive probes during that time.
_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 35_000}


class Line:
    """One end of a connection. ``send`` may be called by any thread, and ignores a peer that is gone."""

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

    def messages(self, take: Callable[[dict[str, Any]], None]) -> None:
        """Call ``take`` with each message, until the connection ends or a foreign peer sends something invalid."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), self._connection.makefile("rb") as lines:
            for line in lines:
                take(json.loads(line))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

"""Register of helping hosts, on the first training host: who has joined, and who is told that the training is over."""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from segtrain.errors import SegtrainError
from segtrain.platforms.line import Line
from segtrain.platforms.ray_node import RayNode

PORT = 7788
JOIN_S = 600.0
_PAUSE_S = 0.2

Say = Callable[[str], None]


@dataclass(frozen=True)
class Helping:
    """Who helps whom. ``training``: the hosts that train; the first one has the Register and Ray's head.

    ``join_s``: after this time, a helping host that has not joined is named. ``required``: it then ends the training,
    which does not begin without it; else the training begins at once, and goes on alone.
    """

    current: str
    training: tuple[str, ...]
    helping: tuple[str, ...]
    token: str
    join_s: float = JOIN_S
    required: bool = False

    @property
    def head(self) -> str:
        return self.training[0]


class Register:
    """Which helping hosts have joined. As a context manager, it listens, and it ends all connections at the end.

    ``node``: Ray on this host. If it ends by itself, the helping hosts stop to help, and the training goes on alone.
    """

    def __init__(self, plan: Helping, node: RayNode, say: Say, port: int = PORT) -> None:
        """Raises SegtrainError if the port is taken."""
        self._plan, self._node, self._say = plan, node, say
        try:
            self._listener = socket.create_server(("", port), backlog=len(plan.helping) + 16)
        except OSError as error:
            raise SegtrainError(
                f"cannot listen on port {port}, where helping hosts expect this one ({error.strerror}): start "
                "nothing else in this container that uses it",
                code="register-port-taken", port=port,
            ) from None  # fmt: skip
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._lines: dict[str, Line] = {}
        self._joined: set[str] = set()
        self._failed: dict[str, str] = {}  # host -> why it cannot help
        self._open, self._over = False, False
        self._thread = threading.Thread(target=self._listen, name="register", daemon=True)

    def __enter__(self) -> Register:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over()
        self._thread.join()
        self._listener.close()
        for line in list(self._lines.values()):
            line.close()

    @property
    def missing(self) -> list[str]:
        with self._lock:
            return [host for host in self._plan.helping if host not in self._joined]

    def open(self) -> None:
        """Ray can be joined."""
        self._open = True
        self._tell(open=True)

    def over(self) -> None:
        """The training is over: all helping hosts end with success."""
        if not self._over:
            self._over = True
            self._tell(over=True)

    def wait(self, received: list[int]) -> None:
        """Wait until all helping hosts have joined. Raises SegtrainError that names those that have not."""
        end = time.monotonic() + self._plan.join_s
        while (missing := self.missing) and not received:
            if self._failed or time.monotonic() >= end:
                why = "; ".join(f"{host}: {text}" for host, text in self._failed.items())
                raise SegtrainError(
                    f"{', '.join(missing)} did not join within {self._plan.join_s:g} s{f' ({why})' if why else ''}: "
                    "look at the logs of these hosts, or train without them (helpers_required: false)",
                    code="helpers-not-joined", missing=missing,
                )  # fmt: skip
            time.sleep(_PAUSE_S)

    def _tell(self, **message: Any) -> None:
        with self._lock:
            for line in self._lines.values():
                line.send(**message)

    def _listen(self) -> None:
        self._listener.settimeout(_PAUSE_S)
        due, lost = time.monotonic() + self._plan.join_s, False
        while not self._over:
            with contextlib.suppress(TimeoutError, OSError):
                line = Line(self._listener.accept()[0])
                threading.Thread(target=self._serve, args=(line,), name="register-host", daemon=True).start()
            if self._open and not lost and not self._node.running and not self._over:
                lost = True
                self._say(f"Ray has ended on this host: the training goes on without helpers ({self._node.last})")
                self._tell(lost=True)
            if time.monotonic() >= due:
                due = float("inf")
                if (missing := self.missing) and not self._plan.required:
                    late = f"within {self._plan.join_s:g} s"
                    self._say(f"{', '.join(missing)} did not join {late}: the training goes on without them")

    def _serve(self, line: Line) -> None:
        known: list[str] = []

        def take(message: dict[str, Any]) -> None:
            if not known:
                host = str(message["host"])
                if host not in self._plan.helping or not self._trusted(str(message["token"])):
                    line.send(refused=f"{host} is no helping host of this job, or its code bundle is another one")
                    raise ValueError(host)
                known.append(host)
                self._meet(host, line)
            elif "joined" in message:
                with self._lock:
                    self._joined.add(known[0])
                self._say(f"{known[0]} has joined, and makes samples")
            elif "failed" in message:
                with self._lock:
                    self._failed[known[0]] = str(message["failed"])
                self._say(f"{known[0]} does not help: {message['failed']}")

        line.messages(take)
        with self._lock:
            gone = bool(known) and self._lines.get(known[0]) is line
            if gone:
                del self._lines[known[0]]
                self._joined.discard(known[0])
        if gone and not self._over:
            self._say(f"{known[0]} is gone: its samples are made here")
        line.close()

    def _trusted(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._plan.token.encode())

    def _meet(self, host: str, line: Line) -> None:
        with self._lock:
            self._lines[host] = line
        if self._open:
            line.send(open=True)

"""Register of helping hosts, on the first training host: who has joined, and who is told that the
training is over.
"""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass

from segtrain.errors import SegtrainError
from segtrain.platforms.json_lines import Line, Message, Say, Server
from segtrain.platforms.ray.node import RayNode

PORT = 7788
JOIN_S = 600.0
_PAUSE_S = 0.2


@dataclass(frozen=True)
class HelpPlan:
    """Who helps whom. ``training``: the hosts that train; the first one has the Register and Ray's
    head.

    ``join_s``: after this time, a helping host that has not joined is named. ``required``: it then
    ends the training, which does not begin without it; else the training begins at once, and goes
    on alone.
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


class Register(Server):
    """Which helping hosts have joined.

    ``node``: Ray on this host. If it ends by itself, the helping hosts stop to help, and the
    training goes on alone.
    """

    def __init__(self, plan: HelpPlan, node: RayNode, say: Say, port: int = PORT) -> None:
        super().__init__(port, len(plan.helping), "register-port-taken")
        self._plan, self._node, self._say = plan, node, say
        self._joined: set[str] = set()
        self._failed: dict[str, str] = {}  # host -> why it cannot help
        self._open, self._over, self._lost = False, False, False
        self._due = time.monotonic() + plan.join_s

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
        self._over = True
        self._tell(over=True)

    def wait(self, received: list[int]) -> None:
        """Wait until all helping hosts have joined. Raises SegtrainError that names those that have
        not.
        """
        end = time.monotonic() + self._plan.join_s
        while (missing := self.missing) and not received:
            if self._failed or time.monotonic() >= end:
                why = "; ".join(f"{host}: {text}" for host, text in self._failed.items())
                raise SegtrainError(
                    f"{', '.join(missing)} did not join within {self._plan.join_s:g} "
                    f"s{f' ({why})' if why else ''}: look at the logs of these hosts, or train "
                    "without them (helpers_required: false)",
                    code="helpers-not-joined",
                    missing=missing,
                )
            time.sleep(_PAUSE_S)

    def _tick(self) -> None:
        if self._over:
            return
        if self._open and not self._lost and not self._node.running:
            self._lost = True
            self._say(
                "Ray has ended on this host: the training goes on without helpers "
                f"({self._node.last})"
            )
            self._tell(lost=True)
        if time.monotonic() >= self._due:
            self._due = float("inf")
            if (missing := self.missing) and not self._plan.required:
                late = f"within {self._plan.join_s:g} s"
                self._say(
                    f"{', '.join(missing)} did not join {late}: the training goes on without them"
                )

    def _take(self, line: Line, message: Message) -> None:
        host = next((host for host, other in self._lines.items() if other is line), None)
        if host is None:
            self._meet(line, str(message["host"]), str(message["token"]))
        elif "joined" in message:
            self._joined.add(host)
            self._say(f"{host} has joined, and makes samples")
        elif "failed" in message:
            self._failed[host] = str(message["failed"])
            self._say(f"{host} does not help: {message['failed']}")

    def _meet(self, line: Line, host: str, token: str) -> None:
        if host not in self._plan.helping or not hmac.compare_digest(
            token.encode(), self._plan.token.encode()
        ):
            line.send(
                refused=f"{host} is no helping host of this job, or its code bundle is another one"
            )
            raise ValueError(host)
        self._lines[host] = line
        if self._over:
            line.send(over=True)
        elif self._open:
            line.send(open=True)

    def _gone(self, host: str) -> None:
        self._joined.discard(host)
        if not self._over:
            self._say(f"{host} is gone: its samples are made here")

"""An engine for tests: helpers as threads of the test, or as processes of their own, with real sockets to the rank.

python tests/kit/helper_hosts.py        # a helper process: it reads calls from stdin, and answers on stdout
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from conftest import PATHS

from segtrain.platforms.ray.helpers.helper import Helper, identity, serve
from segtrain.platforms.ray.helpers.protocols import HelperSlot
from segtrain.platforms.ray.helpers.wire import Link


class InThread:
    """A helper in this process. ``change`` may replace what it serves with (for broken helpers)."""

    def __init__(
        self, change: Callable[..., None] = serve, found: dict[str, str] | None = None
    ) -> None:
        self.helper, self._change, self._found = Helper(), change, found or {}

    def identity(self, transforms: bool) -> dict[str, str]:
        return identity(transforms) | self._found

    def meet(self, name: bytes, content: bytes) -> None:
        self.helper.meet(name, content, os.getcwd(), [])

    def connect(self, address: tuple[str, int], key: bytes) -> None:
        def run() -> None:
            try:
                self._change(self.helper, address, key, 2.0)
            except (OSError, EOFError):
                pass

        threading.Thread(target=run, daemon=True, name="a-helper").start()

    def link(self, limit_s: float) -> Link | None:
        return None

    def close(self) -> None:
        self.helper.close()


class InProcess:
    """A helper process, which a test may stop or kill."""

    def __init__(self) -> None:
        path = os.pathsep.join(map(str, PATHS))
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )

    def _ask(self, *call: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump(call, self.process.stdin)
        self.process.stdin.flush()
        return pickle.load(self.process.stdout)

    def identity(self, transforms: bool) -> dict[str, str]:
        return dict(self._ask("identity", transforms))

    def meet(self, name: bytes, content: bytes) -> None:
        self._ask("meet", name, content, os.getcwd(), sys.path)

    def connect(self, address: tuple[str, int], key: bytes) -> None:
        self._ask("connect", address, key)

    def link(self, limit_s: float) -> Link | None:
        return None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


class Hosts:
    """The engine. ``cores``: how many slots each host has; a test may change it. ``make`` makes a
    helper.
    """

    address = "127.0.0.1"

    def __init__(self, cores: dict[str, int], make: Callable[[], Any] = InThread) -> None:
        self.cores, self.make, self.hired = dict(cores), make, list[Any]()

    def slots(self) -> list[HelperSlot]:
        return [
            HelperSlot(f"node-of-{host}", host, number)
            for host, count in self.cores.items()
            for number in range(count)
        ]

    def hire(self, slot: HelperSlot) -> Any:
        self.hired.append(self.make())
        return self.hired[-1]

    def stop(self) -> None:
        pass

    def close(self) -> None:
        for hired in self.hired:
            hired.close()


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    helper = Helper()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            name, *call = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        found: Any = None
        if name == "identity":
            found = identity(*call)
        elif name == "meet":
            helper.meet(*call)
        else:
            threading.Thread(target=serve, args=(helper, *call, 2.0), daemon=True).start()
        pickle.dump(found, answers)
        answers.flush()


if __name__ == "__main__":
    _main()

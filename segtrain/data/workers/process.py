"""How does a rank speak to one of its worker processes? Start, order, answer, end. See child.py for the other side."""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from typing import Any

from segtrain.data.stages import Cost
from segtrain.data.workers import child
from segtrain.data.workers.memory import SharedBlock
from segtrain.data.workers.tasks import Maker, SampleTask
from segtrain.errors import ConfigError, SegtrainError
from segtrain.stacks import StackRequest

# One sample at a time in a process of its own: a library's own threads would only fight with those of the others.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"), "1"
)
PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class WorkerProcess:
    """One process. Every method but ``kill`` belongs to one thread; they raise EOFError or OSError when it is dead."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        self.channel, self.cpu_s = here, 0.0
        self.stacks: tuple[str, str, StackRequest] | None = None  # asked for, and not yet sent on
        self._blocks: dict[int, SharedBlock] = {}
        self._makers: deque[bytes] = deque()
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from segtrain.data.workers.child import main; main()", str(there.fileno())],
                pass_fds=[there.fileno()], stdin=subprocess.DEVNULL, env=_environment(),
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def meet(self) -> None:
        """Wait until it is ready."""
        child.send(self.channel, sys.path)
        child.receive(self.channel)

    def dead(self) -> bool:
        return self._process.poll() is not None

    def order(self, sample: SampleTask, maker: tuple[bytes, bytes]) -> None:
        """Ask for a sample; the maker and the block go along where it has not met them yet."""
        name, content = maker
        block = sample.batch.block
        if self.stacks is not None:
            wanted, self.stacks = self.stacks, None
            child.send(self.channel, ("stacks", *wanted))
        if name not in self._makers:
            child.send(self.channel, ("maker", name, content, _script() if b"__main__" in content else None))
            self._makers.append(name)
        gone = [number for number, known in self._blocks.items() if not known.alive]
        old = [self._makers.popleft() for _ in range(len(self._makers) - 4)]
        if gone or old:
            child.send(self.channel, ("forget", gone, old))
            for number in gone:
                del self._blocks[number]
        if block.number not in self._blocks:
            child.send(self.channel, ("block", block.number, block.size), block.fd)
            self._blocks[block.number] = block
        child.send(self.channel, ("make", name, sample.task, block.number, sample.areas))

    def answer(self) -> tuple[SegtrainError | None, float, Cost]:
        """Wait for the oldest sample asked for: its error, when it was begun (time.perf_counter), and what it cost."""
        (error, began, cost, self.cpu_s), _ = child.receive(self.channel)
        return (error[0](error[1]) if error else None), began, Cost(*cost)

    def exit_reason(self) -> str:
        """How it ended, in words."""
        code = self._process.wait()
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """End it: at once if it is idle, else by force."""
        self.channel.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Pickles:
    """What a process needs to make samples, as bytes; made once for all processes."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Maker, bytes, bytes]] = {}

    def of(self, maker: Maker) -> tuple[bytes, bytes]:
        """(name, content) of a maker for a process; the same content keeps its name."""
        known = self._known.get(id(maker))
        if known is None or known[0] is not maker:
            try:
                content = pickle.dumps(maker, protocol=5)
            except Exception as error:
                raise ConfigError(
                    f"data.worker_kind=process: the data set or its transforms cannot be sent to a process ({error}): define "
                    "them at the top of a module, or set data.worker_kind=thread"
                ) from None
            while len(self._known) >= 4:
                del self._known[next(iter(self._known))]
            known = self._known[id(maker)] = (maker, hashlib.blake2b(content, digest_size=16).digest(), content)
        return known[1], known[2]


def _environment() -> dict[str, str]:
    path = os.pathsep.join([PACKAGE_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, **ONE_THREAD, "PYTHONPATH": path}


def _script() -> dict[str, Any]:
    """How a process gets at what is defined in the file that was started: as multiprocessing does it."""
    from multiprocessing import spawn

    facts = spawn.get_preparation_data("segtrain-data")
    facts.pop("authkey", None)
    return facts

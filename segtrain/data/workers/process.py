"""The rank's side of a worker process: start it, send samples, receive answers, end it. child.py is
the other side.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from multiprocessing import Pipe
from typing import Any
from weakref import WeakKeyDictionary

from segtrain.base.stacks import StackRequest
from segtrain.bucket.tally import OF_PROCESS
from segtrain.data.stages import Cost
from segtrain.data.workers.batch import Maker, SampleTask
from segtrain.data.workers.memory import SharedBlock
from segtrain.errors import ConfigError, SegtrainError

# A process makes one sample at a time: a library's own threads would only compete with the other
# workers.
ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "OPENCV_FOR_THREADS_NUM",
    ),
    "1",
)
PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class WorkerProcess:
    """One process. A single thread must call all methods except ``kill``. They raise EOFError or
    OSError if it died.
    """

    def __init__(self) -> None:
        self.channel, there = Pipe()
        self.cpu_s = 0.0
        # requested, but not yet sent to the process
        self.stacks: tuple[str, str, StackRequest] | None = None
        self._blocks: dict[int, SharedBlock] = {}
        self._makers: set[bytes] = set()
        path = PACKAGE_ROOT, os.environ.get("PYTHONPATH")
        with there:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "from segtrain.data.workers.child import main; main()",
                    str(there.fileno()),
                ],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def meet(self) -> None:
        """Send the import path to the process, and wait until it is ready."""
        self.channel.send(sys.path)
        self.channel.recv()

    def dead(self) -> bool:
        return self._process.poll() is not None

    def order(self, sample: SampleTask) -> None:
        """Request a sample. Its maker and its block are sent first if the process does not have
        them yet.
        """
        (name, content), block = pickled(sample.batch.maker), sample.batch.block
        if self.stacks is not None:
            wanted, self.stacks = self.stacks, None
            self.channel.send(("stacks", *wanted))
        if name not in self._makers:
            self.channel.send(
                ("maker", name, content, _script() if b"__main__" in content else None)
            )
            self._makers.add(name)
        gone = [number for number, known in self._blocks.items() if not known.alive]
        if gone:
            self.channel.send(("forget", gone))
            for number in gone:
                del self._blocks[number]
        if block.number not in self._blocks:
            self.channel.send(("block", block.number, block.size))
            # On macOS, multiprocessing's send_handle waits for a reply, but the answer to a sample
            # may come before it.
            with socket.socket(fileno=os.dup(self.channel.fileno())) as line:
                socket.send_fds(line, [b"f"], [block.fd])
            self._blocks[block.number] = block
        self.channel.send(("make", name, sample.task, block.number, sample.areas))

    def answer(self) -> tuple[SegtrainError | None, float, Cost]:
        """Wait for the oldest requested sample: its error, start time (time.perf_counter), and
        cost.
        """
        error, began, cost, self.cpu_s, requests = self.channel.recv()
        if requests.requests:
            OF_PROCESS.add(requests)
        return error, began, Cost(*cost)

    def exit_reason(self) -> str:
        """Why the process ended, in words."""
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
        """Close the channel, which makes the process exit. Kill the process if it still runs after
        2 seconds.
        """
        self.channel.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_pickles: WeakKeyDictionary[Maker, tuple[bytes, bytes]] = WeakKeyDictionary()


def pickled(maker: Maker) -> tuple[bytes, bytes]:
    """(name, content) of a maker, which is pickled once for all processes. Equal content has an
    equal name.
    """
    if maker not in _pickles:
        try:
            content = pickle.dumps(maker, protocol=5)
        except Exception as error:
            reason = f"the data set or its transforms cannot be sent to a process ({error})"
            fix = "define them at the top of a module, or set data.worker_kind=thread"
            text = f"data.worker_kind=process: {reason}: {fix}"
            raise ConfigError(text, code="dataset-not-picklable", found=str(error)) from None
        _pickles[maker] = hashlib.blake2b(content, digest_size=16).digest(), content
    return _pickles[maker]


def _script() -> dict[str, Any]:
    """What a worker process needs to import the main script, as multiprocessing sends it."""
    from multiprocessing import spawn

    facts = spawn.get_preparation_data("segtrain-data")
    facts.pop("authkey", None)
    return facts

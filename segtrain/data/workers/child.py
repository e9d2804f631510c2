"""Main loop of a worker process: it makes samples in memory that it shares with its rank, without importing torch.

Messages go over one socket pair. When the rank's end closes, however the rank ended, the worker exits too.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segtrain.errors import SegtrainError


class _Worker:
    def __init__(self, channel: Any = None) -> None:
        self.channel = channel
        self.makers: dict[bytes, Any] = {}
        self.blocks: dict[int, Any] = {}
        self.sampler: Any = None

    def handle(self, message: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Handle one message; returns the answer, if there is one."""
        kind, *rest = message
        if kind == "make":
            from segtrain.data import stages

            began = time.perf_counter()
            stages.begin()
            answer = self._make(*rest)
            return answer, began, tuple(stages.end()), time.process_time()
        if kind == "stacks":
            from segtrain.stacks import StackSampler

            if self.sampler is not None:
                self.sampler.stop()  # an earlier request must not overwrite the output of this one
            self.sampler = StackSampler(*rest, host=socket.gethostname())
        elif kind == "maker":
            self.makers[rest[0]] = rest[1:]
        elif kind == "block":
            with socket.socket(fileno=os.dup(self.channel.fileno())) as line:
                _, (fd,), _, _ = socket.recv_fds(line, 1, 1)
            self.blocks[rest[0]] = mmap.mmap(fd, rest[1])
            os.close(fd)
        elif kind == "forget":
            for number in rest[0]:
                del self.blocks[number]
        return None

    def _make(self, key: bytes, task: Any, block: int, areas: Any) -> SegtrainError | None:
        from multiprocessing import spawn

        import numpy as np

        from segtrain.errors import ConfigError, DataError, SegtrainError

        try:
            if isinstance(self.makers[key], list):
                content, script = self.makers[key]
                # Part of it is defined in the script that was started: import the script, as multiprocessing does.
                if script is not None:
                    spawn.prepare(script)
                self.makers[key] = pickle.loads(content)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            fix = "keep its classes and transforms in importable modules, or set data.worker_kind=thread"
            says = f"a worker process cannot load the data set ({reason}): {fix}"
            return DataError(says, code="worker-cannot-load", found=reason)
        outputs = [np.ndarray(shape, np.uint8, self.blocks[block], offset) for offset, shape in areas]
        try:
            self.makers[key](task, *outputs)
        except SegtrainError as error:
            # Subclasses may not unpickle.
            kind = next(kind for kind in (DataError, ConfigError, SegtrainError) if isinstance(error, kind))
            carried = kind(str(error), code=error.code, **error.values)
            carried.settings = error.settings
            return carried
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return DataError(reason, code="sample-failed", found=reason)
        return None


def _end_with(channel: Connection) -> None:
    """Exit when the rank's end closes, even in the middle of a sample."""
    poll = select.poll()
    poll.register(channel.fileno(), 0)  # 0: only hang-up and error
    poll.poll()
    os._exit(0)


def main() -> None:
    # The rank decides when its workers exit: a signal to the whole process group is for the rank.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    channel = Connection(int(sys.argv[1]))
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    try:
        sys.path[:] = channel.recv()
        import cv2

        cv2.setNumThreads(1)
        from segtrain.terminal import say_warnings

        say_warnings()
        # Import everything that a sample needs before the first one is requested.
        import segtrain.data.sample  # noqa: F401

        worker = _Worker(channel)
        channel.send("ready")
        while True:
            answer = worker.handle(channel.recv())
            if answer is not None:
                channel.send(answer)
    except (EOFError, OSError):
        os._exit(0)


if __name__ == "__main__":
    main()

"""Main loop of a worker process: it makes samples in memory that it shares with its rank, without
importing torch.

Messages go over one socket pair. When the rank's end closes, however the rank ended, the worker
exits too.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from segtrain.bucket.tally import OF_PROCESS

if TYPE_CHECKING:
    from segtrain.errors import SegtrainError


class _Worker:
    def __init__(self, channel: Any = None) -> None:
        self.channel = channel
        self.makers: dict[bytes, Any] = {}
        self.blocks: dict[int, Any] = {}
        self.sampler: Any = None
        # Requests to buckets, for samples whose bytes did not come with their task.
        self.requests = OF_PROCESS.counter()

    def handle(self, message: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Handle one message; returns the answer, if there is one."""
        kind, *rest = message
        if kind == "make":
            from segtrain.data import stages

            began = time.perf_counter()
            stages.begin()
            answer = self._make(*rest)
            return answer, began, tuple(stages.end()), time.process_time(), self.requests()
        if kind == "stacks":
            from segtrain.base.stacks import StackSampler

            if self.sampler is not None:
                # so that an earlier request does not overwrite the output of this request
                self.sampler.stop()
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
                # Part of the maker is defined in the main script, so import this script, as
                # multiprocessing does.
                if script is not None:
                    spawn.prepare(script)
                self.makers[key] = pickle.loads(content)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            fix = (
                "keep its classes and transforms in importable modules, or set "
                "data.worker_kind=thread"
            )
            says = f"a worker process cannot load the data set ({reason}): {fix}"
            return DataError(says, code="worker-cannot-load", found=reason)
        outputs = [
            np.ndarray(shape, np.uint8, self.blocks[block], offset) for offset, shape in areas
        ]
        try:
            self.makers[key](task, *outputs)
        except SegtrainError as error:
            # A subclass might fail to unpickle in the rank, so one of these base classes is sent.
            kind = next(
                kind for kind in (DataError, ConfigError, SegtrainError) if isinstance(error, kind)
            )
            carried = kind(str(error), code=error.code, **error.values)
            carried.settings, carried.exit_code = error.settings, error.exit_code
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


@contextlib.contextmanager
def _exit_if_closed() -> Iterator[None]:
    """Exit without an error if the rank's end of the channel closes while the block uses the
    channel.
    """
    try:
        yield
    except (EOFError, OSError):
        os._exit(0)


def main() -> None:
    # The rank decides when its workers exit: a signal to the whole process group is for the rank.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    channel = Connection(int(sys.argv[1]))
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    with _exit_if_closed():
        sys.path[:] = channel.recv()
    import cv2

    cv2.setNumThreads(1)
    from segtrain.base.terminal import say_warnings
    from segtrain.data.workers.memory import keep_freed_memory

    keep_freed_memory()
    say_warnings()
    # Import everything that a sample needs before the first one is requested.
    import segtrain.data.sample  # noqa: F401

    worker = _Worker(channel)
    with _exit_if_closed():
        channel.send("ready")
    while True:
        with _exit_if_closed():
            message = channel.recv()
        answer = worker.handle(message)
        if answer is not None:
            with _exit_if_closed():
                channel.send(answer)


if __name__ == "__main__":
    main()

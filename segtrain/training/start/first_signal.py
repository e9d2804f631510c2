"""Ends the process at a signal that comes before the ranks are connected, as if its state were
saved.

It ends at once, because nothing can be lost yet. The main thread may be importing torch, or waiting
in C++ for the other ranks, where Python's signal handlers do not run. So a separate thread reads
the byte that the interpreter's C handler writes for each signal (``signal.set_wakeup_fd``). Imports
no torch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

from segtrain.errors import EXIT_RESUMABLE
from segtrain.parallel.failure import report_exit

NUMBERS = (signal.SIGTERM, signal.SIGUSR1)


@contextlib.contextmanager
def ending_at_first_signal() -> Iterator[Callable[[], None]]:
    """End this process with EXIT_RESUMABLE at SIGTERM or SIGUSR1, until the yielded function is
    called.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # only the main thread may install handlers
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = {number: signal.signal(number, lambda *_: None) for number in NUMBERS}
    former = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    connected = threading.Event()
    threading.Thread(
        target=_watch, args=(reader, connected), name="first-signal", daemon=True
    ).start()

    def stop() -> None:
        if not connected.is_set():
            connected.set()
            signal.set_wakeup_fd(former)
            writer.close()  # which ends the thread

    try:
        yield stop
    finally:
        stop()
        for number, handler in before.items():
            # None: a handler that was not installed from Python, which cannot be installed again
            # from here.
            signal.signal(number, handler or signal.SIG_DFL)


def _watch(reader: socket.socket, connected: threading.Event) -> None:
    with reader:
        while signals := reader.recv(1):
            if signals[0] in NUMBERS and not connected.is_set():
                name = signal.Signals(signals[0]).name
                with contextlib.suppress(OSError, ValueError):
                    # torchrun also ends ranks after an error of another one, which has said what to
                    # do.
                    by_torchrun = (
                        signals[0] == signal.SIGTERM and "TORCHELASTIC_RUN_ID" in os.environ
                    )
                    fix = (
                        ""
                        if by_torchrun
                        else f": start the same command again (exit code {EXIT_RESUMABLE})"
                    )
                    print(
                        f"stopped by {name} before the first step{fix}", file=sys.stderr, flush=True
                    )
                report_exit(EXIT_RESUMABLE)
                os._exit(EXIT_RESUMABLE)

"""Whether this process was asked to stop by a signal, and whether it uploads the end of its run:
waits of minutes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

# Environment variable with a path. The file exists while the process uploads the end of its run, so
# that its parent does not kill it then.
UPLOADING = "SEGTRAIN_UPLOADING"

requested = threading.Event()
uploading = threading.Event()
connected = threading.Event()  # set once the ranks have met: until then, there is nothing to save
# set if a rank that this process has started ended before the ranks had met
rank_ended = threading.Event()


def note_signals(*numbers: int) -> list[int]:
    """A list to which each of these signals is appended from now on; only the main thread can
    install handlers.
    """
    received: list[int] = []
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            signal.signal(number, lambda number, frame: received.append(number))
    return received


@contextlib.contextmanager
def exiting_at_sigterm() -> Iterator[None]:
    """Context in which SIGTERM raises SystemExit in the main thread, as Ctrl-C raises
    KeyboardInterrupt, so that no partial files stay.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextlib.contextmanager
def upload_of_the_end(environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Context in which this process uploads the end of its run.

    A signal that ended the run does not end its upload, but a later one does.
    """
    file = Path(environ[UPLOADING]) if UPLOADING in environ else None
    uploading.set()
    requested.clear()
    try:
        if file:
            with contextlib.suppress(OSError):  # The process then gets less time.
                file.touch()
        yield
    finally:
        uploading.clear()
        if file:
            with contextlib.suppress(OSError):
                file.unlink()

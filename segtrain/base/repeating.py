"""Work that a thread repeats while something else runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def repeating(act: Callable[[], object], every_s: float, name: str) -> Iterator[None]:
    """Context in which a thread with this name calls ``act`` every ``every_s`` seconds. It has
    ended when the context is left.
    """
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(every_s):
            act()

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

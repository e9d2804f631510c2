"""Waiting for a condition in tests."""

from __future__ import annotations

import time
from collections.abc import Callable


def soon(ready: Callable[[], object], seconds: float = 240) -> bool:
    """Whether ``ready`` becomes true within this time."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def until(ready: Callable[[], object], what: str = "", seconds: float = 240) -> None:
    """Wait until ``ready`` is true; fail after this time."""
    assert soon(ready, seconds), f"waited in vain for {what or ready}"

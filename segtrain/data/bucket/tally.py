"""Counts of what was asked of a bucket: requests, bytes, and retries by kind with the seconds that they cost."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class RequestTally:
    """Totals of a process. ``seconds`` are those of the answered requests; ``retries``: kind -> (count, seconds)."""

    requests: int = 0
    bytes: int = 0
    seconds: float = 0.0
    retries: dict[str, tuple[int, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def answered(self, count: int, seconds: float) -> None:
        """Count a request that brought ``count`` bytes."""
        with self._lock:
            self.requests += 1
            self.bytes += count
            self.seconds += seconds

    def retried(self, kind: str, seconds: float) -> None:
        """Count a failed request and the pause after it, ``seconds`` together."""
        with self._lock:
            count, total = self.retries.get(kind, (0, 0.0))
            self.requests += 1
            self.retries[kind] = count + 1, total + seconds

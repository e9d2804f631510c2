"""Whether a rank needs helpers, and what it says about those that it loses."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from segtrain.base.terminal import counted

# local workers that make this many times the samples that the loop takes need no help
ENOUGH = 1.25


@dataclass
class SampleDemand:
    """How many samples per second the loop takes, from its last few steps."""

    _steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=9))

    def taken(self, now: float, count: int) -> None:
        """The loop has taken a batch of ``count`` samples."""
        self._steps.append((now, count))

    def rate(self, now: float) -> float:
        """Samples per second; 0: not known."""
        steps = list(self._steps)
        if len(steps) < 2:
            return 0.0
        # A pause, such as an evaluation, counts as at most one more step.
        seconds = max(steps[-1][0], min(now, 2 * steps[-1][0] - steps[-2][0])) - steps[0][0]
        return sum(count for _, count in steps[1:]) / max(1e-9, seconds)

    def more_than(self, rate: float, now: float) -> bool:
        """Whether the loop may need more than ``rate`` samples per second (0: not known)."""
        return not rate or len(self._steps) < 2 or ENOUGH * self.rate(now) > rate


def cores_of(working: Counter[str]) -> str:
    return f"{counted(sum(working.values()), 'core')} on {counted(len(working), 'host')}"


def lost(losses: Sequence[tuple[str, str, int, bool]]) -> Iterator[dict[str, Any]]:
    """An event of the journal for each host and reason. ``losses``: (host, reason, samples,
    refused).
    """
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for host, reason, samples, refused in losses:
        groups.setdefault((host, reason, refused), []).append(samples)
    for (host, reason, refused), counts in groups.items():
        cores, samples = counted(len(counts), "core"), sum(counts)
        fields = {"host": host, "cores": len(counts), "samples": samples, "reason": reason}
        if refused:
            yield {"what": "refused", **fields, "text": f"{cores} on {host} cannot help: {reason}"}
        else:
            again = counted(samples, "sample")
            text = f"{cores} on {host} lost ({reason}): {again} made again, and hired again soon"
            yield {"what": "lost", **fields, "text": text}

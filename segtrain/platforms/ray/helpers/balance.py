"""Whether helpers pay: what receiving a sample costs this rank's cores, compared with making it
here.
"""

from __future__ import annotations

from dataclasses import dataclass

from segtrain.data.workers.made import NO_COST, SampleCost
from segtrain.machines.receiving import WORTH

# helpers that were given up are asked again if receiving costs less than this share of making
AGAIN = 0.35
IN_A_ROW = 3  # looks with the same result, before helpers are given up or asked again
MADE, RECEIVED = 8, 32  # samples that a look needs


@dataclass
class Balance:
    """``made``: by local workers; ``received``: from helpers. Both since the start, of training
    samples only.

    Costs are compared for each byte, because the crop may change during a run, and both grow with
    it. While helpers are given up, the last cost of receiving counts.
    """

    made: SampleCost = NO_COST
    received: SampleCost = NO_COST
    given_up: bool = False
    receive_ms: float = 0.0  # of a sample, at the last look
    make_ms: float = 0.0
    _made: SampleCost = NO_COST
    _received: SampleCost = NO_COST
    _receiving: float = 0.0  # seconds of a byte
    _row: int = 0

    def changed(self) -> bool:
        """Look at the samples since the last look. Returns whether ``given_up`` has just
        changed.
        """
        made, received = self.made.since(self._made), self.received.since(self._received)
        if (
            made.samples < MADE
            or not made.seconds
            or (received.samples < RECEIVED and not self.given_up)
        ):
            return False
        self._made, self._received = self.made, self.received
        if received.samples >= RECEIVED:
            self._receiving = received.per_byte
        self.receive_ms, self.make_ms = 1000 * self._receiving * made.bytes / made.samples, made.ms
        share = self.receive_ms / self.make_ms
        self._row = self._row + 1 if (share < AGAIN if self.given_up else share > WORTH) else 0
        if self._row < IN_A_ROW:
            return False
        self.given_up, self._row = not self.given_up, 0
        return True

    def line(self, cores: str) -> str:
        """What has changed. ``cores``: "14 cores on 1 host"."""
        costs = (
            f"receiving a sample takes {self.receive_ms:.2g} ms of CPU time here, and making "
            f"it {self.make_ms:.2g} ms"
        )
        if self.given_up:
            return f"{cores} given up: {costs}, so they would not pay"
        return f"asked again: {costs}"

"""What packages above the core provide to a run: experiment trackers, and helpers that make
samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from segtrain.errors import without_platforms
from segtrain.observe.journal import Say
from segtrain.observe.trackers import TRACKERS, TrackerKind

if TYPE_CHECKING:
    from segtrain.config import Data
    from segtrain.data.train_loader import TrainLoader
    from segtrain.data.workers.pool import WorkerPool

OnRank0 = Callable[[Callable[[], dict[str, Any]]], dict[str, Any]]  # every rank gets the result


class Helpers(Protocol):
    """Makes samples for one rank, beside its own workers or in their place."""

    def pool(self, count: int, kind: str, say: Say, note: Callable[..., None]) -> WorkerPool:
        """``count`` local workers of a kind, and the helpers. ``say`` gets lines, ``note`` fields
        for the journal.
        """

    def loader(self, say: Say, on_rank_0: OnRank0, *args: Any, **settings: Any) -> TrainLoader:
        """A ``TrainLoader`` with these arguments whose samples may come from helpers. A
        collective.
        """


def _no_helpers(data: Data, rank: int, world: int) -> Helpers:
    raise without_platforms("data.helpers", data.helpers)


@dataclass(frozen=True)
class Provided:
    """``open_helpers``: the helpers of rank ``rank`` of ``world``. Raises ConfigError if they
    cannot be reached.
    """

    trackers: Sequence[TrackerKind] = TRACKERS
    open_helpers: Callable[[Data, int, int], Helpers] = _no_helpers


CORE = Provided()

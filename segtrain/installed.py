"""What this installation adds to the core: the lists of segtrain.platforms, or nothing if that
package is absent.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segtrain.insight.runs.remote import RunService
    from segtrain.observe.trackers import TrackerKind
    from segtrain.parallel.cluster import Cluster
    from segtrain.training.provided import Provided

HAS_PLATFORMS = (Path(__file__).parent / "platforms/__init__.py").is_file()


def discover() -> Cluster:
    """This process's place in its job. Raises ConfigError."""
    from segtrain.parallel.cluster import discover

    if not HAS_PLATFORMS:
        return discover()
    from segtrain.platforms import RANK_SOURCES

    return discover(RANK_SOURCES)


def watch_for_notices(cluster: Cluster) -> None:
    """Stop this process with its state saved when a platform says that it takes the machine away.

    Raises ConfigError for a wrong environment variable.
    """
    if HAS_PLATFORMS:
        from segtrain.platforms.spot import watch

        watch(cluster)


def trackers() -> Sequence[TrackerKind]:
    from segtrain.observe import trackers

    if not HAS_PLATFORMS:
        return trackers.TRACKERS
    from segtrain.platforms import TRACKERS

    return TRACKERS


def provided() -> Provided:
    """For a run."""
    from segtrain.training.provided import CORE, Provided

    if not HAS_PLATFORMS:
        return CORE
    from segtrain.platforms.ray.helpers.source import open_helpers

    return Provided(trackers(), open_helpers)


def run_services() -> Sequence[RunService]:
    if not HAS_PLATFORMS:
        return ()
    from segtrain import platforms

    return platforms.run_services()

"""What this installation adds to the core: the lists of segtrain.platforms, or nothing if that package is absent."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segtrain.parallel.cluster import Cluster

HAS_PLATFORMS = find_spec("segtrain.platforms") is not None


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

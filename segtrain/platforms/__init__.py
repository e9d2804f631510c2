"""What each platform adds to the core, in one list per kind. Each entry is imported by
segtrain/installed.py alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segtrain.observe import trackers
from segtrain.observe.tracker import TrackedRun, Tracker
from segtrain.observe.trackers import TrackerKind
from segtrain.parallel.cluster import LAUNCHERS, RankSource
from segtrain.platforms.ray.hosts import ranks as ray_ranks
from segtrain.platforms.sagemaker.hosts import ranks as sagemaker_ranks
from segtrain.platforms.slurm.hosts import ranks as slurm_ranks
from segtrain.platforms.vertex.hosts import ranks as vertex_ranks

if TYPE_CHECKING:
    from segtrain.insight.runs.remote import RunService

# Where a process finds its rank. The first source that knows it decides: on SageMaker and Slurm,
# launchers of MPI and torchrun are asked by the platform, which also knows the host.
RANK_SOURCES: tuple[RankSource, ...] = (
    sagemaker_ranks,
    ray_ranks,
    slurm_ranks,
    *LAUNCHERS,
    vertex_ranks,
)


def _vertex_experiments(experiment: Any, run: TrackedRun) -> Tracker:
    from segtrain.platforms.vertex.tracker import VertexExperiments

    return VertexExperiments(experiment, run)


TRACKERS = (
    *trackers.TRACKERS,
    TrackerKind(
        "vertex",
        package="google-auth",
        extra="vertex",
        make=_vertex_experiments,
        module="google.auth",
    ),
)


def run_services() -> tuple[RunService, ...]:
    """Locations of runs that ``segtrain runs``, ``report``, ``diagnose``, and others read."""
    from segtrain.insight.runs.remote import RunService
    from segtrain.platforms.sagemaker.runs import folders
    from segtrain.platforms.vertex.runs import VERTEX, experiment_rows, no_folders

    return (
        RunService(("sagemaker:", "arn:"), folders),
        RunService((VERTEX,), no_folders, experiment_rows),
    )

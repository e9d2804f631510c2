"""What each platform adds to the core, in one list per kind. Each entry is imported by segtrain/installed.py alone."""

from segtrain.parallel.cluster import LAUNCHERS, RankSource
from segtrain.platforms.ray import hosts as ray
from segtrain.platforms.sagemaker import hosts as sagemaker
from segtrain.platforms.slurm import hosts as slurm
from segtrain.platforms.vertex import hosts as vertex

# Where a process finds its rank. The first source that knows it decides: on SageMaker and Slurm, launchers of MPI and
# torchrun are asked by the platform, which also knows the host.
RANK_SOURCES: tuple[RankSource, ...] = (sagemaker.ranks, ray.ranks, slurm.ranks, *LAUNCHERS, vertex.ranks)

"""Checks of the settings for mistakes, before torch is imported, a process is started, or a file is
made.
"""

from __future__ import annotations

import sys

from segtrain.base.memory import memory_limit
from segtrain.bucket import split_url
from segtrain.bucket.client import client_of
from segtrain.config import Config, refuse_names
from segtrain.errors import ConfigError
from segtrain.parallel.cluster import Cluster
from segtrain.runfolder.rundir import refuse_run_dir
from segtrain.training.start.price import refuse_budget

GIB = 2**30


def refuse(
    config: Config, cluster: Cluster, ranks: int, parts: dict[str, str] | None = None
) -> None:
    """Check the settings of a run of ``ranks`` ranks. Raises ConfigError.

    The run folder is checked here only if no launcher started the ranks. Launched ranks check it
    together later: if one of them ended here, the others would wait for it. ``parts``: see
    ``refuse_run_dir``.
    """
    alone = cluster.alone
    if alone and cluster.lone_refusal:
        raise cluster.lone_refusal
    if alone and cluster.lone_caveat:
        print(cluster.lone_caveat, file=sys.stderr, flush=True)
    refuse_batch(config, ranks)
    refuse_sizes(config, ranks, ranks if alone else cluster.local_world_size)
    refuse_names(config.model)
    refuse_budget(config, cluster.machine)
    if config.out_bucket:
        # This checks that the package is installed. The content of the bucket is checked later,
        # under its lease.
        client_of(split_url(config.out)[0])
    elif alone:
        refuse_run_dir(config, parts)


def refuse_batch(config: Config, ranks: int) -> None:
    """Raises ConfigError if a micro-batch has fewer images than there are ranks."""
    train = config.train
    images = train.batch_size // train.accumulate
    if images < ranks:
        raise ConfigError(
            f"train.batch_size={train.batch_size} with train.accumulate={train.accumulate} leaves "
            f"{images} images for {ranks} ranks: use at least {ranks * train.accumulate}, or "
            "fewer ranks"
            + (
                f" (parallel.procs={config.parallel.procs})"
                if config.parallel.procs == ranks
                else ""
            ),
            code="batch-too-small",
            found=images,
            expected=ranks,
        )


def refuse_sizes(config: Config, ranks: int, local_ranks: int) -> None:
    """Raises ConfigError if the samples, or a single image, need more memory than this machine
    has.
    """
    data, train, (limit, _) = config.data, config.train, memory_limit()
    height, width = data.crop
    # steps in memory: prefetched ones, and the one in use
    ahead = max(1, data.prefetch // train.accumulate) + 1
    # 4 bytes per pixel: RGB and label
    need = 4 * height * width * train.batch_size * ahead * local_ranks / ranks
    if need > limit:
        raise ConfigError(
            f"train.batch_size={train.batch_size} with data.crop=[{height}, {width}] and "
            f"data.prefetch={data.prefetch} needs {need / GIB:,.1f} GiB for samples, but this "
            f"machine has {limit / GIB:,.1f} GiB: lower one of them",
            code="samples-exceed-memory",
            found=int(need),
        )
    pictures = {
        "eval.size": config.eval.size,
        "data.scene_size": data.scene_size if data.layout == "scenes" else None,
    }
    for key, size in pictures.items():
        # bytes per pixel: three float32 colors, and labels
        if size is not None and 16 * size[0] * size[1] > limit:
            raise ConfigError(
                f"{key}=[{size[0]}, {size[1]}] needs {16 * size[0] * size[1] / GIB:,.1f} GiB for "
                f"one image, but this machine has {limit / GIB:,.1f} GiB: lower it",
                code="image-exceeds-memory",
                key=key,
            )

"""One rank of a Vertex AI job: its settings, the training, and the export of the model."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from segtrain.base.stopping import note_signals
from segtrain.platforms import outcome
from segtrain.platforms.process import config_path
from segtrain.platforms.vertex import folders as vertex_folders

if TYPE_CHECKING:
    from segtrain.config import Config
    from segtrain.parallel.cluster import Cluster

# Where a config file may be, other than in the working directory: in a checkout, or in the files
# that a wheel contains.
_FOLDERS = (Path(__file__).parents[3], Path(__file__).parents[2] / "_checkout")


def settings(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Config:
    """The config of ``[--config] FILE section.key=value ...``. The default of ``out`` is
    AIP_CHECKPOINT_DIR.
    """
    from segtrain.config import load_config

    parser = argparse.ArgumentParser(prog="python -m segtrain.platforms.vertex", allow_abbrev=False)
    parser.add_argument("--config", default="", metavar="FILE")
    arguments, overrides = parser.parse_known_args(argv)
    if overrides and "=" not in overrides[0]:
        arguments.config = arguments.config or overrides.pop(0)
    path = config_path(arguments.config, (Path.cwd(), *_FOLDERS)) if arguments.config else None
    config = load_config(path, overrides)
    wanted = vertex_folders.run_folder(config.out or environ.get(vertex_folders.CHECKPOINTS, ""))
    return (
        config if wanted in ("", config.out) else load_config(path, [*overrides, f"out={wanted}"])
    )


def main(argv: Sequence[str]) -> int:
    """Train as the rank in the environment variables, and return the exit code."""
    received = note_signals(signal.SIGTERM)  # The signal may come while torch is imported.
    try:
        return _work(argv, received)
    except Exception as error:
        return _failed(error)


def _work(argv: Sequence[str], received: list[int]) -> int:
    from segtrain.installed import discover, provided
    from segtrain.platforms.decoder import prepare
    from segtrain.training.rank import train

    config, cluster = settings(argv), discover()
    decoder = prepare(Path(tempfile.gettempdir()) / "segtrain-native")
    if cluster.local_rank == 0:
        _introduce(config, cluster, decoder)
    with vertex_folders.event_files(config, cluster.rank):
        code = train(config, cluster, received, report=_failed, provided=provided())
    if code == 0 and cluster.rank == 0:
        vertex_folders.keep_model(config)
    return code


def _introduce(config: Config, cluster: Cluster, decoder: str) -> None:
    """Print what differs between hosts, once on each host."""
    last = cluster.rank + cluster.local_world_size - 1
    print(
        f"ranks {cluster.rank} to {last} of {cluster.world_size}, rank 0 at "
        f"{cluster.master_addr}:{cluster.master_port}"
    )
    print(f"  data {config.data.root or '(generated)'}, run folder {config.run_place}")
    print(f"  {decoder}", flush=True)


def _failed(error: Exception) -> int:
    """Print an error. Returns the exit code."""
    return outcome.say_error(error, f"rank {os.environ.get('RANK', '0')}: {outcome.cause(error)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What runs in the worker processes of Ray Train, and a look at a node of the cluster before they
are started.

A worker runs its rank as a child process, by the same command as everywhere: Ray calls a function
of a training in a thread, where signals cannot be handled, and may end the worker at any time,
which must not leave half a process group.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

import segtrain
from segtrain.errors import EXIT_ERROR, EXIT_RESUMABLE
from segtrain.parallel.cluster import free_port
from segtrain.parallel.spawn import dying_with_parent
from segtrain.platforms.ray import hosts as ray_hosts

# packages whose versions must be the same on all nodes
COMPARED = ("torch", "numpy", "segmentation-models-pytorch")
_PAUSE_S = 0.5


def work(order: Mapping[str, Any]) -> dict[str, int]:
    """Train as one rank, and return its exit code: 0, or that of an error that another start would
    meet again.

    Raises RuntimeError for any other end, after which Ray starts all workers again. ``order``: the
    arguments of ``segtrain train``, and further environment variables.
    """
    import ray
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero

    context = get_context()
    rank = context.get_world_rank()
    here = (ray.util.get_node_ip_address(), free_port()) if rank == 0 else None
    address, port = broadcast_from_rank_zero(here)
    code = _bundle()
    environment = {
        **_interface(ray.util.get_node_ip_address()),
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (code, os.environ.get("PYTHONPATH")))),
        "RAY_ADDRESS": ray.get_runtime_context().gcs_address,  # for data.helpers
        **order["environment"],
        **ray_hosts.environment(context, address, port),
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "segtrain", "train", *order["arguments"]],
        env=environment,
        cwd=code,
        preexec_fn=dying_with_parent(),
    )
    preempted = False
    while (ended := child.poll()) is None:
        if not preempted and (seconds := _preemption()) is not None:
            preempted = True
            print(f"preemption in {seconds:.0f} s: the ranks save their state", flush=True)
            child.send_signal(signal.SIGTERM)
        time.sleep(_PAUSE_S)
    while preempted and ended == EXIT_RESUMABLE:
        # Ray ends this process at the deadline, and counts a preemption instead of a failure.
        time.sleep(_PAUSE_S)
    if ended in (0, EXIT_ERROR):
        return {"code": ended}
    raise RuntimeError(f"rank {rank} ended with exit code {ended}: see its output above")


def _interface(address: str) -> dict[str, str]:
    """The variable that gives gloo the interface with an address; else it would look up the name of
    the host.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if address in (nic.address for nic in addresses):
            return {"GLOO_SOCKET_IFNAME": name}
    return {}


def _bundle() -> str:
    """The folder of the code that came with the command, which Ray puts first on PYTHONPATH.

    Modules of this process may come from elsewhere: a node's own PYTHONPATH.
    """
    first = Path(os.environ.get("PYTHONPATH", "").partition(os.pathsep)[0])
    return str(first if (first / "segtrain").is_dir() else Path(segtrain.__file__).parents[1])


def _preemption() -> float | None:
    """Seconds until a node of this training is taken away; None if none is.

    ``ray.train.get_preemption_info()`` has the same information, but waits until all workers call
    it.
    """
    from ray.train.v2._internal.execution.context import get_train_context

    info = get_train_context().preemption_context.preemption_info
    if info is None:
        return None
    return max(0.0, info.deadline_ms / 1000 - time.time()) if info.deadline_ms else 0.0


def describe_node(mark: str) -> dict[str, Any]:
    """What a node of the cluster has. ``mark``: a file that this command has just written to the
    run folder.
    """
    packages: dict[str, str | None] = {}
    for package in COMPARED:
        try:
            packages[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            packages[package] = None
    return {
        "host": platform.node(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "packages": packages,
        "sees": not mark or Path(mark).is_file(),
        "scratch": tempfile.gettempdir(),
    }

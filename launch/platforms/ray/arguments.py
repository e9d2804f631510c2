"""Command-line flags for trainings on a Ray cluster. Only given flags are in the result; the job file decides about the
others.
"""

from __future__ import annotations

import argparse

from launch.core.flags import FlagParser

EPILOG = """section.key=value changes a setting of the training config, as with `segtrain train`.

Without --address and RAY_ADDRESS, Ray is started on this machine. In a cluster, run this command on one of its nodes,
or as a Ray job. The run folder must be the same folder on all nodes.
"""
CALLED_HERE = {
    "--num-workers": "--workers",
    "--num-gpus": "--gpus",
    "--num-cpus": "--cpus",
    "--storage-path": "--output",
}


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of all flags. A flag that is not given leaves no attribute, so that the job file decides."""
    parser = FlagParser(
        command, "CONFIG] [--dry-run", "Train on a Ray cluster, by Ray Train: check, and train.", EPILOG, CALLED_HERE
    )
    add = parser.add_argument
    add("--dry-run", action="store_true", help="check the job and the cluster; train nothing")
    add("--workers", type=int, metavar="N", help="number of ranks (default: 1)")
    add("--elastic", metavar="LEAST:MOST", help="train with as many ranks as the cluster has room for")
    add("--address", metavar="HOST:PORT", help="Ray cluster (default: RAY_ADDRESS, or a new one on this machine)")
    add("--cpus", type=int, metavar="N", help="cores of each rank (default: 1)")
    add("--gpus", type=int, metavar="N", help="GPUs of each rank: 1 or 0 (default: 1 where nodes have GPUs)")
    add("--label", dest="labels", action="append", metavar="KEY=VALUE", help="label of the nodes to use; repeatable")
    add("--retries", type=int, metavar="N", help="starts after a failure; preemptions do not count (default: 3)")
    add("--grace", metavar="TIME", help="time for other nodes after the deadline of a preemption (default: 0)")
    add("--resize", metavar="TIME", help="time between two looks for more nodes, with --elastic (default: 60)")
    add("--autoscaling", action="store_true", help="the cluster adds the nodes that are missing")
    add("--output", metavar="DIR", help="folder of runs, which all nodes share (default: runs)")
    add("--name", metavar="WORD", help="name of the run folder in the output (default: segtrain)")
    add("--strategy", metavar="NAME", help="ddp or fsdp (default: ddp)")
    add("--like", metavar="RUN", help="a past run with this config, to predict time and node-hours")
    add("--env", dest="environment", action="append", metavar="KEY=VALUE", help="repeatable")
    add("--job", metavar="FILE", help="YAML file with all of these")
    return parser

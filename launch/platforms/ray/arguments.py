"""Command-line flags for trainings on a Ray cluster. Only given flags are in the result; the job
file decides about the others.
"""

from __future__ import annotations

import argparse

from launch.core.flags import FlagParser
from launch.platforms.ray.job import RayJob

EPILOG = """section.key=value changes a setting of the training config, as with `segtrain train`.

Without --address and RAY_ADDRESS, Ray is started on this machine. In a cluster, run this command on
one of its nodes, or as a Ray job. The run folder must be the same folder on all nodes.
"""
CALLED_HERE = {
    "--num-workers": "--workers",
    "--num-gpus": "--gpus",
    "--num-cpus": "--cpus",
    "--storage-path": "--output",
}


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of all flags. A flag that is not given leaves no attribute, so that the job file
    decides.
    """
    description = "Train CONFIG, the first word, on a Ray cluster, by Ray Train: check, and train."
    return FlagParser(
        command, RayJob, ("dry_run",), description, EPILOG, CALLED_HERE, ("config", "max_run")
    )

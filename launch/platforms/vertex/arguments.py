"""Command-line flags for Vertex AI jobs. The result has only the flags that are given; the job file
sets the others.
"""

from __future__ import annotations

import argparse

from launch.core.flags import FlagParser, add_rehearsal
from launch.platforms.vertex.job import VertexJob

FAULTS = ("fail:RANK", "stop:STEP", "spot:STEP", "kill:STEP", "late:SECONDS")
ACTIONS = ("dry_run", "rehearse", "attach", "stop", "yes", "no_follow")
EPILOG = """section.key=value changes a setting of the training config, as with `segtrain train`.

Problems are reported before anything is submitted; --dry-run and --rehearse need no Google Cloud
project.
"""
# Names of flags in other tools -> names here.
CALLED_HERE = {
    "--display-name": "--name",
    "--location": "--region",
    "--machine-type": "--machine",
    "--accelerator-type": "--accelerator",
    "--accelerator-count": "--accelerator TYPE:COUNT",
    "--replica-count": "--hosts",
    "--container-image-uri": "--image",
    "--container-uri": "--image",
    "--executor-image-uri": "--image",
    "--base-output-dir": "--output",
    "--staging-bucket": "--staging",
    "--boot-disk-size-gb": "--disk-gb",
    "--boot-disk-type": "--disk-type",
    "--timeout": "--max-run",
    "--max-wait-duration": "--max-wait",
    "--scheduling-strategy": "--scheduling",
    "--restart-job-on-worker-restart": "--restart-all",
    "--labels": "--label",
    "--enable-web-access": "--web-access",
    "--persistent-resource-id": "--persistent-resource",
    "--worker-pool-spec": "--machine, --accelerator, --hosts, and --image",
    "--args": "section.key=value",
}


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of all flags. A flag that is not given leaves no attribute, so that the job file
    decides.
    """
    description = "Train on Vertex AI: check a job, rehearse it, submit it, and follow it."
    parser = FlagParser(command, VertexJob, ACTIONS, description, EPILOG, CALLED_HERE)
    add_rehearsal(parser, "stands for the data", FAULTS)
    return parser

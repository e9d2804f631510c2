"""Command-line flags for SageMaker jobs. The result holds only flags that were given; the job file
sets the rest.
"""

from __future__ import annotations

import argparse
import os

from launch.core.flags import FlagParser, add_rehearsal
from launch.core.rehearse.cluster import FAULTS
from launch.platforms.sagemaker.job import SageMakerJob

DEFAULT_REGION = "us-east-1"
MOST_HOSTS = 3  # a rehearsal starts at most this many hosts, unless --hosts is given
ACTIONS = ("dry_run", "rehearse", "attach", "stop", "update", "yes", "no_follow")
EPILOG = """section.key=value changes a setting of the training config, as with `segtrain train`.

--data s3://... and --fsx fs-...:/MOUNTNAME/path choose the data source, --strategy how to train.
The training code is the same for all of them. Problems are reported before anything is submitted;
--dry-run and --rehearse need no AWS account.
"""


# Names of flags in other tools -> names here.
CALLED_HERE = {
    "--instance-count": "--instances",
    "--num-instances": "--instances",
    "--instance-type": "--type",
    "--instance-groups": "--group",
    "--role-arn": "--role",
    "--image-uri": "--image",
    "--training-image": "--image",
    "--volume-size": "--volume-gb",
    "--max-runtime": "--max-run",
    "--use-spot-instances": "--spot",
    "--keep-alive-period": "--warm-pool",
    "--checkpoint-s3-uri": "--checkpoints",
    "--output-path": "--output",
    "--security-group-ids": "--security-groups",
    "--base-job-name": "--name",
    "--job-name": "--name",
    "--hyperparameters": "section.key=value",
}


def default_region(region: str | None) -> str:
    """The region of a command: the given one, else that of the environment, else us-east-1."""
    return (
        region
        or os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
        or DEFAULT_REGION
    )


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of all flags. A flag that is not given sets no attribute, so that the job file
    decides.
    """
    description = (
        "Train on Amazon SageMaker: check a job, rehearse it, submit it, follow it, "
        "and fetch its model."
    )
    parser = FlagParser(command, SageMakerJob, ACTIONS, description, EPILOG, CALLED_HERE)
    short = parser.add_argument_group("short forms of --data")
    short.add_argument(
        "--mode", metavar="NAME", help="how S3 channels are read: File (default) or FastFile"
    )
    short.add_argument(
        "--fsx", metavar="fs-ID:/MOUNTNAME/path", help="read the channel train from FSx for Lustre"
    )
    rehearsal = add_rehearsal(parser, "fills the data channel", FAULTS)
    rehearsal.add_argument(
        "--hosts",
        type=int,
        metavar="N",
        help=f"number of hosts (default: as in the request, at most {MOST_HOSTS})",
    )
    return parser

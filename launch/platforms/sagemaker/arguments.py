"""Command-line flags for SageMaker jobs. The result holds only flags that were given; the job file sets the rest."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from launch.core.flags import FlagParser, add_rehearsal, refuse_flags
from launch.core.rehearse.cluster import PLANTS

DEFAULT_REGION = "us-east-1"
MOST_HOSTS = 3  # a rehearsal starts at most this many hosts, unless --hosts is given
OF_A_REHEARSAL = ("hosts", "procs", "sample", "plant", "folder")  # flags that only a rehearsal reads
EPILOG = """section.key=value changes a setting of the training config, as with `segtrain train`.

--data s3://... and --fsx fs-...:/MOUNTNAME/path choose the data source, --strategy how to train. The training code is
the same for all of them. Problems are reported before anything is submitted; --dry-run and --rehearse need no AWS
account.
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


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of all flags. A flag that is not given sets no attribute, so that the job file decides."""
    parser = FlagParser(
        command,
        "--dry-run | --rehearse | --attach NAME | --stop NAME | --update NAME",
        "Train on Amazon SageMaker: check a job, rehearse it, submit it, follow it, and fetch its model.",
        EPILOG,
        CALLED_HERE,
    )
    for add in (_add_actions, _add_machines, _add_data, _add_limits, _add_account, _add_rehearsal):
        add(parser)
    return parser


def _add_actions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("action (default: check, ask, submit, follow, and fetch)")
    group.add_argument("--dry-run", action="store_true", help="print the request and its problems; submit nothing")
    group.add_argument("--rehearse", action="store_true", help="run the same request on this machine, on CPU ranks")
    group.add_argument("--attach", metavar="NAME", help="follow a submitted job, and fetch its model")
    group.add_argument("--stop", metavar="NAME", help="stop a job; it saves its state first")
    group.add_argument(
        "--update",
        metavar="NAME",
        help="change a submitted job: --profile-ms MS (0: off), --remote-debug, --warm-pool TIME",
    )
    group.add_argument("--yes", action="store_true", help="submit without asking")
    group.add_argument("--no-follow", action="store_true", help="submit, print how to attach, and exit")


def _add_machines(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machines")
    group.add_argument("--instances", type=int, metavar="N", help="number of instances (default: 1)")
    group.add_argument(
        "--type", metavar="TYPE", help="instance type, such as ml.p4d.24xlarge (default: ml.g5.12xlarge)"
    )
    group.add_argument(
        "--group",
        action="append",
        metavar="NAME=TYPE*N[:train|:help]",
        help="an instance group: the one with :train trains, those with :help make samples for it; repeatable",
    )
    group.add_argument(
        "--helpers-join", metavar="TIME", help="time for the hosts of :help to join the training (default: 10m)"
    )
    group.add_argument(
        "--helpers-required",
        action="store_true",
        help="train only with all hosts of :help (default: begin at once, and go on without those that do not join)",
    )
    group.add_argument(
        "--like",
        metavar="RUN",
        help="a past run with this config, to predict time, cost, and whether hosts of :help pay",
    )
    group.add_argument(
        "--unknown-type-ok", action="store_true", help="allow a type that neither segtrain nor botocore knows"
    )
    group.add_argument(
        "--fallback",
        action="append",
        dest="fallbacks",
        metavar="TYPE[*N]",
        help="a type to use while --type has no capacity; repeatable, in order",
    )
    group.add_argument("--training-plan", metavar="ARN", help="reserved capacity of --type")
    group.add_argument("--strategy", metavar="NAME", help="single, ddp, fsdp, smddp, or dp (default: ddp)")
    group.add_argument("--image", metavar="URI", help="container image (default: chosen for the type and the strategy)")
    group.add_argument("--volume-gb", type=int, metavar="GB", help="disk of each instance (default: 100)")


def _add_data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data and results")
    group.add_argument("--config", metavar="FILE", help="training config (default: configs/scenes.yaml)")
    group.add_argument(
        "--data", action="append", metavar="[NAME=]s3://...", help="a channel from S3 (default name: train); repeatable"
    )
    group.add_argument("--mode", metavar="NAME", help="how S3 channels are read: File (default) or FastFile")
    group.add_argument("--fsx", metavar="fs-ID:/MOUNTNAME/path", help="read the channel train from FSx for Lustre")
    group.add_argument("--data-gb", type=float, metavar="GB", help="size of the data, for checks and estimates")
    group.add_argument("--output", metavar="s3://...", help="place of model and report (default: the account's bucket)")
    group.add_argument("--checkpoints", metavar="s3://.../", help="place of the checkpoints during training")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("time and money")
    group.add_argument("--max-run", metavar="TIME", help="limit of the training time, such as 6h or 90m (default: 24h)")
    group.add_argument("--spot", action="store_true", help="use spot instances at a lower price; needs --checkpoints")
    group.add_argument(
        "--max-wait", metavar="TIME", help="limit of the time for waiting for spot instances and training"
    )
    group.add_argument("--max-pending", metavar="TIME", help="limit of the time for waiting for instances, 30m or more")
    group.add_argument(
        "--retries", type=int, metavar="N", help="restart after an internal error of AWS, up to 30 times"
    )
    group.add_argument("--warm-pool", metavar="TIME", help="keep the instances for the next job, up to 1h")
    group.add_argument(
        "--price", type=float, metavar="USD", help="price per hour of a training instance, instead of the table's"
    )


def _add_account(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("account")
    group.add_argument("--role", metavar="ARN", help="execution role of the job (default: SAGEMAKER_ROLE)")
    group.add_argument("--region", metavar="NAME", help=f"default: AWS_REGION or {DEFAULT_REGION}")
    group.add_argument("--subnets", type=_list, metavar="A,B", help="subnets of the VPC; FSx needs them")
    group.add_argument(
        "--security-groups", type=_list, metavar="A,B", help="security groups of the VPC; FSx needs them"
    )
    group.add_argument("--volume-kms", metavar="KEY", help="KMS key of the instances' disks (ID or ARN)")
    group.add_argument("--output-kms", metavar="KEY", help="KMS key of the files that the job writes to S3")
    group.add_argument("--network-isolation", action="store_true", help="containers can reach only each other")
    group.add_argument("--encrypt-traffic", action="store_true", help="encrypt the traffic between containers")
    group.add_argument(
        "--remote-debug", action="store_true", help="allow a shell in the containers: aws ssm start-session"
    )
    group.add_argument("--tag", action="append", dest="tags", metavar="KEY=VALUE", help="repeatable")
    group.add_argument("--env", action="append", dest="environment", metavar="KEY=VALUE", help="repeatable")
    group.add_argument(
        "--request",
        action="append",
        metavar="MEMBER.MEMBER=VALUE",
        help="any other member of the request; it is checked; repeatable",
    )
    group.add_argument("--name", metavar="WORD", help="prefix of the job's name (default: segtrain)")
    group.add_argument("--job", metavar="FILE", help="YAML file with all of these, such as configs/jobs/sagemaker.yaml")
    group.add_argument(
        "--profile-ms",
        type=int,
        metavar="MS",
        help="interval of the system profile in milliseconds; 0: off (default: 500)",
    )


def _add_rehearsal(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("rehearsal")
    group.add_argument(
        "--hosts", type=int, metavar="N", help=f"number of hosts (default: as in the request, at most {MOST_HOSTS})"
    )
    add_rehearsal(group, "fills the data channel", PLANTS)


def refuse_together(known: Mapping[str, Any]) -> None:
    """Raises ConfigError for flags that exclude each other, and for flags of a rehearsal without --rehearse."""
    refuse_flags(known, (("dry_run", "rehearse"), ("attach", "stop", "update")), OF_A_REHEARSAL)


def _list(text: str) -> list[str]:
    return [part for part in text.split(",") if part]

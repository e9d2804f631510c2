"""Flags of the command for SageMaker jobs. The result has only those given; the rest is up to the job file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from segtrain.errors import ConfigError

DEFAULT_REGION = "us-east-1"
MOST_HOSTS = 3  # that a rehearsal plays unless it is told
OF_A_REHEARSAL = ("hosts", "procs", "sample", "plant", "folder")  # flags that nothing else reads
EPILOG = """section.key=value changes a setting of the training config, as with `segtrain train`.

--data s3://... and --fsx fs-...:/MOUNTNAME/path switch where the data are; --strategy how it trains. Neither
changes the training code. What is wrong is said before anything is sent: --dry-run and --rehearse need no AWS account.
"""


# What other tools call a flag -> what it is called here.
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


class _Parser(argparse.ArgumentParser):
    """Names the flag of this command where one of the SDK's or of the AWS command line was typed."""

    def error(self, message: str) -> NoReturn:
        typed = [word.partition("=")[0].replace("_", "-") for word in message.split() if word.startswith("--")]
        hints = [f"{word} is {CALLED_HERE[word]} here" for word in typed if word in CALLED_HERE]
        super().error("; ".join([message, *dict.fromkeys(hints)]))


def build_parser(command: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=command,
        usage="%(prog)s [--dry-run | --rehearse | --attach NAME | --stop NAME | --update NAME] [flags] [section.key=value ...]",
        description="Train on Amazon SageMaker: check the job, rehearse it here, send it, follow it, fetch its model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("settings", nargs="*", metavar="section.key=value", help="settings of the training config")

    what = parser.add_argument_group("what to do (without one of these: check, ask, send, follow, fetch)")
    what.add_argument(
        "--dry-run", action="store_true", help="print the request and what is wrong with it; send nothing"
    )
    what.add_argument("--rehearse", action="store_true", help="run the very request here, on CPU ranks")
    what.add_argument("--attach", metavar="NAME", help="follow a job that is there already, and fetch its model")
    what.add_argument("--stop", metavar="NAME", help="stop a job gently: its state is saved")
    what.add_argument(
        "--tune", metavar="FILE", help="send a hyperparameter tuning job: the job, with ranges of settings"
    )
    what.add_argument(
        "--update",
        metavar="NAME",
        help="change a job that has been sent: --profile-ms MS (0: off), --remote-debug, --warm-pool TIME",
    )
    what.add_argument("--yes", action="store_true", help="send without asking")
    what.add_argument("--no-follow", action="store_true", help="send, say how to come back, and end")

    machines = parser.add_argument_group("machines")
    machines.add_argument("--instances", type=int, metavar="N", help="how many (default: 1)")
    machines.add_argument("--type", metavar="TYPE", help="instance type, as ml.p4d.24xlarge (default: ml.g5.12xlarge)")
    machines.add_argument(
        "--group",
        action="append",
        metavar="NAME=TYPE*N[:train]",
        help="an instance group; the one marked :train trains, the others are paid for and do nothing yet; repeat",
    )
    machines.add_argument(
        "--unknown-type-ok", action="store_true", help="send a type that neither this table nor botocore knows"
    )
    machines.add_argument(
        "--fallback",
        action="append",
        dest="fallbacks",
        metavar="TYPE[*N]",
        help="a type to take while --type has no capacity; repeat, in order",
    )
    machines.add_argument("--training-plan", metavar="ARN", help="reserved capacity of --type")
    machines.add_argument("--strategy", metavar="NAME", help="single, ddp, fsdp, smddp or dp (default: ddp)")
    machines.add_argument("--image", metavar="URI", help="container image (default: picked for type and strategy)")
    machines.add_argument("--volume-gb", type=int, metavar="GB", help="disk of each instance (default: 100)")

    data = parser.add_argument_group("data and results")
    data.add_argument("--config", metavar="FILE", help="training config (default: configs/scenes.yaml)")
    data.add_argument(
        "--data", action="append", metavar="[NAME=]s3://...", help="a channel from S3 (default name: train); repeat"
    )
    data.add_argument("--mode", metavar="NAME", help="how S3 channels are read: File (default) or FastFile")
    data.add_argument("--fsx", metavar="fs-ID:/MOUNTNAME/path", help="channel train from FSx for Lustre")
    data.add_argument("--data-gb", type=float, metavar="GB", help="size of the data, for checks and estimates")
    data.add_argument("--output", metavar="s3://...", help="where model and report go (default: the account's bucket)")
    data.add_argument("--checkpoints", metavar="s3://.../", help="where checkpoints are kept while it trains")

    money = parser.add_argument_group("time and money")
    money.add_argument("--max-run", metavar="TIME", help="most training time, as 6h or 90m (default: 24h)")
    money.add_argument("--spot", action="store_true", help="spare machines at a lower price; needs --checkpoints")
    money.add_argument("--max-wait", metavar="TIME", help="most time to wait for spot machines and train")
    money.add_argument("--max-pending", metavar="TIME", help="most time to wait for machines, 30m and more")
    money.add_argument("--retries", type=int, metavar="N", help="start again after a failure of AWS's, up to 30 times")
    money.add_argument("--warm-pool", metavar="TIME", help="keep the machines for the next job, up to 1h")
    money.add_argument(
        "--price", type=float, metavar="USD", help="per hour of an instance that trains, instead of the table's"
    )

    account = parser.add_argument_group("account")
    account.add_argument("--role", metavar="ARN", help="execution role of the job (default: SAGEMAKER_ROLE)")
    account.add_argument("--region", metavar="NAME", help=f"default: AWS_REGION or {DEFAULT_REGION}")
    account.add_argument("--subnets", type=_list, metavar="A,B", help="of the VPC; FSx needs them")
    account.add_argument("--security-groups", type=_list, metavar="A,B", help="of the VPC; FSx needs them")
    account.add_argument("--volume-kms", metavar="KEY", help="KMS key of the machines' disks (ID or ARN)")
    account.add_argument("--output-kms", metavar="KEY", help="KMS key of what the job leaves in S3")
    account.add_argument("--network-isolation", action="store_true", help="containers reach nothing but each other")
    account.add_argument("--encrypt-traffic", action="store_true", help="encrypt what containers send each other")
    account.add_argument("--remote-debug", action="store_true", help="a shell in the containers: aws ssm start-session")
    account.add_argument("--tag", action="append", dest="tags", metavar="KEY=VALUE", help="repeat")
    account.add_argument("--env", action="append", dest="environment", metavar="KEY=VALUE", help="repeat")
    account.add_argument(
        "--request",
        action="append",
        metavar="MEMBER.MEMBER=VALUE",
        help="any other member of the request, checked; repeat",
    )
    account.add_argument("--name", metavar="WORD", help="beginning of the job's name (default: segtrain)")
    account.add_argument("--job", metavar="FILE", help="YAML file with all of this, as configs/jobs/sagemaker.yaml")
    account.add_argument(
        "--profile-ms", type=int, metavar="MS", help="system profile every so many milliseconds; 0: off (default: 500)"
    )

    stage = parser.add_argument_group("rehearsal")
    stage.add_argument(
        "--hosts", type=int, metavar="N", help=f"hosts to play (default: as the request, at most {MOST_HOSTS})"
    )
    stage.add_argument("--procs", type=int, metavar="N", help="ranks on each (default: 1)")
    stage.add_argument("--sample", type=Path, metavar="DIR", help="local folder that fills the data channel")
    stage.add_argument(
        "--plant",
        metavar="WHAT",
        help="fail:RANK, stop:STEP, spot:STEP, kill:STEP or disk: what happens on the way, and what the cloud would show",
    )
    stage.add_argument("--folder", type=Path, metavar="DIR", help="where it is played (default: a new folder in /tmp)")
    return parser


def refuse_together(known: Mapping[str, Any]) -> None:
    """Raises ConfigError for flags that ask for two things at once, and for those of a rehearsal without one."""
    for together in (("dry_run", "rehearse"), ("attach", "stop", "update")):
        given = [f"--{word.replace('_', '-')}" for word in together if word in known]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} exclude each other: give one of them")
    alone = [f"--{word}" for word in OF_A_REHEARSAL if word in known]
    if alone and "rehearse" not in known:  # --plant fail:1 --yes must not send a job that is paid for
        raise ConfigError(f"{', '.join(alone)} without --rehearse: add --rehearse, or leave it out")


def _list(text: str) -> list[str]:
    return [part for part in text.split(",") if part]

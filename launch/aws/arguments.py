"""Which flags does the command for SageMaker jobs take? Only what was given is in the result: the rest is the job file's or the default."""

from __future__ import annotations

import argparse
from pathlib import Path

DEFAULT_REGION = "us-east-1"
MOST_HOSTS = 3  # that a rehearsal plays unless it is told
EPILOG = """section.key=value changes a setting of the training config, as with `segtrain train`.

--data s3://... and --fsx fs-...:/MOUNTNAME/path switch where the data are; --strategy how it trains. Neither
changes the training code. What is wrong is said before anything is sent: --dry-run and --rehearse need no AWS account.
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python launch/sagemaker.py",
        usage="%(prog)s [--dry-run | --rehearse | --attach NAME | --stop NAME] [flags] [section.key=value ...]",
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
    what.add_argument("--yes", action="store_true", help="send without asking")
    what.add_argument("--no-follow", action="store_true", help="send, say how to come back, and end")

    machines = parser.add_argument_group("machines")
    machines.add_argument("--instances", type=int, metavar="N", help="how many (default: 1)")
    machines.add_argument("--type", metavar="TYPE", help="instance type, as ml.p4d.24xlarge (default: ml.g5.12xlarge)")
    machines.add_argument(
        "--group",
        action="append",
        metavar="NAME=TYPE*N[:train]",
        help="an instance group; the one marked :train trains, the others help; repeat",
    )
    machines.add_argument("--strategy", metavar="NAME", help="single, ddp, fsdp, smddp or dp (default: ddp)")
    machines.add_argument("--image", metavar="URI", help="container image (default: picked for type and strategy)")
    machines.add_argument("--volume-gb", type=int, metavar="GB", help="disk of each instance (default: 100)")

    data = parser.add_argument_group("data and results")
    data.add_argument("--config", metavar="FILE", help="training config (default: configs/scenes.yaml)")
    data.add_argument(
        "--data", action="append", metavar="[NAME=]s3://...", help="a channel from S3 (default name: train); repeat"
    )
    data.add_argument("--mode", choices=("File", "FastFile"), help="how S3 channels are read (default: File)")
    data.add_argument("--fsx", metavar="fs-ID:/MOUNTNAME/path", help="channel train from FSx for Lustre")
    data.add_argument("--data-gb", type=float, metavar="GB", help="size of the data, for checks and estimates")
    data.add_argument("--output", metavar="s3://...", help="where model and report go (default: the account's bucket)")
    data.add_argument("--checkpoints", metavar="s3://.../", help="where checkpoints are kept while it trains")

    money = parser.add_argument_group("time and money")
    money.add_argument("--max-run", metavar="TIME", help="most training time, as 6h or 90m (default: 24h)")
    money.add_argument("--spot", action="store_true", help="spare machines at a lower price; needs --checkpoints")
    money.add_argument("--max-wait", metavar="TIME", help="most time to wait for spot machines and train")
    money.add_argument("--retries", type=int, metavar="N", help="start again after a failure of AWS's, up to 30 times")
    money.add_argument("--warm-pool", metavar="TIME", help="keep the machines for the next job, up to 1h")
    money.add_argument(
        "--price", type=float, metavar="USD", help="of an instance and hour, in the place of the table's"
    )

    account = parser.add_argument_group("account")
    account.add_argument("--role", metavar="ARN", help="execution role of the job (default: SAGEMAKER_ROLE)")
    account.add_argument("--region", metavar="NAME", help=f"default: AWS_REGION or {DEFAULT_REGION}")
    account.add_argument("--subnets", type=_list, metavar="A,B", help="of the VPC; FSx needs them")
    account.add_argument("--security-groups", type=_list, metavar="A,B", help="of the VPC; FSx needs them")
    account.add_argument("--tag", action="append", dest="tags", metavar="KEY=VALUE", help="repeat")
    account.add_argument("--env", action="append", dest="environment", metavar="KEY=VALUE", help="repeat")
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


def _list(text: str) -> list[str]:
    return [part for part in text.split(",") if part]

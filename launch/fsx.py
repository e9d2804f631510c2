"""Finds or creates an FSx for Lustre file system that shows an S3 prefix, and checks it.

python launch/fsx.py --data s3://BUCKET/PREFIX/ --subnet subnet-0abc1234 \\
    --security-groups sg-0abc1234 --dry-run
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    # A script's folder comes first in sys.path, where its files would hide packages such as
    # sagemaker and ray.
    sys.path[0] = str(ROOT)

from launch.core import console  # noqa: E402
from launch.core.findings import agreed, tell  # noqa: E402
from launch.core.job import PACKAGE  # noqa: E402
from launch.core.job_values import amount, listed, place  # noqa: E402
from launch.platforms.fsx import lustre  # noqa: E402
from launch.platforms.sagemaker.arguments import DEFAULT_REGION, default_region  # noqa: E402
from launch.platforms.sagemaker.job import COMMAND  # noqa: E402
from launch.platforms.sagemaker.regions import is_region  # noqa: E402
from segtrain.errors import ConfigError  # noqa: E402

NAME = "segtrain launch fsx" if PACKAGE in ROOT.parents else "python launch/fsx.py"


def build_parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=command,
        description=(
            "Find or create an FSx for Lustre file system that shows a prefix of S3, and check it."
        ),
        epilog="All file names appear at once; a file is loaded when it is first read. Changes "
        "in S3 appear as well.",
        allow_abbrev=False,
    )
    parser.add_argument("--data", required=True, metavar="s3://...", help="the prefix")
    parser.add_argument(
        "--subnet", required=True, metavar="ID", help="of the file system and the jobs that read it"
    )
    parser.add_argument(
        "--security-groups",
        required=True,
        metavar="A,B",
        help="they must allow TCP 988 and 1018-1023 among themselves",
    )
    parser.add_argument(
        "--gb",
        type=int,
        default=lustre.LEAST_GB,
        help="1200, 2400 or multiples of 2400 (default: 1200)",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--throughput",
        type=int,
        default=125,
        metavar="MBPS",
        help="MB/s for each TiB: 125, 250, 500 or 1000 (default: 125)",
    )
    kind.add_argument(
        "--scratch",
        action="store_true",
        help="not replicated: for data that is needed for a few days",
    )
    parser.add_argument(
        "--price", type=float, metavar="USD", help="per GB and month, instead of the list's"
    )
    parser.add_argument("--region", help=f"default: AWS_REGION or {DEFAULT_REGION}")
    parser.add_argument(
        "--dry-run", action="store_true", help="print both requests and the cost; ask AWS nothing"
    )
    parser.add_argument("--yes", action="store_true", help="create without asking")
    return parser


def main(arguments: list[str] | None = None, command: str = NAME) -> int:
    """Run the command line, and return its exit code. ``command``: its name in the help text."""
    return console.run(
        _act,
        build_parser(command),
        arguments,
        "what AWS has begun goes on; the same command finds it again",
    )


def _act(known: dict[str, Any]) -> int:
    groups = listed(known["security_groups"], "--security-groups")
    throughput = 0 if known["scratch"] else known["throughput"]
    price = known["price"] if known["price"] is None else amount(known["price"], "--price")
    wanted = lustre.WantedFileSystem(
        place(known["data"], "--data"),
        known["subnet"],
        groups,
        known["gb"],
        throughput,
        price,
    )
    lustre.check(wanted)
    region = default_region(known["region"])
    if not is_region(region):
        raise ConfigError(
            f"--region {region} is not an AWS region name: write one such as us-east-1",
            code="region-name",
        )
    return _dry_run(wanted) if known["dry_run"] else _make(wanted, region, known["yes"])


def _dry_run(wanted: lustre.WantedFileSystem) -> int:
    requests = {
        "CreateFileSystem": lustre.system_request(wanted),
        "CreateDataRepositoryAssociation": lustre.association_request(wanted, "fs-00000000"),
    }
    print(json.dumps(requests, indent=2))
    tell(f"cost     {lustre.cost(wanted)}")
    tell("dry run: nothing was created, and AWS was not asked for a file system to reuse")
    return 0


def _make(wanted: lustre.WantedFileSystem, region: str, yes: bool) -> int:
    from launch.platforms.sagemaker.cloud import connect

    clients = connect(region)
    found, others = lustre.find(clients, wanted)
    for line in others:
        tell(f"note     {line}")
    if found is None:
        tell(f"cost     {lustre.cost(wanted)}")
        if not agreed(f"create a file system of {wanted.gb} GB in {wanted.subnet}?", yes):
            return 1
        found = lustre.create(clients, wanted)
        console.out(f"created  {found.system['FileSystemId']}")
    else:
        console.out(f"reused   {found.system['FileSystemId']}")
    found = lustre.complete(clients, wanted, found, console.out)
    console.out(f"ready    {COMMAND} {lustre.flags(found, wanted)} --region {region}")
    console.out(
        f"delete   aws fsx delete-file-system --file-system-id {found.system['FileSystemId']} "
        f"--region {region}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

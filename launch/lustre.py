"""One command to copy folders of FSx for Lustre to S3, or to free their space: it starts FSx's own
task, waits, and prints the report.

python launch/lustre.py export fs-0123456789abcdef0 runs --report s3://my-bucket/runs/reports
python launch/lustre.py release fs-0123456789abcdef0 data/old --days 30
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    # A script's folder comes first in sys.path, where its files would hide packages such as
    # sagemaker and ray.
    sys.path[0] = str(ROOT)

from launch.core import console  # noqa: E402
from launch.core.findings import Say, tell  # noqa: E402
from launch.core.job import command as called  # noqa: E402
from launch.core.job_values import place  # noqa: E402
from launch.platforms.sagemaker.arguments import DEFAULT_REGION, default_region  # noqa: E402
from launch.platforms.sagemaker.aws_errors import explain, explained, passing  # noqa: E402
from launch.platforms.sagemaker.cloud import AwsClients, connect, split_uri  # noqa: E402
from segtrain.errors import EXIT_ERROR, ConfigError  # noqa: E402

TYPES = {"export": "EXPORT_TO_REPOSITORY", "release": "RELEASE_DATA_FROM_FILESYSTEM"}
LOOK_S = 15.0
SHOWN = 10  # files of the report that are printed


def build_parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=command,
        description="Copy what has changed in folders of FSx for Lustre to S3 (export), or free "
        "the space of files that S3 has (release; a read brings them back), by a data repository "
        "task of FSx.",
        epilog="The folders must be below an association of the file system with S3. After "
        "Ctrl-C, FSx goes on.",
        allow_abbrev=False,
    )
    parser.add_argument("verb", choices=tuple(TYPES))
    parser.add_argument("file_system", metavar="fs-ID")
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="from the root of the file system, such as runs",
    )
    parser.add_argument(
        "--report",
        metavar="s3://...",
        help="list the files that failed, below this exported prefix",
    )
    parser.add_argument(
        "--days",
        type=int,
        default=0,
        metavar="N",
        help="release: only what nobody has read for N days",
    )
    parser.add_argument("--region", help=f"default: AWS_REGION or {DEFAULT_REGION}")
    return parser


def main(arguments: list[str] | None = None, command: str = called("lustre")) -> int:
    """Run the command line, and return its exit code. ``command``: its name in the help text."""
    left = "FSx goes on with a task that was started: aws fsx describe-data-repository-tasks"
    return console.run(_act, build_parser(command), arguments, left)


def _act(known: dict[str, Any]) -> int:
    request = task_request(
        known["verb"], known["file_system"], known["folders"], known["report"], known["days"]
    )
    return run(connect(default_region(known["region"])), request, console.out)


def task_request(
    verb: str, file_system: str, folders: list[str], report: str | None, days: int
) -> dict[str, Any]:
    """The request for CreateDataRepositoryTask. Raises ConfigError."""
    if report is not None and not report.startswith("s3://"):
        raise ConfigError(
            f"--report {report}: write s3://BUCKET/PREFIX", code="report-place", found=report
        )
    if days < 0 or (days and verb != "release"):
        raise ConfigError(
            f"--days {days}: give 0 or more, with release alone", code="release-days", found=days
        )
    request: dict[str, Any] = {
        "Type": TYPES[verb],
        "FileSystemId": file_system,
        "Paths": [folder.strip("/") or "/" for folder in folders],
        "Report": {"Enabled": False},
    }
    if report is not None:
        path = place(report, "--report").rstrip("/")
        request["Report"] = {
            "Enabled": True,
            "Path": path,
            "Format": "REPORT_CSV_20191124",
            "Scope": "FAILED_FILES_ONLY",
        }
    if verb == "release":
        request["ReleaseConfiguration"] = {
            "DurationSinceLastAccess": {"Unit": "DAYS", "Value": days}
        }
    return request


def run(clients: AwsClients, request: dict[str, Any], say: Say) -> int:
    """Start the task, wait for its end, and print what it did. Returns 0 if no file failed. Raises
    SegtrainError.
    """
    with explained(f"CreateDataRepositoryTask for {request['FileSystemId']}"):
        task = clients.fsx.create_data_repository_task(**request)["DataRepositoryTask"]
    name, shown = task["TaskId"], ""
    while True:
        status = task.get("Status", {})
        line = (
            f"{name}: {task['Lifecycle']}, {status.get('SucceededCount', 0)} of "
            f"{status.get('TotalCount', '?')} files"
        )
        if line != shown:
            say(line)
            shown = line
        if task["Lifecycle"] not in ("PENDING", "EXECUTING", "CANCELING"):
            break
        time.sleep(LOOK_S)
        try:
            task = clients.fsx.describe_data_repository_tasks(TaskIds=[name])[
                "DataRepositoryTasks"
            ][0]
        except Exception as error:
            if not passing(error):
                raise explain(error, f"the task {name}") from None
    failed = status.get("FailedCount", 0)
    if failed and request["Report"]["Enabled"]:
        _show_report(clients, f"{request['Report']['Path']}/{name}/failures.csv")
    if task["Lifecycle"] != "SUCCEEDED" or failed:
        reason = task.get("FailureDetails", {}).get("Message", "no reason is given")
        hint = "" if request["Report"]["Enabled"] else "; --report s3://... lists the files"
        tell(f"error: {name} is {task['Lifecycle']}, {failed} files failed: {reason}{hint}")
        return EXIT_ERROR
    return 0


def _show_report(clients: AwsClients, uri: str) -> None:
    """Print the first failed files of a report: name, status, and error code of each."""
    bucket, key = split_uri(uri)
    with explained(f"the report {uri}"):
        text = (
            clients.s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode("utf-8", "replace")
        )
    for path, *reason in list(csv.reader(text.splitlines()))[:SHOWN]:
        tell(f"error: {path}: {' '.join(reason)}")
    tell(f"all files that failed: {uri}")


if __name__ == "__main__":
    console.script(main)

"""One command that checks a recipe of AWS ParallelCluster before money is spent on it.

python launch/cluster.py configs/clusters/research.yaml
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    # A script's folder comes first in sys.path, where its files would hide packages such as
    # sagemaker and ray.
    sys.path[0] = str(ROOT)

from launch.core import console  # noqa: E402
from launch.core.findings import Finding, refused  # noqa: E402
from launch.core.flags import path  # noqa: E402
from launch.core.job import command as called  # noqa: E402
from launch.platforms.parallelcluster import schema  # noqa: E402
from launch.platforms.parallelcluster.access import access  # noqa: E402
from launch.platforms.parallelcluster.machines import known, machines  # noqa: E402
from launch.platforms.parallelcluster.recipe import (  # noqa: E402
    Keys,
    Resource,
    entries,
    mapping,
    read,
    resources,
    shapes,
)
from launch.platforms.parallelcluster.scheduler import scheduler  # noqa: E402
from launch.platforms.parallelcluster.storage import standing_cost, storage  # noqa: E402
from segtrain.errors import EXIT_ERROR  # noqa: E402


def build_parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=command,
        description="Check a cluster configuration of AWS ParallelCluster: what its schema lets "
        "pass, but would fail, lose work, or cost money.",
        epilog="Asks AWS nothing. `pcluster create-cluster --dryrun true` asks your account "
        "afterwards.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipe", metavar="FILE", type=path, help="such as configs/clusters/research.yaml"
    )
    parser.add_argument(
        "--pcluster",
        metavar="PROGRAM",
        type=os.path.expanduser,
        help="ask its schema too (default: SEGTRAIN_PCLUSTER, or pcluster on the path)",
    )
    return parser


def main(arguments: list[str] | None = None, command: str = called("cluster")) -> int:
    """The command line. ``command``: how it was called, for the help."""
    return console.run(_act, build_parser(command), arguments, "nothing was changed")


def _act(arguments: dict[str, Any]) -> int:
    file = arguments["recipe"]
    recipe = read(file)
    findings = check(recipe)
    python = schema.python_of(arguments["pcluster"])
    if python is None:
        findings.append(schema.absent())
    else:
        findings += schema.ask(python, [file], str(recipe.get("Region") or "us-east-1"))[0]
    _show(recipe)
    return EXIT_ERROR if refused(findings, f"{file} is not ready") else 0


def check(recipe: Keys) -> list[Finding]:
    """All findings of segtrain's own rules, without a question to anyone."""
    return [
        *shapes(recipe),
        *machines(recipe),
        *storage(recipe),
        *scheduler(recipe),
        *access(recipe),
    ]


def _show(recipe: Keys) -> None:
    """The queues, and what runs and is paid for while no job does."""
    for resource in resources(recipe):
        console.out(f"{resource.place}: {_words(resource)}")
    always = [("head node", mapping(recipe, "HeadNode").get("InstanceType"))]
    for pool in entries(mapping(recipe, "LoginNodes"), "Pools"):
        always.append((f"{pool.get('Count', 1)} login node", pool.get("InstanceType")))
    always += [
        (
            f"{resource.least} node{'s' * (resource.least > 1)} of {resource.queue.get('Name')}",
            " or ".join(resource.types),
        )
        for resource in resources(recipe)
        if resource.least > 0
    ]
    console.out(
        "while no job runs: " + ", ".join(f"{what} {name}" for what, name in always if name)
    )
    dollars, words = standing_cost(recipe)
    for line in words:
        console.out(line)
    if dollars:
        console.out(
            f"file systems: ${dollars:.2f} an hour (list price of us-east-1), until they "
            "are deleted"
        )
    sys.stdout.flush()


def _words(resource: Resource) -> str:
    machine = known(resource.types[0]) if resource.types else None
    gpus = f" of {machine.gpus} {machine.gpu}" if machine is not None and machine.gpus else ""
    one_kind = (
        machine is None
        or len({kind.gpu for kind in map(known, resource.types) if kind is not None}) == 1
    )
    each = gpus if one_kind or machine is None else f" of {machine.gpus} GPUs"
    fabric = ", EFA" if resource.efa else ""
    least = f"{resource.least} to " if resource.least != resource.most else ""
    return (
        f"{least}{resource.most} {resource.capacity.lower()} nodes{each} "
        f"({' or '.join(resource.types)}){fabric}"
    )


if __name__ == "__main__":
    console.script(main)

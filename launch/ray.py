"""One command that trains on a Ray cluster, by Ray Train: attach to it or start it, check it, and
train.

python launch/ray.py configs/camvid_cpu.yaml --workers 2 --dry-run
python launch/ray.py configs/camvid_cpu.yaml --elastic 1:4 --address auto
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    # A script's folder comes first in sys.path, where its files would hide packages such as
    # sagemaker and ray.
    sys.path[0] = str(ROOT)

from launch.core import console  # noqa: E402
from launch.core.findings import errors, refused, say, tell  # noqa: E402
from launch.core.forecast import keep, plan_file, plan_findings  # noqa: E402
from launch.platforms.ray.arguments import build_parser  # noqa: E402
from launch.platforms.ray.checks import offline, predicted, sized  # noqa: E402
from launch.platforms.ray.job import COMMAND, load  # noqa: E402
from launch.platforms.ray.start import cluster, gpus_each, online, train  # noqa: E402
from segtrain.errors import EXIT_ERROR  # noqa: E402


def main(arguments: list[str] | None = None, command: str = COMMAND) -> int:
    """Run the command line, and return its exit code. ``command``: its name in the help text."""
    left = "Ray ends the ranks; the same command continues the run"
    return console.run(_train, build_parser(command), arguments, left)


def _train(known: dict[str, Any]) -> int:
    job = load(known)
    findings, config = offline(job)
    if errors(findings):
        refused(findings, "nothing was started")
        return EXIT_ERROR
    with cluster(job) as ray:
        gpus = gpus_each(job, ray, config)
        job, choice = sized(job, config, ray.nodes(), gpus)
        findings += choice + online(job, ray, gpus)
        plan = b""
        if job.like and config is not None:
            of_nodes = partial(predicted, nodes=ray.nodes(), gpus=gpus)
            findings += plan_findings(job, config, of_nodes)
            plan = plan_file(job, config, of_nodes)
        if known.get("dry_run"):
            say(findings)
            tell("dry run: nothing was trained")
            return EXIT_ERROR if errors(findings) else 0
        if refused(findings, "nothing was started"):
            return EXIT_ERROR
        if plan and "://" not in (run := str(job.settings.get("out", job.run))):
            keep(plan, Path(run))
        return train(job, ray, gpus, config)


if __name__ == "__main__":
    raise SystemExit(main())

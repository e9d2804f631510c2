"""The description of a training on a Ray cluster, and what its workers are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.core import job
from launch.core import job_values as values
from launch.core.job import DATA, MACHINES, TIME, option
from segtrain.errors import ConfigError

COMMAND = job.command("ray")
AUTO = 0  # workers: as many as the cluster has room for


def _range(value: Any, where: str) -> tuple[int, int]:
    """A range of workers from ``1:4``."""
    low, colon, high = values.text(value, where).partition(":")
    if not colon or not low.isdigit() or not high.isdigit() or not 1 <= int(low) <= int(high):
        raise values.wrong(where, value, "LEAST:MOST, as 1:4")
    return int(low), int(high)


def _workers(value: Any, where: str) -> int:
    return AUTO if value == "auto" else int(values.at_least(1)(value, where))


@dataclass(frozen=True)
class RayJob(job.Job):
    """A training by Ray Train. All times: seconds."""

    strategy: job.Strategy = option("ddp", "NAME", "ddp or fsdp (default: ddp)", MACHINES)
    workers: int = option(
        1,
        "N",
        "number of ranks (default: 1); auto: one for each GPU of the cluster, or for each core",
        MACHINES,
        read=_workers,
    )
    elastic: tuple[int, int] | None = option(
        None,
        "LEAST:MOST",
        "train with as many ranks as the cluster has room for",
        MACHINES,
        read=_range,
    )
    cpus: int = option(1, "N", "cores of each rank (default: 1)", MACHINES, read=values.at_least(0))
    gpus: int | None = option(
        None,
        "N",
        "GPUs of each rank: 1 or 0 (default: 1 where nodes have GPUs)",
        MACHINES,
        read=values.whole,
    )
    address: str = option(
        "",
        "HOST:PORT",
        "Ray cluster (default: RAY_ADDRESS, or a new one on this machine)",
        MACHINES,
    )
    labels: Mapping[str, str] = option(
        dict, "KEY=VALUE", "label of the nodes to use; repeatable", MACHINES, flag="--label"
    )
    output: str = option(
        "",
        "DIR",
        "folder of runs, which all nodes share (default: runs)",
        DATA,
        read=values.local_path,
    )
    retries: int = option(
        3,
        "N",
        "starts after a failure; preemptions do not count (default: 3)",
        TIME,
        read=values.at_least(0),
    )
    grace: int = option(
        0,
        "TIME",
        "time for other nodes after the deadline of a preemption (default: 0)",
        TIME,
        read=values.seconds,
    )
    resize: int = option(
        60,
        "TIME",
        "time between two looks for more nodes, with --elastic (default: 60)",
        TIME,
        read=values.seconds,
    )
    autoscaling: bool = option(False, "", "the cluster adds the nodes that are missing", MACHINES)

    @property
    def most(self) -> int:
        return self.elastic[1] if self.elastic else self.workers

    @property
    def least(self) -> int:
        return self.elastic[0] if self.elastic else self.workers

    @property
    def run(self) -> Path:
        """The run folder."""
        return (Path(self.output or "runs") / self.name).absolute()


def load(known: Mapping[str, Any]) -> RayJob:
    """The job that flags describe. Its config is the first word without ``=``. Raises
    ConfigError.
    """
    words = list(known.get("overrides", ()))
    flags = dict(known)
    if words and "=" not in words[0]:
        flags["config"] = words.pop(0)
    found = job.load_job(RayJob, known.get("job"), flags, words)
    if found.elastic and "workers" in known:
        raise ConfigError(
            "--workers and --elastic exclude each other: leave --workers out",
            code="flags-together",
            found=["--workers", "--elastic"],
        )
    if found.autoscaling and found.workers == AUTO:
        raise ConfigError(
            "--workers auto counts the nodes that are there, but --autoscaling adds nodes: use "
            "--workers N",
            code="flags-together",
            found=["--workers", "--autoscaling"],
        )
    if found.strategy not in ("ddp", "fsdp"):
        text = f"--strategy {found.strategy}: Ray starts one process per rank: use ddp or fsdp"
        raise ConfigError(text, code="strategy-not-on-ray", found=found.strategy)
    return found


def arguments(found: RayJob, config: str, paths: Mapping[str, str]) -> Sequence[str]:
    """The arguments of ``segtrain train`` on every worker. ``config``: its path there; ``paths``:
    settings that name files, resolved here, because the workers have another working directory.
    """
    import json

    settings = {**found.settings, "parallel.strategy": found.strategy}
    settings.setdefault("out", str(found.run))
    settings |= paths
    return [
        *([config] if config else []),
        *(f"{key}={json.dumps(value)}" for key, value in settings.items()),
    ]

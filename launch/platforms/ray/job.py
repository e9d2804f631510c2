"""The description of a training on a Ray cluster, and what its workers are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.core import job
from launch.core import job_values as values
from launch.core.job import option
from segtrain.errors import ConfigError

COMMAND = job.command("ray")


def _range(value: Any, where: str) -> tuple[int, int]:
    """A range of workers from ``1:4``."""
    low, colon, high = values.text(value, where).partition(":")
    if not colon or not low.isdigit() or not high.isdigit() or not 1 <= int(low) <= int(high):
        raise values.wrong(where, value, "LEAST:MOST, as 1:4")
    return int(low), int(high)


@dataclass(frozen=True)
class RayJob(job.Job):
    """A training by Ray Train. All times: seconds."""

    # Ranks, each with ``cpus`` cores and ``gpus`` GPUs of a node. None: one GPU where the nodes have some.
    workers: int = option(values.at_least(1), default=1)
    # Least and most ranks, instead of ``workers``: Ray uses what is there.
    elastic: tuple[int, int] | None = option(_range, default=None)
    cpus: int = option(values.at_least(0), default=1)
    gpus: int | None = option(values.whole, default=None)
    address: str = option(values.text, default="")
    # Labels that the nodes of ranks must have.
    labels: Mapping[str, str] = option(values.pairs, flag="--label", default_factory=dict)
    # Starts after a failure. Starts after a preemption are not counted.
    retries: int = option(values.at_least(0), default=3)
    # Time for the other nodes after the deadline of a preemption.
    grace: int = option(values.seconds, default=0)
    # Time between two looks for more nodes, with ``elastic``.
    resize: int = option(values.seconds, default=60)
    # The cluster adds nodes by itself when they are asked for.
    autoscaling: bool = option(values.switch, default=False)

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
    """The job that flags describe. Its config is the first word without ``=``. Raises ConfigError."""
    words = list(known.get("settings", ()))
    flags = {key: value for key, value in known.items() if key not in ("settings", "job", "dry_run")}
    if words and "=" not in words[0]:
        flags["config"] = words.pop(0)
    found = job.load_job(RayJob, known.get("job"), flags, words)
    if found.elastic and "workers" in known:
        raise ConfigError(
            "--workers and --elastic exclude each other: leave --workers out", code="flags-together",
            found=["--workers", "--elastic"],
        )  # fmt: skip
    if found.strategy not in ("ddp", "fsdp"):
        text = f"--strategy {found.strategy}: Ray starts one process per rank: use ddp or fsdp"
        raise ConfigError(text, code="strategy-not-on-ray", found=found.strategy)
    return found


def arguments(found: RayJob, config: str, paths: Mapping[str, str]) -> Sequence[str]:
    """The arguments of ``segtrain train`` on every worker. ``config``: its path there; ``paths``: settings that name
    files, resolved here, because the workers have another working directory.
    """
    import json

    settings = {**found.settings, "parallel.strategy": found.strategy}
    settings.setdefault("out", str(found.run))
    settings |= paths
    return [*([config] if config else []), *(f"{key}={json.dumps(value)}" for key, value in settings.items())]

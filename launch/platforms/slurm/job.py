"""The description of a Slurm job: nodes, GPUs, queue, array, and requeueing beside what every job has."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from launch.core import job
from launch.core import job_values as values
from launch.core.job import option
from launch.platforms.slurm import job_parts as parts
from launch.platforms.slurm.job_parts import Gpus

COMMAND = job.command("slurm")
_LONGEST = 100  # characters of the settings in the name of a run folder


@dataclass(frozen=True)
class SlurmJob(job.Job):
    """A batch job. ``output``: folder of runs on the shared file system, in which each has a folder of its name;
    ``max_run``: time limit of each start, seconds.
    """

    name: str = option(parts.name, default="segtrain")
    output: str = option(parts.folder, default="runs")
    partition: str = option(values.text, default="")
    account: str = option(values.text, default="")
    qos: str = option(values.text, default="")
    nodes: int = option(values.at_least(1), default=1)
    # Of each node. None: the job asks for none.
    gpus: Gpus | None = option(parts.gpus, default=None)  # noqa: RUF009
    # Processes on each node. 0: one per GPU, or one.
    procs: int = option(values.at_least(0), default=0)
    start: parts.Start = option(values.one_of(parts.Start), default="task")  # noqa: RUF009
    bind: parts.Bind = option(values.one_of(parts.Bind), default="node")  # noqa: RUF009
    # Cores of each process, and memory of each node. 0 and "": what the cluster gives.
    cpus: int = option(values.at_least(0), default=0)
    memory: str = option(parts.memory, default="")
    constraint: str = option(values.text, default="")
    reservation: str = option(values.text, default="")
    nodelist: str = option(values.text, default="")
    exclude: str = option(values.text, default="")
    exclusive: bool = option(values.switch, default=False)
    # Seconds before the time limit at which the job saves its state.
    notice: int = option(values.seconds, default=120)
    # The job queues itself again after a time limit, a preemption, or a lost rank.
    requeue: bool = option(values.switch, default=True)
    # Stops in a row without a new checkpoint, after which it does not.
    most_stops: int = option(values.at_least(1), default=3)
    # Seconds between two looks for the spot notice of EC2, on every node. 0: none.
    spot: int = option(values.seconds, default=0)
    # Where the training reads: data.root.
    data: str = option(values.text, default="")
    # Network interface of gloo's and NCCL's connections, and whether NCCL uses EFA.
    interface: str = option(values.text, default="")
    efa: bool = option(values.switch, default=False)
    # Lines of shell before the training, such as "module load cuda".
    setup: tuple[str, ...] = option(values.texts, default=())
    # The interpreter on the nodes. Empty: the one of this command.
    python: str = option(values.text, default="")
    # Settings of each task of an array, as "train.seed=1 optim.lr=0.01".
    array: tuple[str, ...] = option(parts.tasks, default=())
    seeds: tuple[int, ...] = option(parts.seeds, default=())
    # Tasks of the array that run at the same time. 0: all.
    at_once: int = option(values.at_least(0), default=0)
    after: str = option(parts.after, default="")
    # Further lines of #SBATCH, such as "--mail-type=END".
    sbatch: tuple[str, ...] = option(values.texts, default=())

    @property
    def local_ranks(self) -> int:
        """Processes on each node."""
        return self.procs or (self.gpus.count if self.gpus else 0) or 1

    @property
    def ranks(self) -> int:
        return self.nodes * self.local_ranks

    @property
    def interpreter(self) -> str:
        return self.python or sys.executable

    @property
    def tasks(self) -> tuple[tuple[str, ...], ...]:
        """The settings of each task of the array; () for a single job."""
        lists = [shlex.split(item) for item in self.array]
        return tuple(map(tuple, lists)) or tuple((f"train.seed={seed}",) for seed in self.seeds)

    def runs(self) -> tuple[Path, ...]:
        """The run folder, or those of the tasks of an array."""
        here = Path(self.output).absolute()
        return tuple(here / f"{self.name}-{_slug(task)}" for task in self.tasks) or (here / self.name,)


def _slug(settings: tuple[str, ...]) -> str:
    """``("train.seed=1", "optim.lr=0.1")`` as ``seed-1-lr-0.1``: a part of a folder's name."""
    words = [setting.partition("=") for setting in settings]
    text = "-".join(f"{key.rpartition('.')[2]}-{value}" for key, _, value in words)
    slug = re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("_")
    if len(slug) <= _LONGEST:
        return slug
    return f"{slug[:_LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

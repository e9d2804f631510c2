"""The description of a Slurm job: nodes, GPUs, queue, array, and requeueing beside what every job
has.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from launch.core import job
from launch.core import job_values as values
from launch.core.job import DATA, MACHINES, TIME, option
from launch.platforms.slurm import job_parts as parts
from launch.platforms.slurm.job_parts import Gpus

COMMAND = job.command("slurm")
_LONGEST = 100  # characters of the settings in the name of a run folder


@dataclass(frozen=True)
class SlurmJob(job.Job):
    """A batch job. ``output``: folder of runs on the shared file system, in which each has a folder
    of its name; ``max_run``: time limit of each start, seconds.
    """

    name: str = option(
        "segtrain",
        "WORD",
        "name of the job, and of its run folder in the output (default: segtrain)",
        read=parts.name,
    )
    output: str = option(
        "runs",
        "DIR",
        "folder of runs, on the shared file system (default: runs)",
        DATA,
        read=parts.folder,
    )
    partition: str = option("", "NAME", "partition, or queue (default: the cluster's)", MACHINES)
    account: str = option("", "NAME", "account that is charged", MACHINES)
    qos: str = option("", "NAME", "quality of service", MACHINES)
    nodes: int = option(1, "N", "number of nodes (default: 1)", MACHINES, read=values.at_least(1))
    gpus: Gpus | None = option(
        None,
        "[TYPE:]COUNT",
        "GPUs of each node, such as 4 or h100:8 (default: none)",
        MACHINES,
        read=parts.gpus,
    )
    procs: int = option(
        0,
        "N",
        "processes on each node (default: one per GPU, or one)",
        MACHINES,
        read=values.at_least(0),
    )
    start: parts.Start = option(
        "task",
        "NAME",
        "task: srun starts one process per GPU (default); node: srun starts one torchrun per node",
        MACHINES,
    )
    bind: parts.Bind = option(
        "node",
        "NAME",
        "node: a process sees the GPUs of its node (default); task: it sees its own alone",
        MACHINES,
    )
    cpus: int = option(
        0, "N", "cores of each process (default: the cluster's)", MACHINES, read=values.at_least(0)
    )
    memory: str = option(
        "",
        "SIZE",
        "memory of each node, such as 64G; 0: all (default: the cluster's)",
        MACHINES,
        read=parts.memory,
    )
    constraint: str = option("", "TEXT", "features that the nodes must have", MACHINES)
    reservation: str = option("", "NAME", "reservation to take the nodes from", MACHINES)
    nodelist: str = option("", "NODES", "nodes that the job must get, among others", MACHINES)
    exclude: str = option("", "NODES", "nodes that the job must not get", MACHINES)
    exclusive: bool = option(False, "", "no other job on these nodes", MACHINES)
    notice: int = option(
        120,
        "TIME",
        "how long before the time limit the state is saved (default: 120)",
        TIME,
        read=values.seconds,
    )
    # The job queues itself again after a time limit, a preemption, or a lost rank.
    requeue: bool = True
    most_stops: int = option(
        3,
        "N",
        "end the job after this many stops in a row without a new checkpoint (default: 3)",
        TIME,
        read=values.at_least(1),
    )
    spot: int = option(
        0,
        "TIME",
        "how often every node checks for EC2's spot notice, such as 5s (default: 0, never)",
        TIME,
        read=values.seconds,
    )
    data: str = option("", "DIR", "the data set: data.root of the config", DATA, read=values.place)
    interface: str = option(
        "",
        "NAME",
        "network interface of gloo and NCCL, such as eth0 (default: they choose)",
        MACHINES,
    )
    efa: bool = option(False, "", "NCCL uses the Elastic Fabric Adapter of EC2", MACHINES)
    setup: tuple[str, ...] = option(
        (), "LINE", 'line of shell before the training, as "module load cuda"; repeatable'
    )
    python: str = option(
        "", "FILE", "Python on the nodes (default: the one of this command)", read=values.local_path
    )
    array: tuple[str, ...] = option(
        (),
        "SETTINGS",
        'settings of one task of an array, as "optim.lr=0.1 train.seed=1"; repeatable',
        read=parts.tasks,
    )
    seeds: tuple[int, ...] = option(
        (), "N,N,...", "an array of jobs, one for each value of train.seed", read=parts.seeds
    )
    at_once: int = option(
        0,
        "N",
        "tasks of the array that run at the same time (default: all)",
        read=values.at_least(1),
    )
    after: str = option(
        "",
        "JOB",
        "start after this job has succeeded; afterany:JOB: after it has ended",
        TIME,
        read=parts.after,
    )
    sbatch: tuple[str, ...] = option(
        (), "FLAG", "further flag of sbatch, as --sbatch=--mail-type=END; repeatable"
    )

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
        return tuple(here / f"{self.name}-{_slug(task)}" for task in self.tasks) or (
            here / self.name,
        )


def _slug(settings: tuple[str, ...]) -> str:
    """``("train.seed=1", "optim.lr=0.1")`` as ``seed-1-lr-0.1``: a part of a folder's name."""
    words = [setting.partition("=") for setting in settings]
    text = "-".join(f"{key.rpartition('.')[2]}-{value}" for key, _, value in words)
    slug = re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("_")
    if len(slug) <= _LONGEST:
        return slug
    return f"{slug[:_LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

"""Command-line flags for Slurm jobs. Only given flags are in the result; the job file decides about the others."""

from __future__ import annotations

import argparse

from launch.core.flags import FlagParser

ACTIONS = ("dry_run", "interactive", "attach", "stop")
EXCLUSIVE = (("dry_run", "attach", "stop"), ("interactive", "attach", "stop"))
EPILOG = """section.key=value changes a setting of the training config, as with `segtrain train`.

--dry-run prints the sbatch script, which is plain shell: keep it, edit it, and submit it with sbatch. If its
time limit, a preemption, or the failure of a node stops a job, it queues itself again and goes on where it was.
"""
# Names of sbatch's flags -> names here.
CALLED_HERE = {
    "--job-name": "--name",
    "--time": "--max-run",
    "--gres": "--gpus",
    "--gpus-per-node": "--gpus",
    "--gpus-per-task": "--gpus with --bind task",
    "--gpu-bind": "--bind",
    "--ntasks": "--nodes and --procs",
    "--ntasks-per-node": "--procs",
    "--cpus-per-task": "--cpus",
    "--mem": "--memory",
    "--mem-per-cpu": "--memory",
    "--mem-per-gpu": "--memory",
    "--dependency": "--after",
    "--signal": "--notice",
    "--requeue": "requeue in the job file",
    "--no-requeue": "requeue: false in the job file",
    "--open-mode": "nothing: a restart appends to the log",
    "--chdir": "the folder in which you start this command",
    "--test-only": "--dry-run",
    "--wait": "the default: this command follows the job",
}
# Flags of other tools, and those of sbatch that the script does not set.
OF_OTHERS = {
    "--mail-type": "--sbatch=--mail-type=...",
    "--mail-user": "--sbatch=--mail-user=...",
    "--export": "--env",
    "--wrap": "section.key=value",
    "--hosts": "--nodes",
    "--instances": "--nodes",
}
_TEXTS = {
    "nodes": (
        ("partition", "NAME", "partition, or queue (default: the cluster's)"),
        ("account", "NAME", "account that is charged"),
        ("qos", "NAME", "quality of service"),
        ("gpus", "[TYPE:]COUNT", "GPUs of each node, such as 4 or h100:8 (default: none)"),
        ("memory", "SIZE", "memory of each node, such as 64G; 0: all (default: the cluster's)"),
        ("start", "NAME", "task: srun starts one process per GPU (default); node: srun starts one torchrun per node"),
        ("bind", "NAME", "node: a process sees the GPUs of its node (default); task: it sees its own alone"),
        ("constraint", "TEXT", "features that the nodes must have"),
        ("reservation", "NAME", "reservation to take the nodes from"),
        ("nodelist", "NODES", "nodes that the job must get, among others"),
        ("exclude", "NODES", "nodes that the job must not get"),
        ("interface", "NAME", "network interface of gloo and NCCL, such as eth0 (default: they choose)"),
    ),
    "training": (
        ("config", "FILE", "training config (default: configs/scenes.yaml)"),
        ("data", "DIR", "the data set: data.root of the config"),
        ("output", "DIR", "folder of runs, on the shared file system (default: runs)"),
        ("name", "WORD", "name of the job, and of its run folder in the output (default: segtrain)"),
        ("strategy", "NAME", "single, ddp, fsdp, or dp (default: ddp)"),
        ("like", "RUN", "a past run with this config, to predict time and node-hours"),
        ("python", "FILE", "Python on the nodes (default: the one of this command)"),
    ),
    "time and requeueing": (
        ("max-run", "TIME", "time limit of each start, such as 6h or 90m (default: 24h)"),
        ("notice", "TIME", "how long before the time limit the state is saved (default: 120)"),
        ("spot", "TIME", "how often every node checks for EC2's spot notice, such as 5s (default: 0, never)"),
        ("after", "JOB", "start after this job has succeeded; afterany:JOB: after it has ended"),
        ("seeds", "N,N,...", "an array of jobs, one for each value of train.seed"),
    ),
}
_NUMBERS = {
    "nodes": (
        ("nodes", "number of nodes (default: 1)"),
        ("procs", "processes on each node (default: one per GPU, or one)"),
        ("cpus", "cores of each process (default: the cluster's)"),
    ),
    "training": (),
    "time and requeueing": (
        ("most-stops", "end the job after this many stops in a row without a new checkpoint (default: 3)"),
        ("at-once", "tasks of the array that run at the same time (default: all)"),
    ),
}
_LISTS = {
    "array": ("array", "SETTINGS", 'settings of one task of an array, as "optim.lr=0.1 train.seed=1"; repeatable'),
    "setup": ("setup", "LINE", 'line of shell before the training, as "module load cuda"; repeatable'),
    "env": ("environment", "KEY=VALUE", "repeatable"),
    "sbatch": ("sbatch", "FLAG", "further flag of sbatch, as --sbatch=--mail-type=END; repeatable"),
}


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of all flags. A flag that is not given leaves no attribute, so that the job file decides."""
    parser = FlagParser(
        command,
        "--dry-run | --interactive | --attach JOB | --stop JOB",
        "Train on a Slurm cluster: check a job, submit it, and follow it.",
        EPILOG,
        {**CALLED_HERE, **OF_OTHERS},
    )
    group = parser.add_argument_group("action (default: check, submit, and follow)")
    group.add_argument("--dry-run", action="store_true", help="print the script and its problems; submit nothing")
    group.add_argument("--interactive", action="store_true", help="salloc and srun: train in this terminal")
    group.add_argument("--attach", metavar="JOB", help="follow a submitted job, by its number")
    group.add_argument("--stop", metavar="JOB", help="let a job save its state, and end it")
    group.add_argument("--no-follow", action="store_true", help="submit, print how to attach, and exit")
    group.add_argument("--no-probe", action="store_true", help="do not start a short srun to examine free nodes")
    for title, flags in _TEXTS.items():
        group = parser.add_argument_group(title)
        for flag, metavar, text in flags:
            group.add_argument(f"--{flag}", metavar=metavar, help=text)
        for flag, text in _NUMBERS[title]:
            group.add_argument(f"--{flag}", type=int, metavar="N", help=text)
    for flag, (key, metavar, text) in _LISTS.items():
        group.add_argument(f"--{flag}", dest=key, action="append", metavar=metavar, help=text)
    group.add_argument("--exclusive", action="store_true", help="no other job on these nodes")
    group.add_argument("--efa", action="store_true", help="NCCL uses the Elastic Fabric Adapter of EC2")
    group.add_argument("--job", metavar="FILE", help="YAML file with all of these, such as configs/jobs/slurm.yaml")
    return parser

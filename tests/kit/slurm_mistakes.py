"""Mistakes in the description of a Slurm job, with the finding of each, and sound jobs.

The answers in tests/recorded/slurm are those of a real Slurm 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from launch.core.findings import Finding
from launch.core.job import load_job
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.preflight import folders as places
from launch.platforms.slurm.preflight.online import rules
from launch.platforms.slurm.preflight.state import SlurmState, read
from launch.platforms.slurm.preflight.submit_host import SubmitHost, completed, flags
from launch.platforms.slurm.preflight.training import offline
from segtrain.errors import SegtrainError

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests/recorded/slurm"
PLAIN: dict[str, Any] = {
    "nodes": 2,
    "gpus": "h100:4",
    "cpus": 4,
    "max_run": "6h",
    "output": "/workspace/runs",
    "partition": "gpu",
}
CPUS: dict[str, Any] = {"partition": "cpu", "gpus": None, "procs": 2, "cpus": 2, "nodes": 1}
BATCH = "train.batch_size=16"


def recorded(name: str) -> Callable[..., str]:
    """Answers of a cluster, in the place of its commands."""
    text = (RECORDED / f"{name}.txt").read_text(encoding="utf-8")
    found = {
        match[2]: (match[1], match[3])
        for match in re.finditer(r"^([$!]) (.*)\n((?:(?![$!] ).*\n)*)", text, re.M)
    }

    def ask(*command: str) -> str:
        mark, answer = found[" ".join(command)]
        if mark == "!":
            raise SegtrainError(answer)
        return answer

    return ask


@cache
def cluster(name: str) -> SlurmState:
    return read(recorded(name), "root")


def look(
    name: str,
    flags_: Mapping[str, Any],
    settings: tuple[str, ...] = (),
    here: SubmitHost | None = None,
) -> list[Finding]:
    """What is said about a job before its nodes are asked."""
    here = here or SubmitHost(Path("/workspace"), {}, {})
    job = completed(load_job(SlurmJob, None, {**PLAIN, **flags_}, [BATCH, *settings]), here)
    found = cluster(name)
    return [
        *offline(job),
        *flags(job),
        *rules(job, found, here),
        *places.folders(job, found, probed=False),
    ]


# what is wrong: cluster, flags, settings, level and code of the finding
MISTAKES: dict[str, tuple[str, dict[str, Any], tuple[str, ...], str]] = {
    # partition
    "partition that is closed": ("plain", {"partition": "closed", "max_run": "1h"}, (), "error partition-down"),
    "time over the partition's": ("plain", {"max_run": "3d"}, (), "error time-over-partition"),
    "accounts of a partition, on a cluster without": (
        "plain", {**CPUS, "partition": "vision", "max_run": "1h"}, (), "error account-partition"),
    # accounts
    "account that the partition refuses": (
        "accounts", {"account": "vision", "partition": "sound", "max_run": "1h"}, (), "error account-partition"),
    "QOS that the partition refuses": (
        "accounts", {"account": "vision", "qos": "short", "partition": "slow", "max_run": "1h"}, (), "error qos-partition"),
    "time over that of the QOS": (
        "accounts", {"account": "vision", "qos": "short", "nodes": 1, "gpus": "h100:2"}, (), "error time-over-limit"),
    "more GPUs than the QOS": (
        "accounts", {"account": "vision", "qos": "short", "max_run": "1h"}, (), "error size-over-limit"),
    # nodes
    # GPUs
    "no GPU on a GPU partition": ("plain", {"gpus": None, "procs": 4}, (), "warning gpus-not-asked"),
    "GPU training on CPUs": ("plain", CPUS, ("train.device=cuda",), "error device-cuda"),
    "CPU training on GPUs": ("plain", {}, ("train.device=cpu",), "warning device-cpu"),
    "more processes than GPUs": ("plain", {"procs": 8}, (), "error ranks-over-gpus"),
    "fewer processes than GPUs": ("plain", {"procs": 2}, (), "warning gpus-idle"),
    # cores and memory
    "one core for each GPU": ("plain", {"cpus": 0}, (), "warning cores-one"),
    "more workers than cores": ("plain", {"cpus": 1}, ("data.workers=8",), "warning workers-many"),
    "all memory for a part of a node": (
        "plain", {"partition": "flat", "gpus": "h100:1"}, (), "warning memory-whole-node"),
    "little memory": ("plain", {"memory": "4G"}, (), "warning memory-small"),
    # time, preemption, requeueing
    "limit without a notice": ("plain", {"notice": 0}, (), "error notice-none"),
    "notice longer than the limit": ("plain", {"max_run": "10m", "notice": "15m"}, (), "error notice-over-limit"),
    "notice too short for a checkpoint": ("plain", {"notice": 5}, (), "warning notice-short"),
    "minutes for hours": ("plain", {"max_run": "4m", "notice": 30}, (), "warning max-run-short"),
    "cancelled by a preemption": ("plain", {"partition": "brief"}, (), "warning preempt-cancel"),
    "suspended by a preemption": ("harsh", {"partition": "shared"}, (), "warning preempt-suspend"),
    "no time before a preemption": ("harsh", {}, (), "warning grace-short"),
    "no time after scancel": ("harsh", {}, (), "warning kill-wait-short"),
    "stopped jobs that come back": ("harsh", {}, (), "warning requeue-exit"),
    "not requeued when preempted": ("plain", {"requeue": False}, (), "warning requeue-off"),
    "requeued without its checkpoint": ("plain", {}, ("checkpoint.resume=false",), "error resume-off"),
    # arrays
    "array larger than the cluster's": ("harsh", {"seeds": "0,1,2,3"}, (), "error array-size"),
    "two tasks with one run folder": (
        "plain", {"array": ["out=/workspace/a train.seed=0", "out=/workspace/a train.seed=1"]}, (), "error array-out"),
    "task with a wrong value": ("plain", {"array": ["train.seed=x"]}, (), "error config"),
    "setting that the tasks replace": ("plain", {"seeds": "0,1"}, ("train.seed=3",), "warning array-over-setting"),
    "task with a strategy": ("plain", {"array": ["parallel.strategy=single"]}, (), "error array-strategy"),
    "task with a batch smaller than the ranks": ("plain", {"array": ["train.batch_size=6"]}, (), "error batch-small"),
    "name of a variable": ("plain", {"environment": {"A B": "1"}}, (), "error env-name"),
    "a partition of a list that starts no jobs": (
        "plain", {"partition": "gpu,closed", "max_run": "1h"}, (), "warning partition-down"),
    "two jobs with one run folder": (
        "plain", {"output": "/tmp/slurm/runs", "name": "busy"}, (), "error run-busy"),
    # flags of sbatch
    "time limit said twice, with a space": ("plain", {"sbatch": ["--time 10"]}, (), "error sbatch-flag"),
    "folder said twice, in short": ("plain", {"sbatch": ["-D/nowhere"]}, (), "error sbatch-flag"),
    "log in no folder": ("plain", {"sbatch": ["--error=/nowhere/x.log"]}, (), "error log-folder"),
    "variables left behind": ("plain", {"sbatch": ["--export=NONE"]}, (), "warning export"),
    "flag without its dashes": ("plain", {"sbatch": ["mail-type=END"]}, (), "error sbatch-flag-form"),
    # training
    "smddp": ("plain", {"strategy": "smddp"}, (), "error strategy-smddp"),
    "one process on two nodes": ("plain", {"strategy": "single", "procs": 1, "gpus": "h100:1"}, (), "error strategy-ranks"),
    "one process on four GPUs": (
        "plain", {"strategy": "single", "nodes": 1, "procs": 1}, (), "warning gpus-idle"),
    "batch smaller than the ranks": ("plain", {}, ("train.batch_size=6",), "error batch-small"),
    "unknown setting": ("plain", {}, ("train.batchsize=8",), "error config"),
    "config without its data": ("plain", {"config": "configs/camvid_cpu.yaml"}, (), "error data-missing"),
    "data that is not there": (
        "plain", {"config": "configs/camvid_cpu.yaml", "data": "/workspace/nowhere"}, (), "error data-not-there"),
    "data of the settings that is not there": (
        "plain", {"config": "configs/camvid_cpu.yaml"}, ("data.root=/workspace/nowhere",), "error data-not-there"),
    "results inside the data": (
        "plain", {"config": "configs/camvid_cpu.yaml", "data": "/usr", "output": "/usr/runs"}, (), "warning results-in-data"),
    "weights to fetch": (
        "plain", {}, ("model.arch=fpn", "model.encoder_weights=imagenet"), "note weights-download"),
    "weights that are not there": ("plain", {}, ("model.init=/workspace/best.pt",), "error weights-missing"),
}  # fmt: skip


SOUND: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "two nodes with four GPUs": ("plain", {}, ()),
    "one GPU": ("plain", {"nodes": 1, "gpus": "1", "memory": "16G", "partition": "small"}, ()),
    "urgent, with its own cores": ("plain", {"partition": "urgent", "nodes": 1, "max_run": "1h"}, ()),
    "CPUs": ("plain", CPUS, ()),
    "CPUs of the other node": ("plain", {**CPUS, "exclude": "n4", "memory": "8G", "procs": 3}, ("train.batch_size=6",)),
    "either of two partitions": ("plain", {"partition": "gpu,wide", "max_run": "1h"}, ()),
    "an array of seeds": ("plain", {"seeds": "0,1,2", "at_once": 1, "constraint": "h100&nvme"}, ()),
    "one torchrun for each node": ("plain", {"start": "node", "exclusive": True, "memory": "0"}, ()),
    "whole nodes without a default": ("plain", {"partition": "flat"}, ()),
    "an account and its QOS": (
        "accounts", {"account": "vision", "qos": "short", "max_run": "2h", "nodes": 1, "gpus": "h100:2", "cpus": 2}, ()),
    "an account by default": ("accounts", {"max_run": "1d"}, ()),
    "a partition for several nodes": ("plain", {"partition": "wide", "max_run": "1h"}, ()),
    "tasks with lists": ("plain", {"array": ["data.crop=[64,64]", "data.crop=[96,96] train.seed=1"]}, ()),
    "data of each task": (
        "plain",
        {**CPUS, "config": "configs/camvid_cpu.yaml", "array": ["data.root=/workspace/a", "data.root=/workspace/b"]},
        (),
    ),
    "further flags": ("plain", {"sbatch": ["--mail-type=END", "--nice=10"]}, ()),
}  # fmt: skip


def has(findings: list[Finding], expected: str, text: str = "") -> None:
    """There is such a finding (level and code), with a cure, and with this text in one of its
    messages.
    """
    found = [finding for finding in findings if f"{finding.level} {finding.code}" == expected]
    assert found, [f"{finding.level} {finding.code}" for finding in findings]
    assert any(text in finding.message for finding in found), found
    assert all(finding.cure for finding in found), found

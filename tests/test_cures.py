"""Advice of the launchers is tried through their own checks: what is printed can be pasted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from launch.aws import prepare as aws
from launch.cures import pasted, tried
from launch.findings import Finding, error, errors
from launch.gcp import prepare as gcp
from launch.gcp.job import VertexJob
from launch.gcp.job_parts import Accelerator
from launch.gcp.machines import MACHINES, taking
from launch.hpc.preflight.here import completed
from launch.hpc.preflight.training import offline
from launch.job import ROOT, load_job
from tests import test_preflight, test_slurm_preflight, test_vertex_preflight

pytest.importorskip("yaml")
Prepare = Callable[[Any], Sequence[Finding]]


def codes(findings: Sequence[Finding]) -> set[str]:
    return {finding.code for finding in errors(findings)}


def paste_back(job: Any, check: Prepare, shown: Prepare) -> int:
    """Paste each part of each cure that is shown. Returns the number of parts that can be pasted."""
    count = 0
    findings = shown(job)
    for finding in findings:
        for part in finding.cure.split(", or "):
            if (changed := pasted(job, part)) is not None:
                count += 1
                after = check(changed)
                assert finding not in after, (finding, part)
                assert codes(after) <= codes(findings), (finding, part)
    return count


def test_cures_of_vertex_can_be_pasted() -> None:
    tests = test_vertex_preflight
    jobs = [
        load_job(VertexJob, None, {**tests.PLAIN, **flags}, [*tests.SETTINGS, *settings])
        for flags, settings, *_ in tests.MISTAKES.values()
    ]
    check = lambda job: gcp.checked(job)[2]  # noqa: E731
    assert sum(paste_back(job, check, lambda job: gcp.prepare(job)[2]) for job in jobs) > 20


def test_cures_of_sagemaker_can_be_pasted() -> None:
    jobs = [test_preflight.the_job(flags, settings) for flags, settings, *_ in test_preflight.TYPED.values()]
    check = lambda job: aws.checked(job)[2]  # noqa: E731
    assert sum(paste_back(job, check, lambda job: aws.prepare(job)[2]) for job in jobs) > 20


def test_cures_of_slurm_can_be_pasted() -> None:
    tests = test_slurm_preflight
    count = 0
    for name, flags, settings, *_ in tests.MISTAKES.values():
        here = tests.Here("vm", tests.Path("/workspace"), {}, {})
        job = completed(load_job(tests.SlurmJob, None, {**tests.PLAIN, **flags}, [tests.BATCH, *settings]), here)
        rules = lambda job, name=name, here=here: [  # noqa: E731
            *offline(job, ROOT), *tests.rules(job, tests.cluster(name), here)
        ]  # fmt: skip
        count += paste_back(job, rules, lambda job, rules=rules: tried(job, rules(job), rules))
    assert count > 15


@pytest.mark.parametrize(
    ("gpus", "named"),
    [
        (Accelerator("NVIDIA_L4", 4), ["g2-standard-48"]),
        (Accelerator("NVIDIA_TESLA_V100", 8), [name for name in MACHINES if name.startswith("n1-")]),
        (Accelerator("NVIDIA_H100_80GB", 3), [f"a3-highgpu-{count}g" for count in (1, 2, 4, 8)]),
    ],
)
def test_machines_with_as_many_gpus_as_were_asked_for(gpus: Accelerator, named: list[str]) -> None:
    assert taking(gpus) == named


def test_a_cure_that_makes_another_error_is_not_shown() -> None:
    """The checks refuse what the cure says: the finding stays, and its other advice."""

    def check(job: VertexJob) -> list[Finding]:
        low = [error("low", "hosts=1", "--hosts 2, or --hosts 3, or --hosts ten, or ask, or --hosts NUMBER")] * (
            job.hosts < 2
        )
        return [*low, *[error("even", "hosts=2", "--hosts 4")] * (job.hosts == 2)]

    [finding] = tried(VertexJob(), check(VertexJob()), check)
    assert finding.cure == "--hosts 3, or ask, or --hosts NUMBER"
    assert tried(VertexJob(), [error("low", "x", "--hosts 2")], check)[0].cure == ""


def test_a_setting_in_a_cure_is_tried_too() -> None:
    def check(job: VertexJob) -> list[Finding]:
        wrong = job.settings.get("train.batch_size") != 8
        return [error("batch", "x", "train.batch_size=8, or train.batch_size=7")] * wrong

    assert tried(VertexJob(), check(VertexJob()), check)[0].cure == "train.batch_size=8"

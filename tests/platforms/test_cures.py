"""Advice of the launchers, tried through their own checks: what is printed can be pasted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import sagemaker_mistakes
import slurm_mistakes
import vertex_mistakes

from launch.core import job_values as values
from launch.core.findings import Finding, errors
from launch.core.job import flag_of, load_job, readers
from launch.platforms.sagemaker import prepare as aws
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.slurm.preflight.online import rules
from launch.platforms.slurm.preflight.submit_host import SubmitHost, completed
from launch.platforms.slurm.preflight.training import offline
from launch.platforms.vertex import prepare as gcp
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.job_parts import Accelerator
from launch.platforms.vertex.machines import MACHINES, taking

pytest.importorskip("yaml")
Check = Callable[[Any], Sequence[Finding]]
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b")  # BUCKET, ID


def codes(findings: Sequence[Finding]) -> set[str]:
    return {finding.code for finding in errors(findings)}


def pasted(job: Any, text: str) -> Any:
    """The job with the flags and settings of a cure behind those of its command; None if they
    cannot be tried.

    Raises ConfigError for a value that the flag does not take.
    """
    known = {flag_of(item): item for item in fields(job)}
    changed: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    try:
        words = [] if "..." in text else shlex.split(re.split("[,:;] ", text)[0])
    except ValueError:
        return None
    while words:
        word = words.pop(0)
        key, equals, value = word.partition("=")
        if re.fullmatch(r"[a-z_]+\.[a-z_.]+", key) and equals and not PLACEHOLDER.search(value):
            settings[key] = values.scalar(value, key)
        elif word in known and not isinstance(getattr(job, known[word].name), tuple):
            read = readers(type(job))[known[word].name]
            given: Any = True if read is values.switch else words.pop(0) if words else "NONE"
            if PLACEHOLDER.search(str(given)):
                return None
            changed[known[word].name] = read([given] if read is values.pairs else given, word)
        else:
            return None
    return (
        replace(job, **changed, settings={**job.settings, **settings})
        if changed or settings
        else None
    )


def paste_back(job: Any, check: Check) -> int:
    """Paste each part of each cure. Returns the number of parts that can be pasted."""
    count = 0
    findings = check(job)
    for finding in findings:
        for part in finding.cure.split(", or "):
            if (changed := pasted(job, part)) is not None:
                count += 1
                after = check(changed)
                assert finding not in after, (finding, part)
                assert codes(after) <= codes(findings), (finding, part)
    return count


def test_cures_of_vertex_can_be_pasted():
    jobs = [
        load_job(
            VertexJob,
            None,
            {**vertex_mistakes.PLAIN, **flags},
            [*vertex_mistakes.SETTINGS, *settings],
        )
        for flags, settings in vertex_mistakes.MISTAKES.values()
    ]
    assert sum(paste_back(job, lambda job: gcp.prepare(job)[2]) for job in jobs) > 10


def test_cures_of_sagemaker_can_be_pasted():
    jobs = [
        sagemaker_mistakes.the_job(flags, settings)
        for flags, settings in sagemaker_mistakes.TYPED.values()
    ]
    assert sum(paste_back(job, lambda job: aws.prepare(job)[2]) for job in jobs) > 10


def test_cures_of_slurm_can_be_pasted():
    count = 0
    here = SubmitHost(Path("/workspace"), {}, {})
    for name, flags, settings, _ in slurm_mistakes.MISTAKES.values():
        job = load_job(
            SlurmJob, None, {**slurm_mistakes.PLAIN, **flags}, [slurm_mistakes.BATCH, *settings]
        )

        def check(job: Any, name: str = name) -> list[Finding]:
            return [*offline(job), *rules(job, slurm_mistakes.cluster(name), here)]

        if not job.array:  # whose own settings win
            count += paste_back(completed(job, here), check)
    assert count > 15


@pytest.mark.parametrize(
    ("gpus", "named"),
    [
        (Accelerator("NVIDIA_L4", 4), ["g2-standard-48"]),
        (
            Accelerator("NVIDIA_TESLA_V100", 8),
            [name for name in MACHINES if name.startswith("n1-")],
        ),
        (Accelerator("NVIDIA_H100_80GB", 3), [f"a3-highgpu-{count}g" for count in (1, 2, 4, 8)]),
    ],
)
def test_machines_with_as_many_gpus_as_were_asked_for(gpus, named):
    assert taking(gpus) == named

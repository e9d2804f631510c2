"""Tests of all findings of jobs with one mistake each, with their words, fixes, and sources."""

from __future__ import annotations

import pytest
import sagemaker_mistakes
import slurm_mistakes
import vertex_mistakes
from golden_findings import check_findings

pytest.importorskip("yaml")
pytestmark = pytest.mark.usefixtures("enough_disk")


def test_findings_of_sagemaker():
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    jobs = {
        name: sagemaker_mistakes.look(sagemaker_mistakes.the_job(flags, settings))
        for name, (flags, settings) in sagemaker_mistakes.TYPED.items()
    }
    usual = sagemaker_mistakes.look(sagemaker_mistakes.the_job({}))
    check_findings("findings/sagemaker", jobs, usual)


def test_findings_of_vertex():
    jobs = {
        name: vertex_mistakes.look(flags, settings)
        for name, (flags, settings) in vertex_mistakes.MISTAKES.items()
    }
    check_findings("findings/vertex", jobs, vertex_mistakes.look({}))


def test_findings_of_slurm():
    jobs = {
        name: slurm_mistakes.look(cluster, flags, settings)
        for name, (cluster, flags, settings, _) in slurm_mistakes.MISTAKES.items()
    }
    check_findings("findings/slurm", jobs, slurm_mistakes.look("plain", {}))

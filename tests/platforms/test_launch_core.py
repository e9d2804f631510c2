"""The core of the launcher knows no platform, and a platform is one file and one row."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import pytest
from conftest import refused

import launch
from launch.core.calls import ReadOnlyCalls
from launch.core.job import Job, load_job
from launch.platforms.ray.job import RayJob
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.vertex.job import VertexJob
from segtrain import arguments, cli
from segtrain.errors import NULL

ROOT = Path(__file__).parents[2]
CORE = sorted((ROOT / "launch/core").rglob("*.py"))
TOY = '''
"""Starts training on a shelf of toys."""

from dataclasses import dataclass

from launch.core import bundle, preflight
from launch.core.findings import errors
from launch.core.job import ROOT, Job, load_job, option


@dataclass(frozen=True)
class ToyJob(Job):
    """A job on toys. ``shelf``: where the data are."""

    toys: int = option(2, "N", "number of toys")
    shelf: str = "/shelf"


def main(arguments, command):
    job = load_job(ToyJob, {"toys": 3, "environment": {"A": 1}}, {"toys": arguments[0]}, arguments[1:])
    read = preflight.read_config(job, job.shelf)
    machines = preflight.Machines("toy", job.toys, ranks=job.toys, gpus=0)
    findings = [*read.findings]
    if read.config is not None:
        findings += [*preflight.batch(read.config, machines), *preflight.hardware(read.config, machines)]
        print(read.config.data.root)
    print(*(finding.code for finding in findings))
    print(*(name for name, _ in bundle.contents(job, __file__) if "/" not in name))
    print(command, job.toys, dict(job.environment))
    return len(errors(findings))
'''


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_core_knows_no_platform(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            assert name.split(".")[:2] not in [
                ["launch", part] for part in ("platforms", *arguments.PLATFORMS)
            ], name


def test_a_platform_is_one_file_and_one_row(tmp_path, monkeypatch, capsys):
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(launch, "__path__", [*launch.__path__, str(tmp_path)])
    monkeypatch.setitem(arguments.PLATFORMS, "toy", "a shelf of toys")
    settings = ["train.batch_size=3", "data.layout=camvid"]
    assert cli.main(["launch", "toy", "4", *settings, "train.device=cuda"]) == 2
    root, codes, files, said = capsys.readouterr().out.splitlines()
    assert root == "/shelf"
    assert codes.split() == ["batch-small", "device-cuda"]
    assert files.split() == ["requirements.txt", "train.py"]
    assert said == "segtrain launch toy 4 {'A': '1'}"
    assert cli.main(["launch", "toy", "3", *settings]) == 0
    with pytest.raises(SystemExit):
        cli.main(["launch", "shelf"])


def test_a_platform_refuses_what_its_job_does_not_know(tmp_path):
    for argument in ("spot=true", "instances=4"):
        job = tmp_path / "job.yaml"
        job.write_text(argument.replace("=", ": "))
        with refused("key-unknown", key=argument.partition("=")[0]):
            load_job(Job, job, {})


@pytest.mark.parametrize("kind", [SageMakerJob, VertexJob, SlurmJob, RayJob])
def test_a_null_is_refused_where_a_key_expects_a_value(kind):
    plain = [item.name for item in fields(kind) if isinstance(item.default, (str, int, float))]
    assert "output" in plain
    for key in plain:
        with refused("value-invalid", key=f"the job: {key}", found=None) as caught:
            load_job(kind, {key: None}, {})
        assert NULL in str(caught.value)
    with refused("value-invalid", key="the job: environment.A", found=None):
        load_job(kind, {"environment": {"A": None}}, {})
    empty = dict.fromkeys(item.name for item in fields(kind) if item.name not in plain)
    assert load_job(kind, empty, {}) == load_job(kind, {}, {})


def test_the_page_of_a_proxy_is_cut_short():
    class Calls(ReadOnlyCalls[None]):
        def meaning(self, error: Exception) -> str:
            return str(error)

    def refuse() -> None:
        raise OSError("<html>\n" + "403 " * 1000)

    calls = Calls(None)
    assert calls("the bucket", refuse).value is None
    assert len(calls.notes[0].message) < 350

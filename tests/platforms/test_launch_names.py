"""Names that others chose: no line of a script, no control of the terminal, and no traceback comes
from them.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from conftest import refused

from launch import fsx, lustre, sagemaker, slurm, vertex
from launch.core.findings import error, show
from launch.core.job import Job, load_job
from launch.core.preflight import read_config
from launch.platforms.ray.job import RayJob
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.slurm.job import SlurmJob
from launch.platforms.vertex.job import VertexJob

pytest.importorskip("yaml")
LONG = "n" * 300
MAINS: dict[str, tuple[Any, list[str]]] = {
    "sagemaker": (sagemaker.main, []),
    "vertex": (vertex.main, []),
    "slurm": (slurm.main, ["--partition", "p"]),
}
JOBS: tuple[type[Job], ...] = (SageMakerJob, VertexJob, SlurmJob, RayJob)
# Flags of paths and URLs, by what their help says.
PLACES = [
    (kind, item.name, item.metadata["metavar"])
    for kind in JOBS
    for item in fields(kind)
    if (metavar := item.metadata.get("metavar", "")) in ("DIR", "FILE", "RUN") or "://" in metavar
]


@pytest.mark.parametrize(("kind", "key", "metavar"), PLACES)
def test_a_place_is_what_a_shell_would_make_of_it(kind, key, metavar, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    scheme = metavar.partition("://")[0][-2:] + "://" if "://" in metavar else ""
    for wrong in (f"{scheme}$NOWHERE/x", f"{scheme}b/${{x}}", f"{scheme}b/x "):
        with refused("value-invalid", found=wrong):
            load_job(kind, {key: wrong}, {})
    if (kind, key) != (SageMakerJob, "data"):
        assert getattr(load_job(kind, {key: "~/x"}, {}), key) == "/home/me/x"


def test_every_platform_has_checked_places():
    keys = {(kind, key) for kind, key, _ in PLACES}
    assert {(kind, "output") for kind in JOBS} <= keys
    assert {(VertexJob, key) for key in ("data", "checkpoints", "staging", "requirements")} <= keys


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (fsx.main, ["--subnet", "subnet-0abc1234", "--security-groups", "sg-1", "--data"]),
        (lustre.main, ["export", "fs-0123456789abcdef0", "runs", "--report"]),
    ],
)
def test_a_bucket_of_a_file_system_has_no_variable(main, words, capsys):
    assert main([*words, "s3://b/$NOWHERE"]) == 2
    assert f"{words[-1]}='s3://b/$NOWHERE'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "key"), [(SlurmJob, "output"), (SlurmJob, "python"), (RayJob, "output")]
)
def test_a_bucket_is_no_folder_of_a_cluster(kind, key):
    with refused("value-invalid", key=f"the job: {key}", found="gs://b/x"):
        load_job(kind, {key: "gs://b/x"}, {})


@pytest.mark.parametrize("name", ["", "../x", "a/b", "$NOWHERE", "x "])
@pytest.mark.parametrize("kind", JOBS)
def test_the_name_of_a_job_is_that_of_one_folder(kind, name):
    with refused("value-invalid", key="--name", found=name):
        load_job(kind, None, {"name": name})


@pytest.mark.parametrize(
    ("data", "setting"),
    [
        ("gcs://b/x", {}),
        ("file:///x", {}),
        ("s3:/b", {}),
        ("/data", {"model.init": "gs://b/x"}),
        ("/data", {"data.cache_dir": "gcs://b/x"}),
        ("/data", {"out": "s3://b/$NOWHERE"}),
    ],
)
def test_what_the_trainer_would_refuse_is_found_before(data, setting):
    job = Job(settings={"data.layout": "camvid", **setting})
    assert [finding.code for finding in read_config(job, data).findings] == ["config"]
    fine = Job(settings={"data.layout": "camvid"})
    assert not read_config(fine, "gs://b/x").findings


@pytest.mark.parametrize("flag", ["--job", "--sample", "--folder"])
def test_a_home_folder_in_a_flag_is_replaced(flag, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    parser = vertex.build_parser("vertex")
    assert vars(parser.parse_args([f"{flag}=~/x"]))[flag[2:]] == Path("/home/me/x")
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args([flag, "$NOWHERE/x"])


@pytest.mark.parametrize("key", ["config", "data", "name"])
@pytest.mark.parametrize("platform", MAINS)
def test_no_control_character_reaches_the_terminal(platform, key, tmp_path, capsys):
    (tmp_path / "job.json").write_text(json.dumps({key: "s3://b\x1b[31mred\x9b/\u202ex"}))
    main, needed = MAINS[platform]
    main([*needed, "--job", str(tmp_path / "job.json"), "--dry-run"])
    assert not set(capsys.readouterr().err) & set("\x1b\x9b\u202e")


@pytest.mark.parametrize("key", ["config", "requirements", "program"])
@pytest.mark.parametrize("platform", MAINS)
def test_a_name_that_is_too_long_is_a_file_that_is_not_there(platform, key, tmp_path, capsys):
    (tmp_path / "job.json").write_text(json.dumps({key: LONG}))
    main, needed = MAINS[platform]
    assert main([*needed, "--job", str(tmp_path / "job.json"), "--dry-run"]) == 2
    assert "error" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a\ntouch x", "a\x1b]0;t\x07"])
@pytest.mark.parametrize("where", ["folder", "--output", "--config", "--account", "--sbatch"])
def test_no_name_becomes_a_line_of_the_script(where, name, tmp_path, monkeypatch, capsys):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name if where == "folder" else tmp_path)
    given = {"folder": [], "--sbatch": [f"--sbatch=--comment={name}"]}.get(where, [where, name])
    assert slurm.main(["--partition", "p", *given, "--dry-run"]) == 2
    assert capsys.readouterr().out == ""


def test_a_cure_is_one_line_that_can_be_copied():
    long = f"gcloud storage cp -r 'a  b' {'x' * 60} {'y' * 60}"
    assert show([error("code", "message " * 40, long)]).endswith(f"-> {long}")

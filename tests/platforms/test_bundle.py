"""Tests that a bundle has all that the machines need, no secrets, and starts without this
installation.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from checkouts import use_checkout

from launch.core import bundle as shared
from launch.core.job import ROOT, config_name
from launch.core.preflight import read_config
from launch.platforms.sagemaker import bundle
from launch.platforms.sagemaker.job import SageMakerJob
from segtrain.errors import ConfigError


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small copy of what a checkout has, with what must stay out of a bundle."""
    root = tmp_path / "checkout"
    for name in (
        "segtrain/errors.py",
        "segtrain/__init__.py",
        "segtrain/data/pixels/native/core.h",
        "segtrain/data/pixels/native/png.cpp",
        "configs/scenes.yaml",
        "configs/jobs/sagemaker.yaml",
        "docker/sagemaker/train.py",
        "pyproject.toml",
        "setup.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, root / name)
    for name in (
        "segtrain/data/pixels/native/libsegtrain_data.so",
        "segtrain/__pycache__/errors.cpython-311.pyc",
        "segtrain/notes.txt",
        "segtrain/.hidden.py",
        ".git/config",
        "runs/a/config.yaml",
        "CamVid/a.png",
        ".venv/lib/x.py",
        "tests/test_a.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    monkeypatch.chdir(root)
    use_checkout(monkeypatch, root)
    return root


def names(job: SageMakerJob) -> list[str]:
    return [name for name, _ in bundle.contents(job)]


def required(job: SageMakerJob) -> list[str]:
    """The lines of the bundle's requirements.txt."""
    content = dict(bundle.contents(job))["requirements.txt"]
    assert isinstance(content, bytes)
    return content.decode().splitlines()


def test_exactly_what_the_machines_need(checkout):
    assert names(SageMakerJob()) == [
        "configs/scenes.yaml",
        "requirements.txt",
        "segtrain/__init__.py",
        "segtrain/data/pixels/native/core.h",
        "segtrain/data/pixels/native/png.cpp",
        "segtrain/errors.py",
        "train.py",
    ]


def test_of_the_repository_the_whole_package_and_no_setup_py():
    found = names(SageMakerJob())
    for kind in ("*.py", "*.csv"):  # the tables are read at the end of each run
        assert {
            path.relative_to(ROOT).as_posix() for path in (ROOT / "segtrain").rglob(kind)
        } <= set(found)
    # AWS's toolkit refuses torchrun for a folder with setup.py in it.
    assert "setup.py" not in found
    assert not [
        name for name in found if name.startswith(("configs/jobs", "tests", "launch", ".", "/"))
    ]


def test_awss_toolkit_takes_it_for_a_script(tmp_path):
    kind = pytest.importorskip(
        "sagemaker_training._entry_point_type", reason="needs the extra `rehearse`"
    )
    bundle.build(SageMakerJob(), tmp_path / "sourcedir.tar.gz")
    with tarfile.open(tmp_path / "sourcedir.tar.gz") as tar:
        tar.extractall(tmp_path / "code", filter="data")
    assert kind.get(str(tmp_path / "code"), "train.py") is kind.PYTHON_PROGRAM


def test_requirements_leave_the_images_torch_alone(checkout, tmp_path):
    (tmp_path / "more.txt").write_text("timm>=1\n\nwandb")
    lines = required(SageMakerJob(requirements=str(tmp_path / "more.txt")))
    packages = [shared._package(line) for line in lines]
    assert "torch" not in packages
    assert "torchvision" not in packages
    assert {"segmentation-models-pytorch", "numpy", "pyyaml", "pydantic", "safetensors"} <= set(
        packages
    )
    assert lines[-4:] == ["# more.txt", "timm>=1", "", "wandb"]
    with pytest.raises(ConfigError, match=r"requirements=gone\.txt"):
        required(SageMakerJob(requirements="gone.txt"))


@pytest.mark.parametrize(
    ("settings", "packages"),
    [
        ({}, set()),
        (
            {"log.mlflow": "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/a"},
            {"mlflow", "sagemaker-mlflow"},
        ),
        ({"log.wandb": "", "log.mlflow": ""}, set()),
    ],
)
def test_a_tracker_brings_its_package(checkout, settings, packages):
    lines = required(SageMakerJob(settings=settings))
    trackers = {"mlflow", "wandb", "sagemaker-mlflow"}
    assert {shared._package(line) for line in lines} & trackers == packages
    extras = (ROOT / "pyproject.toml").read_text()
    assert all(
        f'["{line}"]' in extras
        for line in lines
        if shared._package(line) in trackers - {"sagemaker-mlflow"}
    )


def test_what_the_config_file_asks_for_brings_its_package_too(checkout):
    pytest.importorskip("yaml")
    (checkout / "mine.yaml").write_text("log: {wandb: streets}\n")
    lines = required(SageMakerJob(config="mine.yaml"))
    assert "wandb" in [shared._package(line) for line in lines]
    (checkout / "other.yaml").write_text("data: {transforms: [{HorizontalFlip: {p: 0.5}}]}\n")
    lines = required(SageMakerJob(config="other.yaml"))
    assert "albumentations" in [shared._package(line) for line in lines]
    off = required(SageMakerJob(config="mine.yaml", settings={"log.wandb": ""}))
    assert "wandb" not in [shared._package(line) for line in off]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [({"data.root": "s3://b/k"}, 1), ({"out": "s3://b/k"}, 1), ({"data.root": "data"}, 0)],
)
def test_folders_in_buckets_bring_their_package(checkout, settings, wanted):
    lines = required(SageMakerJob(settings=settings))
    assert [shared._package(line) for line in lines].count("obstore") == wanted


@pytest.mark.parametrize(
    ("pipeline", "wanted"),
    [
        ("[{HorizontalFlip: {p: 0.5}}]", True),  # as a Python without PyYAML reads it
        ("own.py:build", True),
        ("lib.own:build", True),
        ("plain.py:build", False),
        ("gone.py:build", False),
    ],
)
def test_a_pipeline_of_albumentations_brings_its_package(checkout, pipeline, wanted):
    (checkout / "lib").mkdir()
    for name in ("own.py", "lib/own.py"):
        (checkout / name).write_text(
            "import os\nimport albumentations as A\nbuild = A.HorizontalFlip()\n"
        )
    (checkout / "plain.py").write_text(
        "# as albumentations\ndef build(image, mask, rng): return image, mask\n"
    )
    lines = required(SageMakerJob(settings={"data.transforms": pipeline}))
    found = [line for line in lines if shared._package(line) == "albumentations"]
    extras = (ROOT / "pyproject.toml").read_text()
    assert len(found) == wanted
    assert all(f'["{line}"]' in extras for line in found)


def test_the_jobs_own_config_program_and_files(checkout, tmp_path, monkeypatch):
    work = tmp_path / "work"
    (work / "aug").mkdir(parents=True)
    (work / "mine.yaml").write_text("data: {classes: names.txt}\n")
    (work / "names.txt").write_text("road\n")
    (work / "aug/own.py").write_text("def build(): ...\n")
    (work / "start.py").write_text("")
    monkeypatch.chdir(work)
    job = SageMakerJob(
        config="mine.yaml", program="start.py", settings={"data.transforms": "aug/own.py:build"}
    )
    found = dict(bundle.contents(job))
    assert found[config_name(job)] == Path("mine.yaml")
    assert {"start.py", "train.py", "names.txt", "aug/own.py", "configs/scenes.yaml"} <= set(found)
    read = read_config(job, "")
    assert read.config is not None
    assert str(read.config.data.transforms).startswith(f"{work}/aug/own.py:build@")
    # The settings come over the config.
    assert "names.txt" not in dict(
        bundle.contents(replace(job, settings={"data.classes": ["road"]}))
    )


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (SageMakerJob(config="gone.yaml"), "config=gone.yaml"),
        (SageMakerJob(program="gone.py"), "program=gone.py"),
        (SageMakerJob(program="../setup.py"), "outside"),
    ],
)
def test_what_is_not_there_is_named(checkout, job, words):
    with pytest.raises(ConfigError, match=words):
        bundle.contents(job)


def test_the_same_files_give_the_same_bytes(checkout, tmp_path):
    first = bundle.build(SageMakerJob(), tmp_path / "one/sourcedir.tar.gz")
    (checkout / "segtrain/errors.py").touch()
    (checkout / "segtrain/errors.py").chmod(0o777)
    second = bundle.build(SageMakerJob(), tmp_path / "two/other.tar.gz")
    assert first == second
    assert (tmp_path / "one/sourcedir.tar.gz").stat().st_size == first["bytes"]
    # no time of the packing either
    assert (tmp_path / "one/sourcedir.tar.gz").read_bytes()[4:8] == bytes(4)
    assert first["files"] == 7
    (checkout / "segtrain/errors.py").write_text("other")
    assert bundle.build(SageMakerJob(), tmp_path / "two/other.tar.gz")["sha256"] != first["sha256"]


def test_the_entry_can_be_imported_from_the_bundle_alone(tmp_path):
    bundle.build(SageMakerJob(), tmp_path / "sourcedir.tar.gz")
    code = tmp_path / "code"
    with tarfile.open(tmp_path / "sourcedir.tar.gz") as tar:
        assert all(
            item.isfile() and (item.mtime, item.uid, item.gid, item.mode) == (0, 0, 0, 0o644)
            for item in tar
        )
        tar.extractall(code, filter="data")
    asked = "import train, segtrain, segtrain.config as c; c.load_config('configs/scenes.yaml'); print(segtrain.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=code, check=True, capture_output=True, text=True
    )
    assert Path(done.stdout.strip()).is_relative_to(code)

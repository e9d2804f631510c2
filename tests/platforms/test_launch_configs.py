"""Every shipped config goes through every launcher, with the data from the command line."""

from __future__ import annotations

import json

import pytest

from launch import sagemaker, slurm, vertex
from launch.core.findings import errors
from launch.core.job import ROOT
from launch.platforms.ray import checks
from launch.platforms.ray.job import load

pytest.importorskip("yaml")
CONFIGS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").glob("*.yaml"))
PLACES = {
    "sagemaker": (
        sagemaker.main,
        ("--instances", "1", "--type", "ml.p4d.24xlarge", "--region", "us-east-1"),
        "s3://my-data/set/",
        "/opt/ml/input/data/train",
    ),
    "vertex": (
        vertex.main,
        ("--machine", "a2-highgpu-8g", "--region", "us-central1"),
        "gs://my-data/set",
        "gs://my-data/set",
    ),
    "slurm": (slurm.main, ("--partition", "gpu", "--gpus", "8"), "/shared/set", "/shared/set"),
}


def refusals(text: str) -> list[str]:
    """The errors in what a dry run says, without those of the account, the bucket, and the
    cluster.
    """
    allowed = ("slurm", "sbatch", "sinfo", "partition")
    return [
        line
        for line in text.splitlines()
        if line.startswith("error") and not any(w in line for w in allowed)
    ]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("platform", PLACES)
def test_data_of_the_command_line_win_over_the_config(platform, config, capsys):
    main, machines, data, place = PLACES[platform]
    main([*machines, "--config", config, "--data", data, "train.batch_size=16", "--dry-run"])
    said = capsys.readouterr()
    assert refusals(said.err) == []
    named = "root:" in (ROOT / config).read_text()
    assert ("--data wins" in said.err) == named
    request = "" if platform == "sagemaker" else f"data.root={json.dumps(place)}"
    if platform == "vertex":
        request = json.dumps(request)
    assert (request in said.out) == ("scenes" not in config or not request)


@pytest.mark.parametrize("platform", PLACES)
def test_data_of_the_command_line_win_over_a_setting(platform, capsys):
    main, machines, data, _ = PLACES[platform]
    main(
        [
            *machines,
            "--config",
            "configs/camvid_cpu.yaml",
            "--data",
            data,
            "data.root=/home/me",
            "--dry-run",
        ]
    )
    said = capsys.readouterr()
    assert "/home/me" not in said.out
    assert "data.root='/home/me'" in said.err


def test_a_folder_inside_the_channel_stays(capsys):
    main, machines, data, place = PLACES["sagemaker"]
    main(
        [*machines, "--config", CONFIGS[0], "--data", data, f"data.root={place}/city", "--dry-run"]
    )
    assert json.loads(capsys.readouterr().out)["HyperParameters"]["data.root"] == json.dumps(
        f"{place}/city"
    )


@pytest.mark.parametrize("config", CONFIGS)
def test_ray_takes_every_config(config, tmp_path):
    data = [] if "scenes" in config else [f"data.root={tmp_path}"]
    job = load({"overrides": [config, "train.batch_size=16", *data], "workers": 2})
    assert not errors(checks.offline(job)[0])

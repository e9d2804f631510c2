"""What launchers say of a job's time and cost before they send it, and which limits stop them."""

from __future__ import annotations

import json
import re
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from records import of_one_rank

from launch import slurm
from launch.core.findings import Finding
from launch.core.forecast import Unpredicted, keep, on_type, plan_findings
from launch.core.job import Job, load_job
from launch.platforms.ray.checks import predicted
from launch.platforms.ray.job import RayJob
from launch.platforms.sagemaker import job as aws
from launch.platforms.sagemaker.bundle import build
from launch.platforms.slurm.job import SlurmJob
from segtrain.config import load_config
from segtrain.data.labels.presets import SCENES
from segtrain.insight.plan import saved
from segtrain.insight.plan.offers import plan
from segtrain.insight.plan.terms import terms_of
from segtrain.machines import machines
from segtrain.runfolder.rundir import make_run_dir, prepare_run_dir

TYPE = "ml.g5.xlarge"
SETTINGS = ("model.arch=pico", "data.crop=[64,96]", "train.batch_size=64", "train.duration=5000st")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """5000 steps of 64 images on a ml.g5.xlarge, 640 images in an epoch."""
    folder = of_one_rank(tmp_path / "run")
    (folder / "config.yaml").write_text(
        load_config(None, list(SETTINGS)).to_yaml(), encoding="utf-8"
    )
    step = {"event": "step", "ts": 3.0, "step": 5000, "epoch": 500.0, "loss": 1.0}
    with (folder / "journal.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(step) + "\n")
    return folder


def said(
    run: Path | str, *settings: str, name: str = TYPE, hosts: int = 1, **more: Any
) -> list[Finding]:
    config = load_config(None, [*SETTINGS, *settings])
    gpus = machines()[name].gpus if name in machines() else 1
    ranks = more.pop("ranks", hosts * max(1, gpus))
    return list(
        plan_findings(
            Job(like=str(run)),
            config,
            lambda job, config: on_type(job, config, name, hosts, ranks, **more),
        )
    )


def test_the_block_has_minutes_dollars_and_what_bounds_the_job(run):
    (found,) = said(run)
    (offer,) = plan(terms_of(run), (1,), [machines()[TYPE]]).offers
    minutes, dollars = offer.seconds[1] / 60, offer.dollars[1]
    assert (found.level, found.code) == ("note", "plan")
    assert f"about {minutes:.3g} (" in found.message
    assert f"${dollars:.3g} (" in found.message
    assert "bound by the device" in found.message
    (dear,) = said(run, price=100.0)
    assert f"${100 * offer.seconds[1] / 3600:,.3g} (" in dear.message


def test_length_and_batch_are_those_of_the_job(run):
    def minutes(*settings: str) -> float:
        (found,) = said(run, *settings)
        return float(found.message.split("about ")[1].split(" ")[0].replace(",", ""))

    once = minutes()
    start = once - minutes("train.duration=2500st")
    assert start == pytest.approx(
        5000 * 64 / 2 / plan(terms_of(run), (1,), [machines()[TYPE]]).offers[0].rate[1] / 60,
        rel=0.1,
    )
    # 10 steps in an epoch of the run
    assert minutes("train.duration=500ep") == pytest.approx(once, rel=0.02)
    assert minutes("train.batch_size=128") == pytest.approx(once + 2 * start, rel=0.1)


def test_only_a_limit_that_is_broken_in_all_cases_is_an_error(run):
    for deadline, words in (
        ("10h", "kept in 90 %"),
        ("51m", "likely to be kept"),
        ("50m", "too short"),
    ):
        (found,) = said(run, f"train.deadline={deadline}")
        assert found.level == "note"
        assert words in found.message, found
    note, wrong = said(run, "train.deadline=20m")
    assert (note.code, wrong.code, wrong.level) == ("plan", "plan-over-limit", "error")
    assert "train.deadline=20m" in wrong.message
    assert [one.code for one in said(run, "train.budget=0.3$")] == ["plan", "plan-over-limit"]
    assert "train.budget=100$ is kept" in said(run, "train.budget=100$")[0].message


def test_what_is_not_known_is_said_in_one_line_and_stops_nothing(run, tmp_path):
    for found, words in (
        (said(""), "--like RUN"),
        (said(tmp_path / "nothing"), "not predicted"),
        (said(run, "data.crop=[96,96]"), "data.crop"),
        (said(run, name="ml.x9.large"), "ml.x9.large"),
        (said(run, name="ml.c5.4xlarge"), "ml.g5.xlarge"),
        (said(run, name="ml.p3.16xlarge", ranks=8), "retired"),
        (said(run, name="ml.g5.12xlarge", ranks=1), "1 of 4 GPUs"),
    ):
        (one,) = found
        assert one.level == "note"
        assert words in f"{one.message} {one.cure}", one


def test_nodes_of_a_cluster_take_node_hours(run, tmp_path, capsys, monkeypatch):
    """The run does not say the type of its host; the prediction is for nodes with its GPU and
    cores.
    """
    config = str(run / "config.yaml")
    settings = ["--config", config, "--output", str(tmp_path / "out"), "--like", str(run)]
    words = [*settings, "--nodes", "2", "--gpus", "1", "--dry-run", "--partition", "gpu"]
    slurm.main([*words, "train.batch_size=128", "train.deadline=20m"])
    shown = " ".join(capsys.readouterr().err.split())
    assert "2 x a node of 4 cores (1 x GPU): about 5" in shown
    assert "node-hours to the end, without the time in the queue" in shown
    assert "$" not in shown
    assert "train.deadline=20m would stop the training" in shown
    keys = {
        "config": config,
        "like": str(run),
        "seeds": "1,2",
        "gpus": "1",
        "output": str(tmp_path / "out"),
    }
    job = load_job(SlurmJob, keys, {}, ["train.price=3"])
    monkeypatch.setattr(slurm, "online", lambda *_, **__: [])
    monkeypatch.setattr(slurm, "submit", lambda *_: "7")
    flags = [f"--{key}={value}" for key, value in keys.items()]
    assert slurm.main([*flags, "--no-follow", "train.price=3"]) == 0
    for folder in job.runs():
        (offer,) = saved.read(folder / saved.FILE)["offers"]
        assert (offer["machine"], offer["batch"]) == ("a node of 4 cores (1 x GPU)", 64)
        assert offer["seconds"][1] == pytest.approx(5000 * 64 / offer["rate"][1], rel=0.01)
    (folder / "journal.jsonl").write_text("")
    keep(b"of another job with this folder", folder)
    assert saved.read(folder / saved.FILE)


@pytest.mark.parametrize(
    ("job", "gpus", "expected"),
    [
        (RayJob(workers=3), 1, (1, "a node of 16 cores (3 x A100-40GB)")),
        (RayJob(workers=8), 1, (2, "a node of 16 cores (4 x A100-40GB)")),
        (RayJob(elastic=(1, 99)), 1, (2, "a node of 16 cores (4 x A100-40GB)")),
        (RayJob(workers=5), 1, "[4, 1] ranks"),
        (RayJob(workers=2, cpus=64), 1, "no node fits"),
        (RayJob(workers=2), 0, "tells nothing"),
    ],
)
def test_ray_fills_a_node_before_the_next_one(run, job, gpus, expected):
    spans = run / "spans/rank-00000.jsonl"
    spans.write_text(
        spans.read_text().replace('"device"', '"gpu": "NVIDIA A100-SXM4-40GB", "device"')
    )
    resources = {"CPU": 16.0, "GPU": 4.0, "accelerator_type:A100": 1.0}
    nodes = [
        {"Alive": alive, "Labels": {}, "Resources": resources} for alive in (True, True, False)
    ]
    config = load_config(None, [*SETTINGS, f"train.batch_size={64 * job.most}"])
    call = partial(predicted, replace(job, like=str(run)), config, nodes, gpus)
    if isinstance(expected, tuple):
        (offer,) = call().offers
        assert (offer.hosts, offer.machine.name) == expected
    else:
        with pytest.raises(Unpredicted, match=re.escape(expected)):
            call()


def test_a_prediction_travels_with_the_code_into_the_run_folder(run, tmp_path, monkeypatch):
    keys = {
        "config": str(run / "config.yaml"),
        "like": str(run),
        "type": TYPE,
        "output": "s3://out",
    }
    build(aws.load_job(None, keys), tmp_path / "code.tar.gz")
    with tarfile.open(tmp_path / "code.tar.gz") as tar:
        tar.extract("segtrain/plan.json", tmp_path, filter="data")
    (offer,) = saved.read(tmp_path / "segtrain/plan.json")["offers"]
    assert (offer["machine"], offer["hosts"], offer["batch"]) == (TYPE, 1, 64)
    config = load_config(None, [*SETTINGS, f"out={tmp_path}/new"])
    make_run_dir(config)
    monkeypatch.setattr("segtrain.__file__", str(tmp_path / "segtrain/__init__.py"))
    for _ in range(2):
        prepare_run_dir(config, SCENES, {})
        assert saved.read(config.run_dir / saved.FILE)["offers"] == [offer]
        (tmp_path / "segtrain/plan.json").write_text("the plan of the job that resumes the run")

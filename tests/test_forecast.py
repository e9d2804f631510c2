"""What launchers say of a job's time and cost before they send it, and which limits stop them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_plan import of_one_rank

from launch import sagemaker, vertex
from launch.findings import Finding
from launch.forecast import forecast
from launch.job import Job
from segtrain.config import load_config
from segtrain.machines import machines
from segtrain.plan.offers import plan
from segtrain.plan.terms import terms_of

TYPE = "ml.g5.xlarge"
SETTINGS = ("model.arch=pico", "data.crop=[64,96]", "train.batch_size=64", "train.duration=5000st")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """5000 steps of 64 images on a ml.g5.xlarge, 640 images in an epoch."""
    folder = of_one_rank(tmp_path / "run")
    (folder / "config.yaml").write_text(load_config(None, list(SETTINGS)).to_yaml(), encoding="utf-8")
    step = {"event": "step", "ts": 3.0, "step": 5000, "epoch": 500.0, "loss": 1.0}
    with (folder / "journal.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(step) + "\n")
    return folder


def said(run: Path | str, *settings: str, name: str = TYPE, hosts: int = 1, **more: Any) -> list[Finding]:
    config = load_config(None, [*SETTINGS, *settings])
    gpus = machines()[name].gpus if name in machines() else 1
    return list(forecast(Job(like=str(run)), config, name, hosts, more.pop("ranks", hosts * max(1, gpus)), **more))


def test_the_block_has_minutes_dollars_and_what_bounds_the_job(run: Path) -> None:
    (found,) = said(run)
    (offer,) = plan(terms_of(run), (1,), [machines()[TYPE]]).offers
    minutes, dollars = offer.seconds[1] / 60, offer.dollars[1]
    assert (found.level, found.code) == ("note", "plan")
    assert f"about {minutes:.3g} (" in found.message
    assert f"${dollars:.3g} (" in found.message
    assert "bound by the device" in found.message
    (dear,) = said(run, price=100.0)
    assert f"${100 * offer.seconds[1] / 3600:,.3g} (" in dear.message


def test_length_and_batch_are_those_of_the_job(run: Path) -> None:
    def minutes(*settings: str) -> float:
        (found,) = said(run, *settings)
        return float(found.message.split("about ")[1].split(" ")[0].replace(",", ""))

    once = minutes()
    start = once - minutes("train.duration=2500st")
    assert start == pytest.approx(
        5000 * 64 / 2 / plan(terms_of(run), (1,), [machines()[TYPE]]).offers[0].rate[1] / 60, rel=0.1
    )
    assert minutes("train.duration=500ep") == pytest.approx(once, rel=0.02)  # 10 steps in an epoch of the run
    assert minutes("train.batch_size=128") == pytest.approx(once + 2 * start, rel=0.1)


def test_only_a_limit_that_is_broken_in_all_cases_is_an_error(run: Path) -> None:
    for deadline, words in (("10h", "kept in 90 %"), ("51m", "likely to be kept"), ("50m", "too short")):
        (found,) = said(run, f"train.deadline={deadline}")
        assert found.level == "note"
        assert words in found.message, found
    note, wrong = said(run, "train.deadline=20m")
    assert (note.code, wrong.code, wrong.level) == ("plan", "plan-over-limit", "error")
    assert "train.deadline=20m" in wrong.message
    assert [one.code for one in said(run, "train.budget=0.3$")] == ["plan", "plan-over-limit"]
    assert "train.budget=100$ is kept" in said(run, "train.budget=100$")[0].message


def test_what_is_not_known_is_said_in_one_line_and_stops_nothing(run: Path, tmp_path: Path) -> None:
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


def test_the_launchers_say_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--config", "configs/scenes.yaml", *SETTINGS, "--dry-run"]
    sagemaker.main(["--type", TYPE, "--like", str(run), *settings])
    shown = " ".join(capsys.readouterr().err.split())
    assert "ml.g5.xlarge: about" in shown or "other settings than the job" in shown
    vertex.main(["--machine", "n1-standard-8", "--accelerator", "NVIDIA_TESLA_T4:1", *settings])
    assert "--like RUN" in " ".join(capsys.readouterr().err.split())

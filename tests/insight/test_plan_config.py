"""The plan of a config: rooflines and reasons by hand, places to run, strategies, sources of data,
and the command.
"""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from typing import Any

import pytest
from conftest import refused

import segtrain
from segtrain.arguments import build_parser
from segtrain.cli import main
from segtrain.config import load_config
from segtrain.data.datasets import open_dataset
from segtrain.insight.plan import command, device
from segtrain.insight.plan.candidates import machines_of, nodes
from segtrain.insight.plan.described import (
    DescribedJob,
    SampleSeconds,
    Scored,
    Step,
    StoredSize,
    plan_config,
)
from segtrain.insight.plan.dry import Dry, DryModel
from segtrain.insight.plan.probe import _with_network, job_of, measured_sample
from segtrain.insight.plan.trace import Layer
from segtrain.machines import gpus, machines
from segtrain.models import build_model

CHEAP = SampleSeconds(1e-6, 1e-6, (1.0, 1.0), "made up", measured=False)


@pytest.fixture(scope="module")
def job() -> DescribedJob:
    config = load_config(
        None,
        [
            "train.batch_size=32",
            "train.duration=100st",
            "train.precision=fp16",
            "data.crop=[512,512]",
        ],
    )
    return DescribedJob(config, StoredSize(1000, 1e6, 2), DryModel(config, 5, 32), CHEAP)


def test_the_costs_of_an_image_are_those_of_its_operators():
    """Two convolutions of an image pair, with their backward passes, and an addition."""
    layers = (
        Layer(4e9, 1e6, 2e6, False),
        Layer(0.0, 9e6, 5e6, False),
        Layer(2e9, 1e6, 1e6, False),
        Layer(12e9, 1e6, 1e6, True),
    )
    found = Dry(2, layers, (1000, 1000), 0.0, (), 0.0, 0.0, 0.0).work
    assert (found.params, found.layers) == (1000, 2)
    assert found.flops == pytest.approx((4e9 + 2e9 + 12e9) / 3 / 2)
    assert found.activations == pytest.approx((2e6 + 1e6) / 2)


def test_a_step_is_that_of_the_one_roofline(job):
    """fp16 on an A100 80 GB, by hand: arithmetic and memory traffic one after the other, and the
    layers.
    """
    a100, work = gpus()["A100-80GB"], job.work
    rate = device.MEMORY * a100.memory_gbs * 1e9
    image = 3 * work.flops / (device.TENSOR * 312e12) + device.PASSES * 2 * work.activations / rate
    alone = (
        32 * device.DENSE * image
        + device.LAYER * work.layers
        + device.OPTIMIZER * work.params / rate
    )
    launched = device.LAUNCH * work.layers
    least, usual, most = job.device(a100, 32)
    assert usual == pytest.approx((alone**4 + launched**4) ** 0.25)
    assert usual / least == pytest.approx(most / usual)
    slow = replace(
        job, config=load_config(None, ["train.precision=fp16", "train.channels_last=false"])
    )
    assert slow.device(a100, 32)[1] > usual
    assert 1.5 < most / least < 2.5
    fp32, bf16 = (
        replace(job, config=load_config(None, [f"train.precision={name}"]))
        for name in ("fp32", "bf16")
    )
    assert fp32.device(gpus()["V100"], 32)[1] > 1.5 * job.device(gpus()["V100"], 32)[1]
    assert bf16.device(gpus()["V100"], 32)[1] > 1.5 * bf16.device(a100, 32)[1]  # no unit for bf16
    tf32, auto = (
        replace(job, config=load_config(None, [f"train.precision={name}"]))
        for name in ("tf32", "auto")
    )
    assert fp32.device(a100, 32)[1] > 1.5 * tf32.device(a100, 32)[1]  # fp32 turns TF32 off
    assert auto.device(a100, 32) == bf16.device(a100, 32)
    assert auto.device(gpus()["V100"], 32) == job.device(gpus()["V100"], 32)


def test_evaluations_and_checkpoints_of_a_config_are_counted(job):
    """2 s for a step of 32 images: 2/3 s for their forward passes. 2 epochs of 1000 images, with an
    evaluation in each.
    """
    words = [
        "train.batch_size=32",
        "train.duration=2ep",
        "data.crop=[512,512]",
        "train.precision=fp16",
    ]
    config = load_config(None, [*words, "checkpoint.every=21st"])
    known = replace(job, config=config, step=Step("A10G", 32, 2.0), scored=Scored(100, (512, 512)))
    a10g = machines()["ml.g5.xlarge"]
    (plain,) = plan_config(replace(known, scored=None), [a10g], (1,)).offers
    (offer,) = plan_config(known, [a10g], (1,)).offers
    scores, score = known.scores(gpus()["A10G"], 4)
    assert scores == 2
    one_image = known.device(gpus()["A10G"], 1)[1] / 3
    assert score == pytest.approx(100 * one_image)
    assert offer.trained[1] - plain.trained[1] == pytest.approx(2 * score, rel=0.1)
    four = replace(known, config=load_config(None, [*words, "eval.batch_size=4"])).scores(
        gpus()["A10G"], 4
    )[1]
    assert four == pytest.approx(100 * known.device(gpus()["A10G"], 4)[1] / 3 / 4)
    # Nine windows of a quarter of the image each, mirrored: 4.5 times its pixels.
    tiled = load_config(None, [*words, "eval.tile=[256,256]", "eval.flip=true"])
    windows = replace(known, config=tiled).scores(gpus()["A10G"], 4)[1]
    assert windows == pytest.approx(100 * known.device(gpus()["A10G"], round(4.5))[1] / 3)
    slow = replace(known, sample=SampleSeconds(1.0, 1.0, (1.0, 1.0), "made up", measured=False))
    # the cores that read the images decide
    assert slow.scores(gpus()["A10G"], 4)[1] == pytest.approx(100 / 4)
    saves, save = known.saves()
    weights = 4 * sum(p.numel() for p in build_model(config.model, 5).parameters())
    # with the two moments of AdamW
    assert (saves, save) == (3, pytest.approx(3 * weights / 2e9, rel=0.02))
    assert offer.saving == saves * save


def test_types_that_do_not_fit_or_are_not_known_are_left_out_with_the_reason(job):
    usual = machines()["ml.g5.xlarge"]
    tiny, strange = (
        replace(usual, name="tiny", gpu_memory_gb=0),
        replace(usual, name="strange", gpu="GPU9000"),
    )
    free = replace(usual, name="free", price=None)
    left = plan_config(job, [tiny, strange, free], (1,)).left_out
    assert "needs" in left["tiny"]
    assert "has 0" in left["tiny"]
    assert "GPU9000" in left["strange"]
    assert left["free"] == "no price is known"
    tf32 = replace(job, config=load_config(None, ["train.precision=tf32"]))
    assert not tf32.why_not(usual)
    assert "tf32" in tf32.why_not(machines()["ml.g4dn.xlarge"])


def test_places():
    assert machines_of("aws") == list(machines().values())
    assert {one.gpu for one in machines_of("gcp")} >= {"L4", "T4", "V100", "A100-40GB", "H100"}
    assert [one.name for one in machines_of("ml.g5.xlarge, g2-standard-8")] == [
        "ml.g5.xlarge",
        "g2-standard-8",
    ]
    with refused("unknown-machine-type", found="ml.g5.xlarg"):
        machines_of("ml.g5.xlarg")


SINFO = """n1|48|190000|gpu:a100:4(S:0-1)
n2|48|180000+|gpu:a100:4(S:0-1)
n3|96|2000000|gpu:nvidia_h100_80gb_hbm3:8
n4|64|250000|(null)
n5|32|120000|gpu:odd9:2
"""


def test_nodes_of_a_partition():
    found = {one.name: one for one in nodes(SINFO)}
    assert list(found) == ["n1 (4 x A100-40GB)", "n3 (8 x H100)", "n4", "n5 (2 x odd9)"]
    first = found["n1 (4 x A100-40GB)"]
    assert (first.vcpus, first.gpus, first.gpu_memory_gb) == (48, 4, 40)
    assert first.memory_gb == pytest.approx(180000 / 1024, abs=0.1)
    assert found["n4"].gpus == 0
    assert found["n5 (2 x odd9)"].gpu_memory_gb == 0  # not known


def test_a_partition_is_asked_of_sinfo(tmp_path, monkeypatch):
    program = tmp_path / "sinfo"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *night*) ;; *broken*) echo no controller >&2; exit 1;; *) cat <<X\n{SINFO}X\nesac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert len(machines_of("slurm:gpu")) == 4
    with refused("no-such-partition", found="night"):
        machines_of("slurm:night")
    with refused("sinfo-failed", found="broken") as caught:
        machines_of("slurm:broken")
    assert "(no controller)" in str(caught.value)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with refused("no-sinfo", found="gpu"):
        machines_of("slurm:gpu")


def test_the_command_and_the_function(capsys):
    settings = ["model.arch=pico", "train.batch_size=64", "data.scenes=40", "train.duration=10ep"]
    assert (
        main(
            [
                "plan",
                *settings,
                "--where",
                "ml.g5.xlarge,ml.g4dn.xlarge",
                "--hosts",
                "1,2",
                "--json",
            ]
        )
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert {offer["machine"] for offer in said["offers"]} == {"ml.g5.xlarge", "ml.g4dn.xlarge"}
    assert said["total"] == 448  # 10 epochs of 40 images, rounded up to whole steps
    assert main(["plan", *settings, "--where", "gcp", "--hosts", "1"]) == 0
    text = capsys.readouterr().out
    for kind in ("computed", "from tables", "assumed", "left out"):
        assert f"\n{kind}" in text
    found = segtrain.plan(load_config(None, settings), where="ml.g5.xlarge", hosts=(1,))
    assert found.offers[0].rate == pytest.approx(said["offers"][0]["rate"])


def test_a_data_set_that_is_not_here_can_be_described(tmp_path, capsys):
    settings = [
        "data.layout=cityscapes",
        f"data.root={tmp_path / 'none'}",
        "data.crop=[128,256]",
        "train.duration=2ep",
    ]
    where = ["--where", "ml.p3.16xlarge", "--hosts", "1"]
    assert main(["plan", *settings, *where]) == 2
    assert "--images" in capsys.readouterr().err
    described = ["--images", "2975", "--image-size", "1024x2048"]
    assert main(["plan", *settings, *where, *described]) == 0
    text = capsys.readouterr().out
    assert "2ep of 2,975" in text
    assert "ml.p3.16xlarge (8 x V100)" in text
    assert "ml.p3.16xlarge is retired" in text
    found = segtrain.plan(
        load_config(None, settings), where="ml.g5.xlarge", hosts=(1,), described=(100, (512, 512))
    )
    assert found.job.total == 208  # 2 epochs of 100 images in steps of 16
    for wrong in (described[:2], described[2:], [*described[:2], "--image-size", "1024"]):
        assert main(["plan", *settings, *where, *wrong]) == 2
        assert "--image-size" in capsys.readouterr().err


def test_a_plan_is_of_one_thing():
    def plan(*words: str, overrides: tuple[str, ...] = ()) -> None:
        command.plan(build_parser().parse_args(["plan", *words], Namespace(overrides=overrides)))

    with refused("plan-of-two", found="train.batch_size=8"):
        plan("--like", "runs/x", overrides=("train.batch_size=8",))
    with refused("plan-of-nothing"):
        plan()


def test_a_probe_measures_samples():
    """With data.cache=ram, one that is not in memory yet costs more."""
    config = load_config(None, ["data.scenes=20", "data.cache=ram"])
    assert not job_of(config, probe=False).sample.measured
    found = measured_sample(config, open_dataset(config.data, "train"))
    assert found.measured
    assert 0 < found.cpu < found.first < 10


@pytest.mark.parametrize(
    ("cache", "expected"), [("off", (0.010, 0.012, 0.0)), ("ram", (0.005, 0.006, 0.010))]
)
def test_a_sample_in_memory_costs_what_comes_after_decoding(cache, expected, monkeypatch):
    requests = []

    def child(kind: str, request: dict[str, Any]) -> dict[str, Any]:
        requests.append((kind, request))
        whole = {"cpu_mean_ms": 10.0, "wall_ms": 12.0, "wall_mean_ms": 16.0}
        parts = {"read": {"wall_mean_ms": 2.0}, "decode": {"wall_mean_ms": 6.0}}
        return {"samples": 9, "path_says": "natively", "stages": {"whole": whole, **parts}}

    monkeypatch.setattr("segtrain.insight.bench.child.child", child)
    config = load_config(None, ["data.scenes=4", f"data.cache={cache}"])
    dataset = open_dataset(config.data, "train")
    sample = measured_sample(config, dataset)
    assert (sample.cpu, sample.wall, sample.first) == pytest.approx(expected)
    ((kind, request),) = requests
    assert (kind, request["samples"], request["packed"]) == ("stages", len(dataset), False)
    assert request["config"]["data"]["cache"] == "off"


def test_auto_is_planned_as_the_network_of_the_smallest_gpu():
    lines: list[str] = []
    for where, encoder in (
        ("ml.g5.xlarge,ml.p5.48xlarge", "base"),
        ("ml.p5.48xlarge,ml.c5.xlarge", "large"),
    ):
        config = _with_network(load_config(), machines_of(where), lines.append)
        assert config.model.encoder == f"tu-convnext_{encoder}.fb_in22k"
        assert encoder in lines.pop()
    assert _with_network(load_config(), machines_of("ml.c5.xlarge"), lines.append) == load_config()

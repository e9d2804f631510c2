"""Tests of the choice of train.precision: what each device has units for, and that all ranks
compute alike.
"""

from __future__ import annotations

import pytest
import torch
from conftest import refused

from segtrain.base import precision
from segtrain.config import Config, Parallel
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.strategy import Strategy
from segtrain.training.start.numerics import chosen_precision, set_numerics

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("capability", "fits"),
    [
        ((8, 0), ("bf16", "fp16", "tf32", "fp32")),
        ((7, 5), ("fp16", "fp32")),
        ((6, 1), ("fp32",)),
    ],
)
def test_what_a_gpu_has_units_for(monkeypatch, capability, fits):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert precision.fitting(GPU) == fits


def test_an_amd_gpu_is_asked_for_bf16_since_its_capability_means_something_else(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    for known, first in ((True, "bf16"), (False, "fp16")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda known=known: known)
        assert precision.fitting(GPU)[0] == first


@pytest.mark.parametrize(
    ("flags", "first"),
    [
        ("flags\t\t: fpu avx512f amx_bf16 amx_tile", "bf16"),
        ("Features\t: fp asimd bf16", "bf16"),
        ("flags\t: fpu avx2 avx512f", "fp32"),
        ("", "fp32"),
    ],
)
def test_a_cpu_is_asked_for_its_bf16_units(tmp_path, flags, first):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\n")
    assert precision.fitting(CPU, tmp_path / "cpuinfo")[0] == first
    assert precision.fitting(CPU, tmp_path / "absent") == ("fp32",)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], "bf16"),
        ([("bf16", "fp16", "fp32")], "bf16"),
        ([("fp16", "fp32")], "fp16"),
        ([("fp16", "fp32"), ("fp32",)], "fp32"),
    ],
)
def test_auto_is_the_first_that_fits_every_rank(monkeypatch, others, expected):
    monkeypatch.setattr(
        "segtrain.training.start.numerics.fitting", lambda device: ("bf16", "fp16", "tf32", "fp32")
    )

    def reduce(self: Strategy, value: torch.Tensor) -> torch.Tensor:
        return value + sum(
            torch.tensor([name in fits for name in precision.AUTO]).long() for fits in others
        )

    monkeypatch.setattr(Strategy, "reduce", reduce)
    ranks = Strategy("ddp", Cluster(0, 1 + len(others), 0, 1 + len(others)), CPU, Parallel())
    assert chosen_precision("auto", ranks) == expected
    assert chosen_precision("fp32", ranks) == "fp32"


def test_fp16_and_tf32_need_a_gpu():
    for name in ("fp16", "tf32"):
        with refused("precision-needs-gpu"):
            precision.refuse_unfit(name, CPU)
        with pytest.raises(Exception, match="needs a GPU"):
            Config(train={"device": "cpu", "precision": name})
    precision.refuse_unfit("bf16", CPU)


def test_only_tf32_turns_on_tf32(monkeypatch):
    monkeypatch.setattr("segtrain.training.start.numerics.refuse_unfit", lambda *_: None)
    single = Strategy("single", Cluster(), CPU, Parallel())
    with precision.tf32(True):
        for name in ("fp32", "bf16", "tf32"):
            assert set_numerics(Config(train={"precision": name}), single) == name
            flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
            assert flags == (name == "tf32",) * 2
        with precision.tf32(False):
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("deterministic", [False, True])
def test_cudnn_tries_no_kernels_in_training(deterministic, monkeypatch):
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda _: None)
    # by the program that calls segtrain.train
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    set_numerics(
        Config(train={"deterministic": deterministic}),
        Strategy("single", Cluster(), CPU, Parallel()),
    )
    assert not torch.backends.cudnn.benchmark

"""Tests of the kernels without a GPU: in Triton's interpreter, compiled for GPUs, and when they are
chosen.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import refused
from torch import nn

from segtrain import kernels
from segtrain.config import Loss
from segtrain.data.pixels import normalize
from segtrain.losses import build_criterion, low_res_loss, low_res_totals, lowlogits, ways
from segtrain.losses.upsampling import axes
from segtrain.models import fused as layers

ROOT = Path(__file__).parents[2]
ROUNDING = 2e-5  # of float32, relative to the largest value


def needs_triton() -> Any:
    return pytest.importorskip("triton", reason="triton comes with torch for CUDA, on Linux")


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    """What kernel_cases.py printed."""
    needs_triton()
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tests/kit/kernel_cases.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(("kind", "number"), [("maps", 10), ("loss", 5)])
def test_values_and_gradients_are_those_of_the_plain_loss_in_float64(cases, kind, number):
    found = {case.pop("case"): case for case in map(dict, cases) if case["case"].startswith(kind)}
    assert len(found) == number
    wrong = {name: case for name, case in found.items() if not max(case.values()) <= ROUNDING}
    assert not wrong


def test_logits_of_16_bits_are_computed_in_float32(cases):
    """The gradient itself has 16 bits, and 8 or 11 of them are mantissa."""
    bounds = {"half torch.bfloat16": 2**-8, "half torch.float16": 2**-11}
    for case in cases:
        if case["case"] in bounds:
            assert case["value"] <= ROUNDING, case
            assert case["gradient"] <= bounds.pop(case["case"]), case
    assert not bounds


def test_layers_give_the_values_and_gradients_of_torch_in_float64(cases):
    found = {case.pop("case"): case for case in map(dict, cases) if "layer" in case["case"]}
    assert len(found) == 7
    assert {name: case for name, case in found.items() if not max(case.values()) <= 1e-6} == {}
    # Several layers, whose gradients nearly cancel before a batch norm; and 8 bits of mantissa.
    for name, bound in {"block": 1e-4, "bfloat16 norm": 2**-7}.items():
        (case,) = [case for case in map(dict, cases) if case.pop("case") == name]
        assert max(case.values()) <= bound, case


def test_layers_without_kernels_or_with_wrong_ones_stay_those_of_torch(monkeypatch):
    def used(names: tuple[str, ...] = ("batch_norm",)) -> str:
        norm = nn.BatchNorm2d(3)
        layers.use_kernels(norm, names, torch.device("cpu"), print)
        return type(norm).__name__

    assert used(()) == "BatchNorm2d"  # without a warning
    with pytest.warns(UserWarning, match="no effect, because it needs an NVIDIA GPU"):
        assert used() == "BatchNorm2d"
    monkeypatch.setattr(kernels, "unavailable", lambda device: "")
    monkeypatch.setattr(kernels, "launch", lambda *_, **__: None)
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
    with pytest.warns(UserWarning, match="because its kernels are off by"):
        assert used() == "BatchNorm2d"
    monkeypatch.setattr(kernels, "launch", None)
    with pytest.warns(UserWarning, match="because its kernels do not run here"):
        assert used() == "BatchNorm2d"
    monkeypatch.setattr(layers, "_fault", lambda device: "")
    assert used() == "FusedBatchNorm2d"
    plain, fused = nn.BatchNorm2d(3).double(), nn.BatchNorm2d(3).double()
    layers.use_kernels(fused, ("batch_norm",), torch.device("cpu"), print)
    for train in (True, False):  # float64 has no kernel
        x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
        assert torch.equal(fused.train(train)(x, x, True), (plain.train(train)(x) + x).relu())
    assert torch.equal(fused.running_var, plain.running_var)


def test_images_are_normalized_as_by_the_operators_of_torch(cases):
    """float32 to its rounding, without colors to the bit. Half precision to one step, as the
    interpreter cuts bits off.
    """
    bounds = {
        "images torch.float32": 2e-6,
        "images torch.bfloat16": 2**-6,
        "images torch.float16": 2**-9,
    }
    for case in map(dict, cases):
        name = case.pop("case")
        if name in bounds:
            assert len(case) == 6
            assert max(case.values()) <= bounds.pop(name), (name, case)
            if name == "images torch.float32":
                assert case["plain False"] == case["plain True"] == 0
    assert not bounds


def test_images_are_normalized_by_the_kernels_only_if_these_are_right(monkeypatch):
    """On a stand-in for a GPU, where the kernels are first missing, then fail, then write zeros,
    then the right values.
    """
    images = torch.randint(0, 256, (2, 5, 7, 3), dtype=torch.uint8)
    expected = normalize.normalize(images)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)

    def made(launch: Any) -> torch.Tensor:
        monkeypatch.setattr(kernels, "launch", launch)
        monkeypatch.setattr(normalize, "_FAULTS", {})
        return [normalize.normalize(images) for _ in range(2)][-1]

    with pytest.warns(UserWarning, match="instead of one: it needs an NVIDIA GPU") as told:
        assert torch.equal(made(None), expected)
    assert len(told) == 1
    monkeypatch.setattr(kernels, "unavailable", lambda device: "")
    with pytest.warns(UserWarning, match="do not run here"):
        assert torch.equal(made(None), expected)
    with pytest.warns(UserWarning, match="off by"):
        assert torch.equal(
            made(lambda name, device, grid, warps, levels, out, *_, **__: out.zero_()), expected
        )
    right = made(
        lambda name, device, grid, warps, levels, out, *_, **__: out.copy_(expected + 1e-5)
    )
    assert torch.equal(right, expected + 1e-5)


def bilinear(low: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return torch.nn.functional.interpolate(low, size, mode="bilinear")


Launch = tuple[str, tuple[Any, ...], dict[str, Any]]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """In place of launches: each kernel's name, its arguments, and its flags."""
    found: list[Launch] = []

    def launch(
        name: str, device: Any, grid: Any, warps: int, *arguments: Any, **flags: Any
    ) -> None:
        found.append((name, arguments, {**flags, "num_warps": warps}))

    monkeypatch.setattr(kernels, "launch", launch)
    return found


def fused(low: torch.Tensor, everything: bool) -> None:
    """The launches of a loss of logits (N, C, h, w) that are upsampled 4 times: the usual, or of
    every kind.
    """
    target = torch.zeros(len(low), 4 * low.shape[2], 4 * low.shape[3], dtype=torch.uint8)
    tables = axes(bilinear, low, (target.shape[1], target.shape[2]))
    assert tables is not None
    logits, factors = lowlogits.LowLogits(low, target, 255, tables), torch.ones(low.shape[1])
    logits.gradient(logits.nll().sum())
    logits.class_sums()
    if everything:
        logits.gradient((logits.nll() + logits.sum_p(factors) + logits.sum_nll(factors)).sum())


TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
    torch.int32: "*i32",
}
SCALARS = {int: "i32", float: "fp32"}


@pytest.mark.parametrize(
    ("capability", "dtype", "number"), [(70, torch.float16, 13), (90, torch.bfloat16, 17)]
)
def test_kernels_compile_for_gpus_and_spill_no_registers(
    capability, dtype, number, launches, monkeypatch, tmp_path
):
    triton = needs_triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    if not (tools / "cuobjdump").exists():
        pytest.skip(f"Triton {triton.__version__} has no cuobjdump")
    everything = number > 13
    fused(torch.zeros(1, 19, 32, 40, dtype=dtype), everything)
    levels = torch.zeros(2, 32, 40, 3, dtype=torch.uint8)
    looks = (
        (torch.zeros(2, 10), torch.zeros(2, 4, dtype=torch.int32)) if everything else (None, None)
    )
    how = (normalize.IMAGENET_MEAN, normalize.IMAGENET_STD, everything, *looks, dtype)
    normalize._by_kernels(levels, *how)
    norm, conv = nn.BatchNorm2d(70), nn.Conv2d(70, 70, 3, padding=1, groups=70)
    rows = nn.LayerNorm(512)
    names = ("batch_norm", "layer_norm", "depthwise")
    layers._convert(nn.ModuleList([norm, conv, rows]), names, print)
    x = torch.zeros(2, 70, 8, 512, dtype=dtype, requires_grad=True)
    rows(conv(norm(x, x, True))).sum().backward()
    found = {}
    for name, arguments, flags in launches:
        module, _, function = name.partition(".")
        kernel = getattr(importlib.import_module(f"segtrain.kernels.{module}"), function)
        options = {"num_warps": flags.pop("num_warps"), "enable_fp_fusion": True}
        given = [
            TYPES[value.dtype] if isinstance(value, torch.Tensor) else SCALARS[type(value)]
            for value in arguments
        ]
        # Triton takes the number 1 for a constant.
        flags |= {
            name: 1
            for name, value in zip(kernel.arg_names, arguments)
            if isinstance(value, int) and value == 1
        }
        kinds = {**dict(zip(kernel.arg_names, given)), **dict.fromkeys(flags, "constexpr")}
        signature = {key: kinds[key] for key in kernel.arg_names}
        aligned = {
            (n,): [["tt.divisibility", 16]]
            for n, kind in enumerate(signature.values())
            if kind[0] == "*"
        }
        source = ASTSource(kernel, signature, constexprs=flags, attrs=aligned)
        compiled = triton.compile(source, GPUTarget("cuda", capability, 32), options)
        cubin = tmp_path / f"{name}.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        told = subprocess.run(
            [tools / "cuobjdump", "--dump-resource-usage", cubin], capture_output=True, text=True
        )
        numbers = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", told.stdout)
        assert numbers is not None, told.stdout + told.stderr
        found[f"{name} {[key for key, value in flags.items() if value is True]}"] = tuple(
            map(int, numbers.groups())
        )
    print(found)  # registers per thread, stack, local memory
    assert len(found) == number
    assert {name: use for name, use in found.items() if use[1:] != (0, 0)} == {}


def wanted(
    monkeypatch: pytest.MonkeyPatch, fault: str, terms: str = "ce", way: str = "auto"
) -> tuple[str, list[str]]:
    """The way that a GPU would choose, and those that were timed; fused takes 2 ms, products 1 ms,
    direct 3 ms.
    """
    low, timed = torch.zeros(1, 3, 4, 4), []
    took = {"fused": 2.0, "products": 1.0, "direct": 3.0}
    monkeypatch.setattr(ways, "fused_fault", lambda *_: fault)
    monkeypatch.setattr(ways, "_took", lambda trial, way: timed.append(way) or took[way])
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(ways, "_CHOSEN", ways.weakref.WeakKeyDictionary())
    criterion = build_criterion(Loss(terms=[terms]), 3)
    return ways.chosen(way, criterion, low, torch.zeros(1, 8, 8), bilinear, lambda way: None), timed


def test_the_fastest_of_the_ways_that_are_right_is_chosen(monkeypatch):
    assert wanted(monkeypatch, "") == ("products", ["fused", "products", "direct"])
    with pytest.warns(UserWarning, match="leaves out the fused loss: a reason"):
        assert wanted(monkeypatch, "a reason") == ("products", ["products", "direct"])
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert wanted(monkeypatch, "") == ("fused", [])


def test_a_fused_loss_that_is_impossible_is_refused(monkeypatch):
    assert wanted(monkeypatch, "", way="fused") == ("fused", [])
    with refused("fused-loss", key="loss.upsample"):
        wanted(monkeypatch, "a reason", way="fused")
    monkeypatch.undo()
    criterion, low = build_criterion(Loss(), 3), torch.zeros(1, 3, 4, 4)
    target = torch.zeros(1, 8, 8, dtype=torch.uint8)
    with refused("fused-loss", key="loss.upsample") as info:
        low_res_loss(criterion, low, target, criterion.totals(None, target), bilinear, "fused")
    assert "needs an NVIDIA GPU" in str(info.value)
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (6, 1))
    monkeypatch.setattr(kernels, "no_triton", lambda: "")
    assert "(6, 1)" in ways.unavailable(criterion, gpu)
    assert "lovasz" in ways.unavailable(build_criterion(Loss(terms=["ce", "lovasz"]), 3), gpu)
    monkeypatch.undo()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert "package triton" in ways.unavailable(criterion, gpu)


def test_kernels_that_fail_or_give_other_values_are_found(monkeypatch):
    """The launches write nothing here, so the values are whatever was in memory: zeros."""
    needs_triton()
    low, target = torch.randn(2, 3, 4, 4), torch.randint(0, 3, (2, 8, 8))
    criterion = build_criterion(Loss(), 3)
    monkeypatch.setattr(ways, "unavailable", lambda *_: "")
    monkeypatch.setattr(kernels, "launch", lambda *_, **__: None)
    monkeypatch.setattr(lowlogits.LowLogits, "_map", lambda self: torch.zeros(self._target.shape))
    assert "other values" in ways.fused_fault(criterion, low, target, bilinear)
    monkeypatch.delattr(lowlogits.LowLogits, "_map")
    assert "AttributeError" in ways.fused_fault(criterion, low, target, bilinear)
    assert "not bilinear" in ways.fused_fault(
        criterion, low, target, lambda low, size: bilinear(low, size) ** 2
    )
    nearest = torch.nn.functional.interpolate
    assert "not bilinear" in ways.fused_fault(
        criterion, low, target, lambda low, size: nearest(low, size, mode="bicubic")
    )


def test_on_a_cpu_auto_is_direct():
    criterion, low = build_criterion(Loss(terms=["dice"]), 3), torch.randn(2, 3, 4, 4)
    target = torch.zeros(2, 8, 8, dtype=torch.uint8)
    totals = [low_res_totals(criterion, low, target, bilinear, way) for way in ("auto", "direct")]
    assert torch.equal(*totals)

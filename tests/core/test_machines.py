"""The table of GPUs: rates of data sheets that agree with each other, and the speed that follows
from them.
"""

from __future__ import annotations

import pytest

from segtrain.machines import gpus, machines, sources
from segtrain.machines.gpu_names import gpu_named


def test_rates_of_a_row_agree_with_each_other():
    for gpu in gpus().values():
        assert gpu.memory_gbs > 100
        assert gpu.watts > 50
        assert gpu.mixed >= (gpu.fp32 or 0)
        if gpu.tf32:
            assert gpu.fp16 is not None
            assert 1.9 <= gpu.fp16 / gpu.tf32 <= 2.1, gpu  # half the bits, twice the rate
            assert gpu.bf16 == gpu.fp16 or gpu.arch == "gfx908"
    named = {row.name: row.gpu for row in machines().values() if row.gpus}
    assert set(named.values()) <= set(gpus())
    assert {"arch", "sheet", "pages"} == set(sources("gpus"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Tesla V100", "V100"),
        ("V100-PCIe-16", "V100-PCIe"),
        ("A100-SXM-80", "A100-80GB"),
        ("GeForce GTX 1080 Ti 11GB", "GTX 1080 Ti"),
        ("2080 Ti", "RTX 2080 Ti"),
        ("A10", "A10"),
        ("P100-SXM2", "P100"),
        ("P100-PCIe-16", "P100-PCIe"),
        ("H100-SXM5-80", "H100"),
        ("TPU v3-8", "TPU v3"),
        ("Titan RTX", "TITAN RTX"),
        ("RTX3090", "RTX 3090"),
        ("Quadro RTX 8000", "Quadro RTX 8000"),
        ("nvidia_h100_80gb_hbm3", "H100"),
        ("tesla_v100s", "V100S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ],
)
def test_names_of_gpus(text, name):
    found = gpu_named(text)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu",
        "odd9",
        "Voodoo 2",
        "nvidia_a100_3g.20gb",
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "v1000",
        "RTX A1000",
        "at4",
    ],
)
def test_names_of_no_gpu_of_the_table(text):
    assert gpu_named(text) is None

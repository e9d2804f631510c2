"""The table of GPUs: rates of data sheets that agree with each other, and the speed that follows from them."""

from __future__ import annotations

import pytest

from segtrain.machines import gpus, machines, sources


def test_rates_of_a_row_agree_with_each_other() -> None:
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


def test_speeds_are_those_of_the_open_pages() -> None:
    """NVIDIA's page of ResNet-50 v1.5: 1200 and 2470 images/s to train, T4 and V100 1190 and 3249 images/s to predict."""
    speed = {name: gpu.speed for name, gpu in gpus().items()}
    assert speed["V100"] == pytest.approx(1)
    assert speed["A100-80GB"] == pytest.approx(2470 / 1200, rel=0.02)  # the figure that the formula is fitted to
    assert speed["T4"] == pytest.approx(1190 / 3249, rel=0.25)
    assert speed["T4"] < speed["A10G"] < speed["V100"] < speed["A100-40GB"] < speed["H100"] < speed["H200"]

"""The buckets of gradients that DistributedDataParallel is asked for."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from segtrain.config import Parallel
from segtrain.parallel.model import wrap


@pytest.mark.parametrize("bucket_mb", [25.0, 5.0])
def test_the_first_bucket_is_small_by_default(monkeypatch, bucket_mb):
    """Newer torch makes the first bucket small, so that sending begins early, only if no limit is
    given.
    """
    default = (
        inspect.signature(nn.parallel.DistributedDataParallel).parameters["bucket_cap_mb"].default
    )
    given: dict[str, Any] = {}

    def wrapped(model: nn.Module, **words: Any) -> nn.Module:
        given.update(words)
        return model

    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", wrapped)
    wrap(
        nn.Linear(2, 2),
        "ddp",
        Parallel(bucket_mb=bucket_mb, sync_bn=False),
        torch.device("cpu"),
        2,
        lambda network: network,
    )
    assert given["bucket_cap_mb"] == (default if bucket_mb == 25 else bucket_mb)
    assert default in (None, 25)

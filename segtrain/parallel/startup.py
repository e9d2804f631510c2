"""A stand-in for torch's compiler, which runs that compile nothing would import before their first step."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

COMPILER = "torch._dynamo"


@contextlib.contextmanager
def compiler_kept_out(wanted: bool = True) -> Iterator[None]:
    """DistributedDataParallel and torch's optimizers import the compiler (1 to 2 s) only to tell it to keep out.

    Inside the context they tell it to a stand-in. Whoever asks the stand-in for more gets the real compiler, imported
    there and then. Does nothing when the compiler is imported already, or with ``wanted=False`` (a run that compiles).
    """
    if not wanted or COMPILER in sys.modules:
        yield
        return
    standin = ModuleType(COMPILER)

    def more(name: str) -> Any:
        _take_away(standin)
        return getattr(importlib.import_module(COMPILER), name)

    standin.__dict__.update(
        graph_break=lambda *_, **__: None,
        disable=lambda function, *_, **__: function,
        utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
        __getattr__=more,
    )
    sys.modules[COMPILER] = standin
    torch._dynamo = standin
    try:
        yield
    finally:
        _take_away(standin)


def _take_away(standin: ModuleType) -> None:
    if sys.modules.get(COMPILER) is standin:
        del sys.modules[COMPILER]
    if torch.__dict__.get("_dynamo") is standin:
        del torch.__dict__["_dynamo"]

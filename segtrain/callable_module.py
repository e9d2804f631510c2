"""Modules that are also functions: ``segtrain.train(config)`` and ``segtrain.train.loop`` both work."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(name: str, home: str, function: str) -> None:
    """Make the module ``name`` callable. A call imports the module ``home`` and calls its ``function``.

    A function cannot take the place of the module: each import would put the module back.
    """

    class CallableModule(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(home), function)(*args, **kwargs)

    sys.modules[name].__class__ = CallableModule

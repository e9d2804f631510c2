"""Modules that are also functions: ``segtrain.train(config)`` and ``segtrain.train.loop`` both work."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(name: str, home: str, function: str) -> None:
    """Let calling the module ``name`` call ``function`` of the module ``home``, which is imported at the first call.

    A function cannot take the module's name: the import system puts the module there whenever it is imported.
    """

    class CallableModule(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(home), function)(*args, **kwargs)

    sys.modules[name].__class__ = CallableModule

"""segtrain: a distributed trainer for semantic segmentation.

    import segtrain

    config = segtrain.Config.load("mine.yaml", "train.duration=5ep")
    run = segtrain.train(config)
    print(run.scores.miou)
    masks = segtrain.load(run.path).predict(["photo.jpg"])

Everything is imported when it is first used: ``import segtrain`` imports no torch. docs/python.md
describes each name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segtrain import data as data
    from segtrain import losses as losses
    from segtrain.api import Run as Run
    from segtrain.api import evaluate as evaluate
    from segtrain.api import train as train
    from segtrain.config import Config as Config
    from segtrain.infer.export import export as export
    from segtrain.infer.predictor import Predictor as Predictor
    from segtrain.infer.predictor import load as load
    from segtrain.insight.plan.probe import plan as plan

__version__ = "0.2.0"

__all__ = [
    "Config",
    "Predictor",
    "Run",
    "data",
    "evaluate",
    "export",
    "load",
    "losses",
    "plan",
    "train",
]

# Name -> the module to import it from. Names in __all__ that are missing here are modules. No
# package has the name of a function: importing it would put the package in the function's place.
_HOME = {
    "Config": "config",
    "Predictor": "infer.predictor",
    "Run": "api",
    "evaluate": "api",
    "export": "infer.export",
    "load": "infer.predictor",
    "plan": "insight.plan.probe",
    "train": "api",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'segtrain' has no attribute {name!r}")
    found = import_module(f"segtrain.{_HOME.get(name, name)}")
    return getattr(found, name) if name in _HOME else found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Gradients that a run on one rank would exchange on several, from the network of its config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segtrain.config import make_config, read_parts
from segtrain.diagnose.evidence import Evidence
from segtrain.errors import SegtrainError
from segtrain.runs.find import read_mapping

Gradients = tuple[tuple[float, float], ...]
_HALVED = ("fp16", "bf16")  # values of parallel.compress


def gradients_of(home: Path, settings: Mapping[str, Any]) -> tuple[Gradients, str]:
    """(bytes, share of the backward pass after which it is ready) of each gradient, and why they are not known.

    ``home``: the run folder. ``settings``: of its config.yaml. One of the two is empty.
    """
    names = read_mapping(home / "labels.json").get("names")
    if not settings or not isinstance(names, list):
        return (), "the run folder has no config.yaml and labels.json"
    if "model" in read_parts(home):
        return (), "the model was passed in from Python, and is not in the config"
    try:
        from segtrain.plan.dry import DryModel

        config = make_config(dict(settings), str(home), saved=True)
        found = DryModel(config, len(names), 2).step(2).gradients
    except ImportError as error:  # a laptop that only launches
        return (), f"this Python has no {error.name}"
    except SegtrainError as error:
        return (), str(error).splitlines()[0]
    share = 0.5 if config.parallel.compress in _HALVED else 1.0
    return tuple((share * size, ready) for size, ready in found), ""


def recorded(evidence: Evidence) -> Gradients:
    """The same as the run has measured it; () if it has not."""
    found = next(iter(evidence.of("gradients")), {})
    sizes, ready = found.get("bytes"), found.get("ready")
    compress = evidence.setting("parallel.compress", "none")
    if not isinstance(sizes, list) or not isinstance(ready, list) or compress == "powersgd":
        return ()
    if len(sizes) != len(ready) or not all(isinstance(value, (int, float)) for value in (*sizes, *ready)):
        return ()
    share = 0.5 if compress in _HALVED else 1.0
    return tuple((share * size, place) for size, place in zip(sizes, ready))

"""The model of a run that was trained with a module of the user's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from segtrain.config import read_parts
from segtrain.errors import ConfigError
from segtrain.models.base import SegModel
from segtrain.models.own import as_seg_model


def own_model(run_dir: Path, given: nn.Module | None, num_classes: int) -> SegModel | None:
    """``given``, or a new instance of the class that the run was trained with; None if the config describes the model.

    A class is only made if its module is imported already and it takes no arguments: nothing is imported by a name that stands in a
    run folder. Raises ConfigError if the module must be passed.
    """
    name = read_parts(run_dir).get("model", "")
    if not name and given is None:
        return None
    if given is None:
        given = _instance(name)
    if given is None:
        raise ConfigError(
            f"{run_dir} was trained with the module {name}: pass it in Python, as in segtrain.load({str(run_dir)!r}, "
            f"model={name.rpartition('.')[2]}(...))",
            code="own-model-missing",
            model=name,
        )
    return as_seg_model(given, num_classes)


def _instance(name: str) -> nn.Module | None:
    module, _, attribute = name.rpartition(".")
    kind = getattr(sys.modules.get(module), attribute, None)
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        return None
    try:
        return kind()
    except TypeError:  # it takes arguments
        return None


def fill(model: SegModel, weights: Mapping[str, Tensor], source: str) -> nn.Module:
    """``model`` with ``weights``, in evaluation mode. Raises ConfigError for weights that do not fit."""
    from segtrain.checkpoint import misfits

    odd = misfits(model.state_dict(), weights)
    if odd:
        raise ConfigError(
            f"the weights of {source} do not fit the module that was passed ({len(odd)} tensors; {odd[0]}): construct it as for "
            "the training",
            code="own-model-misfit",
            found=odd[0],
        )
    model.load_state_dict(weights)
    return model.eval()

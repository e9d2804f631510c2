"""Loader of the model, config, and labels of a run folder or of the folder of an export."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from segtrain import json_text
from segtrain.config import Config, Model, load_saved, make_config, read_parts
from segtrain.data.labels.space import LabelSpace
from segtrain.errors import CheckpointError, ConfigError, DataError
from segtrain.models.base import SegModel
from segtrain.models.own import as_seg_model


def load_run(
    run_dir: str | Path, which: str = "best", module: nn.Module | None = None
) -> tuple[nn.Module, Config, LabelSpace]:
    """The model of a run in evaluation mode on the CPU, its config, and its labels.

    which: ``best`` (by validation mIoU; the newest if nothing has been scored yet) or ``last``. The moving average of
    the weights is taken if the run keeps one. The folder of an export works as well; of its config only ``model``,
    ``eval``, ``data.crop``, ``data.base_scale``, ``data.bits``, and ``data.extra_bands`` are those of the run.
    module: the network, if the run was trained with a module of the user.
    Raises ConfigError if the folder is not a run, CheckpointError if the weights are missing, damaged, or do not fit.
    """
    from segtrain.checkpoint import load_weights

    run_dir = Path(run_dir)
    if (run_dir / "model.json").is_file() and not (run_dir / "config.yaml").is_file():
        model, facts = load_export(run_dir, module)
        return model, exported_config(facts), LabelSpace.from_dict(facts["labels"])
    config, labels = read_description(run_dir)
    network = _network(config.model, labels.num_classes, read_parts(run_dir).get("model", ""), module, str(run_dir))
    return _filled(network, load_weights(run_dir, which), str(run_dir)), config, labels


def read_description(run_dir: str | Path) -> tuple[Config, LabelSpace]:
    """``config.yaml`` and ``labels.json`` of a run folder."""
    run_dir = Path(run_dir)
    if not (run_dir / "config.yaml").is_file():
        raise ConfigError(
            f"{run_dir} is not a run folder: it has no config.yaml (segtrain runs DIR lists runs)",
            code="not-a-run-folder",
            folder=str(run_dir),
        )
    try:
        content = json_text.parse((run_dir / "labels.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not valid JSON"
        raise CheckpointError(
            f"cannot read {run_dir / 'labels.json'} ({reason}): start the training again, which writes it",
            code="labels-unreadable",
            file=str(run_dir / "labels.json"),
        ) from None
    try:
        return load_saved(run_dir / "config.yaml"), LabelSpace.from_dict(content)
    except DataError as error:
        raise CheckpointError(
            f"{run_dir / 'labels.json'}: {error}", code="labels-unreadable", file=str(run_dir / "labels.json")
        ) from None


def load_export(folder: str | Path, module: nn.Module | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """The model of an exported folder in evaluation mode, and the content of its model.json.

    module: the network, if the run was trained with a module of the user.
    Raises CheckpointError if a file is missing, damaged, or of another export.
    """
    from safetensors.torch import load

    folder = Path(folder)
    try:
        facts = json_text.parse((folder / "model.json").read_text(encoding="utf-8"))
        content = (folder / "weights.safetensors").read_bytes()
        digest = facts["weights"]["sha256"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{folder} is not a complete export ({type(error).__name__}: {error}): export the run again",
            code="export-incomplete",
            folder=str(folder),
        ) from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise CheckpointError(
            f"{folder / 'weights.safetensors'} is damaged, or belongs to another model.json: export the run again",
            code="export-damaged",
            file=str(folder / "weights.safetensors"),
        )
    settings, classes = exported_config(facts).model, LabelSpace.from_dict(facts["labels"]).num_classes
    network = _network(settings, classes, facts.get("module", ""), module, str(folder))
    return _filled(network, load(content), str(folder)), facts


def exported_config(facts: Mapping[str, Any]) -> Config:
    """The part of the run's config that model.json keeps."""
    given = facts["input"]
    data = {"crop": given["crop"], "base_scale": given["scale"], **given.get("reading", {})}
    return make_config({"model": facts["model"], "eval": facts["eval"], "data": data}, "model.json")


def assemble(settings: Model, num_classes: int, weights: Mapping[str, Tensor], source: str) -> nn.Module:
    """The model that ``settings`` describe, with ``weights``, in evaluation mode; no pretrained file is fetched."""
    return _filled(_network(settings, num_classes, "", None, source), weights, source)


def _network(settings: Model, num_classes: int, name: str, module: nn.Module | None, source: str) -> SegModel:
    """The network that ``settings`` describe, or the user's: ``module``, else a new instance of the class ``name``.

    A class is only made if its module is imported already and it takes no arguments: nothing is imported by a name that
    stands in a run folder. Raises ConfigError if the module must be passed.
    """
    from segtrain.models import build_model

    if not name and module is None:
        return build_model(settings.model_copy(update={"encoder_weights": None}), num_classes)
    place, _, attribute = name.rpartition(".")
    kind = getattr(sys.modules.get(place), attribute, None)
    if module is None and isinstance(kind, type) and issubclass(kind, nn.Module):
        with contextlib.suppress(TypeError):  # it takes arguments
            module = kind()
    if module is None:
        raise ConfigError(
            f"{source} was trained with the module {name}: pass it in Python, as in segtrain.load({source!r}, "
            f"model={attribute}(...)); segtrain.evaluate and segtrain.export(folder, out, model=...) take it as well",
            code="own-model-missing",
            model=name,
        )
    return as_seg_model(module, num_classes)


def _filled(model: SegModel, weights: Mapping[str, Tensor], source: str) -> nn.Module:
    """``model`` with ``weights``, in evaluation mode. Raises CheckpointError for weights that do not fit."""
    from segtrain.checkpoint import misfits

    odd = misfits(model.state_dict(), weights)
    if odd:
        raise CheckpointError(
            f"the weights of {source} do not fit {type(model).__name__} with {model.num_classes} classes "
            f"({len(odd)} tensors; {odd[0]}): build the network as for the training, with its config and labels",
            code="weights-unfit",
            source=source,
            found=odd,
        )
    model.load_state_dict(weights)
    return model.eval()

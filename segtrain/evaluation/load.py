"""Loader of the model, config, and labels in a run folder or an exported folder."""

from __future__ import annotations

import contextlib
import hashlib
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from segtrain.base import json_text
from segtrain.base.files import open_file, read_text
from segtrain.config import Config, Model, Origin, load_saved, make_config, read_parts
from segtrain.data.labels.space import LabelSpace
from segtrain.errors import CheckpointError, ConfigError, DataError
from segtrain.models import build_model
from segtrain.models.base import SegModel, as_seg_model
from segtrain.runfolder.checkpoint import load_weights, misfits


def load_run(
    run_dir: str | Path, which: str = "best", module: nn.Module | None = None
) -> tuple[SegModel, Config, LabelSpace]:
    """The model of a run in evaluation mode on the CPU, its config, and its labels.

    run_dir: a run folder or an exported folder. An exported folder holds one set of weights, and
    only a part of the config (see ``exported_config``).
    which: the checkpoint with the ``best`` score (the newest if nothing has been scored yet), or
    the ``last`` one. Both load the moving average of the weights if the run keeps one.
    module: the network, if the run was trained with the user's own module.
    Raises ConfigError if the folder is not a run, CheckpointError if the weights are missing,
    damaged, or do not fit.
    """
    run_dir = Path(run_dir)
    if (run_dir / "model.json").is_file() and not (run_dir / "config.yaml").is_file():
        model, facts = load_export(run_dir, module)
        return model, exported_config(facts), LabelSpace.from_dict(facts["labels"])
    config, labels = read_description(run_dir)
    name = read_parts(run_dir).get("model", "")
    form = labels.num_classes, config.data.channels
    network = _network(config.model, form, name, module, str(run_dir))
    weights, network.origin = load_weights(run_dir, which)
    return _filled(network, weights, str(run_dir)), config, labels


def read_description(run_dir: str | Path) -> tuple[Config, LabelSpace]:
    """``config.yaml`` and ``labels.json`` of a run folder."""
    run_dir = Path(run_dir)
    if not (run_dir / "config.yaml").is_file():
        why = f"{run_dir} is not a run folder: it has no config.yaml (segtrain runs DIR lists runs)"
        raise ConfigError(why, code="not-a-run-folder", folder=str(run_dir))
    config, file = load_saved(run_dir / "config.yaml"), run_dir / "labels.json"
    try:
        return config, LabelSpace.from_dict(json_text.parse(read_text(file)))
    except (OSError, ValueError, DataError) as error:
        reason = (
            "not valid JSON" if isinstance(error, ValueError) else getattr(error, "strerror", error)
        )
        why = f"cannot read {file} ({reason}): start the training again, which writes it"
        raise CheckpointError(why, code="labels-unreadable", file=str(file)) from None


def load_export(
    folder: str | Path, module: nn.Module | None = None
) -> tuple[SegModel, dict[str, Any]]:
    """The model of an exported folder in evaluation mode, and the content of its model.json.

    module: the network, if the run was trained with the user's own module.
    Raises CheckpointError if a file is missing, damaged, or belongs to another export.
    """
    from safetensors.torch import load

    folder = Path(folder)
    try:
        facts = json_text.parse(read_text(folder / "model.json"))
        with open_file(folder / "weights.safetensors", math.inf) as file:
            content = file.read()
        digest, name = facts["weights"]["sha256"], (facts.get("module") or "").strip()
        config, classes = exported_config(facts), LabelSpace.from_dict(facts["labels"]).num_classes
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DataError) as error:
        why = (
            f"{folder} is not a complete export ({type(error).__name__}: {error}): export the "
            "run again"
        )
        raise CheckpointError(why, code="export-incomplete") from None
    try:
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError("another checksum")
        weights = load(content)
    except Exception as error:  # safetensors raises errors of many types
        why = (
            f"{folder / 'weights.safetensors'} is damaged, or belongs to another model.json "
            f"({error})"
        )
        raise CheckpointError(f"{why}: export the run again", code="export-damaged") from None
    form = classes, config.data.channels
    network = _network(config.model, form, name, module, str(folder))
    network.origin = Origin(license=str(facts.get("license", ""))).changed(config.data)
    return _filled(network, weights, str(folder)), facts


def exported_config(facts: Mapping[str, Any]) -> Config:
    """The part of the run's config that model.json keeps."""
    given = facts["input"]
    data = {"crop": given["crop"], "base_scale": given["scale"], **given.get("reading", {})}
    data |= {"mean": given.get("mean"), "std": given.get("std")}
    return make_config({"model": facts["model"], "eval": facts["eval"], "data": data}, "model.json")


def assemble(
    settings: Model, form: tuple[int, int], weights: Mapping[str, Tensor], source: str
) -> SegModel:
    """The model that ``settings`` describe, with ``weights``, in evaluation mode; no pretrained
    file is fetched. ``form``: the numbers of classes and of bands.
    """
    return _filled(_network(settings, form, "", None, source), weights, source)


def _network(
    settings: Model, form: tuple[int, int], name: str, module: nn.Module | None, source: str
) -> SegModel:
    """The network that ``settings`` describe, or the user's own: ``module``, or a new instance of
    the class ``name``.

    A name in a run folder is never imported, so the class must already be imported, and must take
    no arguments. Otherwise raises ConfigError, which asks the user to pass the module.
    """
    if not name and module is None:
        return build_model(settings.model_copy(update={"encoder_weights": None}), *form)
    package, _, attribute = name.rpartition(".")
    kind = getattr(sys.modules.get(package), attribute, None)
    if module is None and isinstance(kind, type) and issubclass(kind, nn.Module):
        with contextlib.suppress(TypeError):  # it takes arguments
            module = kind()
    if module is None:
        fix = (
            f"pass model={attribute}(...) to segtrain.load, segtrain.evaluate, or "
            "segtrain.export(folder, out, model=)"
        )
        raise ConfigError(
            f"{source} was trained with the module {name}: {fix}", code="own-model-missing"
        )
    return as_seg_model(module, form[0])


def _filled(model: SegModel, weights: Mapping[str, Tensor], source: str) -> SegModel:
    """``model`` with ``weights``, in evaluation mode. Raises CheckpointError for weights that do
    not fit.
    """
    remarks = misfits(model.state_dict(), weights)
    if remarks:
        why = (
            f"the weights of {source} do not fit {type(model).__name__} with "
            f"{model.num_classes} classes"
        )
        fix = "build the network as for the training, with its config and labels"
        text = f"{why} ({len(remarks)} tensors; {remarks[0]}): {fix}"
        raise CheckpointError(text, code="weights-unfit", source=source, found=remarks)
    model.load_state_dict(weights)
    model.eval()
    return model

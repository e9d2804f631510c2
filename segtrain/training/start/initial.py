"""``model.init``: begins a run with the weights of another run, an export, or a file; matches head
rows by class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segtrain.base import json_text
from segtrain.config import Origin
from segtrain.errors import ConfigError, some_of
from segtrain.evaluation.load import load_export, read_description
from segtrain.models.base import SegModel
from segtrain.models.weights import (
    StateDict,
    fill,
    misfit,
    read_weights,
    refuse_not_finite,
    renamed,
)
from segtrain.parallel.collective import digest, names_of, outliers_of
from segtrain.parallel.strategy import Strategy
from segtrain.runfolder import checkpoint
from segtrain.training.state import on_every_rank

KEY = "model.init"
SHOWN = 6  # names in one line
_FIX = "set model.arch, model.encoder and model.options as the weights were trained with"


@dataclass(frozen=True)
class Initial:
    """The weights that a network began with: names of tensors, and of classes with their own row in
    the head.
    """

    source: str
    taken: tuple[str, ...]  # tensors that were taken whole
    # classes whose head rows were taken; empty if the head was taken whole or not at all
    rows: tuple[str, ...]
    new: tuple[str, ...]  # tensors that the source lacks: they keep their random values
    new_rows: tuple[str, ...]  # classes that the source lacks
    left: tuple[str, ...]  # tensors of the source that this network has no place for
    remark: str = ""
    origin: Origin | None = None  # of its network, if the source says it

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "origin": self.origin and vars(self.origin)}

    def lines(self) -> list[str]:
        """Text for the terminal: one line for each kind of tensors or rows that is not empty."""
        texts = [f"began with {self.source}: {len(self.taken)} tensors taken"]
        if self.rows or self.new_rows:
            rows, new_rows = (
                some_of(names, SHOWN) or "none" for names in (self.rows, self.new_rows)
            )
            texts.append(f"head: taken for {rows}; new for {new_rows}")
        if self.new:
            texts.append(
                f"still random, {len(self.new)} tensors that are not in it: "
                f"{some_of(self.new, SHOWN)}"
            )
        if self.left:
            left = some_of(self.left, SHOWN)
            texts.append(
                f"left out, {len(self.left)} tensors that this network has no place for: {left}"
            )
        return [*texts, *([self.remark] if self.remark else [])]


def read_source(source: str) -> tuple[dict[str, Tensor], tuple[str, ...], Origin | None]:
    """Weights by name, their class names (empty where the file does not say), and origin. Raises
    SegtrainError.

    ``source``: a run folder (its best checkpoint), the folder of an export, or a file (see
    ``weights.read_weights``).
    """
    path = Path(source)
    if not path.is_dir():
        tensors, origin = read_weights(path, KEY)
        return tensors, _names_beside(path), origin
    if (path / "model.json").is_file() and not (path / "config.yaml").is_file():
        model, facts = load_export(path)
        return model.state_dict(), tuple(facts["labels"]["names"]), model.origin
    if not (path / "config.yaml").is_file():
        raise ConfigError(
            f"{KEY}={source}: the folder has no config.yaml and no model.json: name a run, an "
            "export, or a file",
            code="no-weights",
            key=KEY,
            found=source,
        )
    names = read_description(path)[1].names
    weights, origin = checkpoint.load_weights(path)
    return weights, names, origin


def _names_beside(path: Path) -> tuple[str, ...]:
    """The class names of EXPORT/weights.safetensors and RUN/checkpoints/step-N.pt, from the files
    beside them.
    """
    export = path.parent / "model.json"
    run = path.parent.parent / "labels.json"
    try:
        if export.is_file():
            return tuple(map(str, json_text.read_json(export)["labels"]["names"]))
        if path.parent.name == "checkpoints" and run.is_file():
            return tuple(map(str, json_text.read_json(run)["names"]))
    except (KeyError, TypeError):
        pass
    return ()


def begin_with(network: SegModel, source: str, names: Sequence[str]) -> Initial:
    """Fill ``network`` from ``source``. ``names``: its classes, in the order of the logits.

    Rows of the head are matched by class name: a class that is also in the source gets its row from
    there, whatever its position. The rows of all other classes stay random. Raises SegtrainError if
    the source cannot be read, has tensors of other shapes, or has no tensor that fits.
    """
    tensors, theirs, origin = read_source(source)
    own = dict(network.state_dict(keep_vars=True))
    weights = renamed(tensors, own)
    heads = {id(p) for p in network.head_parameters()}
    head = [name for name, value in own.items() if id(value) in heads and name in weights]
    if any(weights[name].dim() == 0 or len(weights[name]) != len(theirs) for name in head):
        theirs = ()  # the labels beside the weights belong to another network
    by_name = bool(theirs) and tuple(theirs) != tuple(names)
    remark, skipped = "", head if by_name else []
    if not theirs and head:
        _refuse_misfits(
            {name: own[name] for name in head if own[name].dim() != weights[name].dim()},
            weights,
            source,
        )
        if all(weights[name].shape == own[name].shape for name in head):
            remark = (
                f"{source} does not name its classes: its {len(names)} rows of the head were taken "
                "in their order; check that it is the order of data.classes"
            )
        else:
            skipped, count = head, len(weights[head[0]])
            remark = (
                f"{source} has {count} classes without names: the head for {len(names)} "
                "classes is new"
            )
    _refuse_misfits(
        {name: value for name, value in own.items() if name not in skipped}, weights, source
    )
    taken = {name: weights[name] for name in own if name in weights and name not in skipped}
    if not any(value.dim() > 1 for value in taken.values()):
        raise ConfigError(
            f"{KEY}={source} has no tensor for this network: it holds "
            f"{some_of(sorted(tensors), SHOWN)}, this "
            f"network wants {some_of(sorted(own), SHOWN)}: {_FIX}",
            code="weights-do-not-fit",
            key=KEY,
            found=source,
        )
    common = [name for name in names if name in theirs] if by_name and head else []
    by_row = {name: weights[name] for name in head} if common else {}
    _refuse_misfits(
        {name: own[name][:1] for name in by_row},
        {name: v[:1] for name, v in by_row.items()},
        source,
    )
    refuse_not_finite({**taken, **by_row}, f"{KEY}={source}")
    with torch.no_grad():
        fill(own, taken)
        for name, value in by_row.items():
            rows = value[[theirs.index(label) for label in common]]
            own[name][[names.index(label) for label in common]] = rows.to(
                own[name].device, own[name].dtype
            )
    new = [name for name in own if name not in taken and name not in by_row]
    new_rows = [name for name in names if name not in common] if by_name and head else []
    left = [name for name in weights if name not in own]
    network.origin = origin or network.origin
    return Initial(
        source,
        tuple(taken),
        tuple(common),
        tuple(new),
        tuple(new_rows),
        tuple(left),
        remark,
        origin,
    )


def _refuse_misfits(own: StateDict, weights: StateDict, source: str) -> None:
    misfits = misfit(own, weights)
    if misfits:
        raise ConfigError(
            f"{KEY}={source} is of another network: {some_of(misfits, 1)}: {_FIX}",
            code="weights-do-not-fit",
            key=KEY,
            found=source,
        )


def begin_together(
    network: SegModel, source: str, names: Sequence[str], strategy: Strategy
) -> Initial:
    """Call ``begin_with`` on every rank. Each rank reads the source on its own host. A collective.

    Raises ConfigError on every rank if one of them cannot read the source, or reads other weights
    than rank 0.
    """
    initial = on_every_rank(strategy, lambda: begin_with(network, source, names))
    weights = digest(network.state_dict().values(), torch.device("cpu"))
    outliers, _ = outliers_of(strategy, [int(weights)])
    if outliers:
        raise ConfigError(
            f"{KEY}={source}: {names_of(strategy, outliers)} found other weights there than rank "
            "0: bring the same file to every host",
            code="rank-weights-differ",
            key=KEY,
            ranks=outliers,
        )
    return initial


def _refuse_random(network: SegModel, initial: Initial | None) -> None:
    """Raises ConfigError if ``model.init`` left random tensors in a part that is frozen."""
    parts = network.frozen_parts()
    inside = {id(v) for part in parts for v in part.state_dict(keep_vars=True).values()}
    new = [
        name
        for name, value in network.state_dict(keep_vars=True).items()
        if id(value) in inside
        and initial
        and name in initial.new
        and not name.endswith("num_batches_tracked")
    ]
    if initial and new:
        part = network.frozen
        raise ConfigError(
            f"model.freeze={part} would keep random numbers: {initial.source} lacks {len(new)} "
            f"tensors of the {part} ({some_of(new, SHOWN)}): take weights of the whole {part}, "
            "or model.freeze=none",
            code="encoder-not-loaded",
            key="model.freeze",
            found=new,
        )


def starting_network(
    network: SegModel, init: str, freeze: str, names: Sequence[str], strategy: Strategy
) -> Initial | None:
    """Apply ``model.init`` and then ``model.freeze`` to a newly built network."""
    initial = begin_together(network, init, names, strategy) if init else None
    network.freeze(freeze)
    _refuse_random(network, initial)
    return initial

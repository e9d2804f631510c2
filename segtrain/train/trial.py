"""Trial of the user's own model and loss before the first step: their state, their gradients, and an evaluation."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from segtrain.data.index.subset import select
from segtrain.errors import ConfigError, SegtrainError, reason_of, some_of
from segtrain.losses.criterion import OwnLoss
from segtrain.models.base import OwnModel
from segtrain.observe.clock import Clock
from segtrain.parallel.model import load_state, taken, unsaved
from segtrain.train.graphs import noise
from segtrain.train.session import Session
from segtrain.train.step import gradients, running_statistics_kept

SHOWN = 3  # names in one error


def try_parts(session: Session) -> None:
    """Raise ConfigError if an own model or loss would fail later, or train wrong. Changes nothing. A collective."""
    learner = session.learner
    model, loss = learner.plain, learner.own_loss
    if not isinstance(model, OwnModel) and not any(isinstance(term, OwnLoss) for term in learner.criterion.terms):
        return
    with _kept(model) if isinstance(model, OwnModel) else running_statistics_kept(model), _kept(loss):
        _try_step(session)
        if isinstance(model, OwnModel):
            _try_evaluation(session)


@contextlib.contextmanager
def _kept(module: nn.Module) -> Iterator[None]:
    """Afterwards, the module has the attributes and the state that it had before.

    Raises ConfigError if a checkpoint would not give back its state.
    """
    state, file, saved = module.state_dict(), io.BytesIO(), dict[str, Any]()
    own = dict([*module.named_parameters(), *module.named_buffers()])
    before = taken(own, set(), lambda value: value)
    dicts = [each for part in module.modules() for each in (vars(part), part._buffers) if isinstance(each, dict)]
    attributes = [dict(each) for each in dicts]
    try:
        try:
            torch.save({**unsaved(module), **state}, file)
            file.seek(0)
            saved = torch.load(file, map_location="cpu", weights_only=True)
            for value in own.values():
                value.detach().copy_(value == 0)  # other values everywhere
            load_state(module, saved)
            lost = [name for name, value in own.items() if not torch.equal(value, before[name])]
            why = f"gives back other values of {some_of(lost, SHOWN)}" if lost else ""
        except Exception as error:  # anything that the user's code raises
            others = [name for name, value in state.items() if not isinstance(value, Tensor)]
            why = f"cannot be saved and loaded ({some_of([*others, reason_of(error)[:200]], SHOWN)})"
        if why:
            fix = "load_state_dict must read what torch.save wrote and torch.load(weights_only=True) read"
            text = f"the state dict of {type(module).__name__} {why}, so no run could resume: {fix}"
            raise ConfigError(text, code="state-not-restored", found=why)
        yield
    finally:
        for each, values in zip(dicts, attributes):
            each.clear()
            each.update(values)
        for name, value in own.items():
            value.detach().copy_(before[name])
    load_state(module, saved)


def _try_step(session: Session) -> None:
    """A step on noise without an update, and without the strategy's wrapper."""
    config, learner, strategy = session.config, session.learner, session.strategy
    images = config.train.batch_size // (config.train.accumulate * strategy.world_size)
    batch = noise(learner, images, session.plan.crop_and_scale(0)[0], strategy.device)
    untrained: list[str] = []

    def backward(value: Tensor) -> None:
        untrained.extend(_outside(value, learner.plain))
        value.backward()

    votes = torch.zeros(1, dtype=torch.float64, device=strategy.device)
    gradients(
        learner.plain, [learner.micro(batch)], learner.criterion, strategy, learner.precision, seed=0, votes=votes,
        aux_weight=config.loss.aux_weight, clock=Clock(), backward=backward,
    )  # fmt: skip
    named = {name: value for name, value in learner.plain.named_parameters() if value.requires_grad}
    unused = torch.tensor([value.grad is None for value in named.values()], dtype=torch.int64, device=strategy.device)
    learner.plain.zero_grad()
    if untrained and strategy.name != "fsdp":  # which has replaced the parameters
        raise ConfigError(
            f"no optimizer would train {len(untrained)} parameters outside of the model ({some_of(untrained, SHOWN)}): "
            "freeze those of a loss, or move them into the model, and make lists of layers an nn.ModuleList",
            code="parameters-outside", found=untrained,
        )  # fmt: skip
    static = strategy.settings.static_graph and strategy.world_size
    missing = [name for name, ranks in zip(named, strategy.reduce(unused).tolist()) if ranks not in (0, static)]
    if missing and strategy.world_size > 1 and strategy.name != "fsdp":
        raise ConfigError(
            f"{some_of(missing, SHOWN)}: no gradient on some ranks, for which {strategy.name} would wait: freeze them "
            "(requires_grad_(False)), or, if no rank uses them, set parallel.static_graph=true",
            code="parameters-unused", found=missing,
        )  # fmt: skip


def _outside(loss: Tensor, model: nn.Module) -> list[str]:
    """The shapes of parameters in the graph of ``loss`` that the model does not have."""
    nodes, seen, known = [loss.grad_fn], set[Any](), set(model.parameters())
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
    leaves = [getattr(node, "variable", None) for node in seen]
    return [f"of shape {[*leaf.shape]}" for leaf in leaves if isinstance(leaf, nn.Parameter) and leaf not in known]


def _try_evaluation(session: Session) -> None:
    one = select(session.validation, np.arange(1), session.validation.split, ())
    try:
        session.evaluate(one)
    except SegtrainError as error:
        if error.code != "logits-not-finite":  # which training may change
            raise
    except Exception as error:
        raise ConfigError(
            f"the model fails in an evaluation of {one.entries[0].image} ({reason_of(error)[:200]}): let it take whole "
            "images, or set eval.tile to a size that it takes",
            code="evaluation-fails", image=one.entries[0].image,
        ) from error  # fmt: skip

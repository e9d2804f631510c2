"""Trial of the user's own model and loss before the first step: their state, their gradients, and
an evaluation.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from segtrain.data.index.subset import select
from segtrain.errors import ConfigError, reason_of, some_of
from segtrain.losses.criterion import OwnLoss
from segtrain.models.base import OwnModel
from segtrain.observe.clock import Clock
from segtrain.parallel.exact import seed_generators
from segtrain.parallel.model import load_state, taken, unsaved
from segtrain.runfolder.checkpoint import misfits
from segtrain.training.graphs import noise
from segtrain.training.session import Session
from segtrain.training.start.mixing import refuse_mixing
from segtrain.training.step import frozen_running_stats, gradients


def try_parts(session: Session) -> None:
    """Raise ConfigError if an own model or loss would fail later, or train wrong. Changes nothing.
    A collective.
    """
    learner = session.learner
    model, loss = learner.plain, learner.own_loss
    if session.strategy.exact:
        config, precision = session.config, learner.precision
        images = 2 * config.train.batch_size // config.parallel.exact
        seed_generators(0)
        batch = noise(learner, images, session.plan.crop_and_scale(0)[0], session.strategy.device)
        with undisturbed(model), precision.autocast():
            refuse_mixing(model, learner.micro(batch).images)
    if not isinstance(model, OwnModel) and not any(
        isinstance(term, OwnLoss) for term in learner.criterion.terms
    ):
        return
    with undisturbed(model), state_restored(loss):
        if session.strategy.name != "fsdp":  # whose parameters are in the graph in another form
            buffers = [buffer.clone() for buffer in loss.buffers()]
            _try_step(session)
            if session.strategy.exact and not all(map(torch.equal, buffers, loss.buffers())):
                raise ConfigError(
                    f"parallel.exact: {type(loss).__name__} changes its buffers in a step, in the "
                    "order of the slices of a rank: keep no state in the loss, or set "
                    "parallel.exact=0",
                    code="loss-state-not-exact",
                    found=type(loss).__name__,
                )
        if isinstance(model, OwnModel):
            _try_evaluation(session)


def undisturbed(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Context for forward passes that do not belong to a step."""
    return state_restored(model) if isinstance(model, OwnModel) else frozen_running_stats(model)


@contextlib.contextmanager
def state_restored(module: nn.Module) -> Iterator[None]:
    """Afterwards, the module has the attributes and the state that it had before.

    Raises ConfigError if a checkpoint would not give back its state.
    """
    state, file = module.state_dict(), io.BytesIO()
    own = dict([*module.named_parameters(), *module.named_buffers()])
    before = taken(own, set(), lambda value: value)
    dicts = [
        each
        for part in module.modules()
        for each in (vars(part), part._buffers)
        if isinstance(each, dict)
    ]
    attributes = [dict(each) for each in dicts]
    kind = type(getattr(module, "module", module)).__name__
    try:
        try:
            torch.save({**unsaved(module), **state}, file)
            file.seek(0)
            saved = torch.load(file, map_location="cpu", weights_only=True)
            for value in own.values():
                value.detach().copy_(value == 0)  # other values everywhere
            load_state(module, saved)
            if lost := [name for name, value in own.items() if not _equal(value, before[name])]:
                raise ValueError(f"it gives back other values of {some_of(lost, 3)}")
        except Exception as error:  # anything that the user's code raises
            names = [name for name, value in state.items() if not isinstance(value, Tensor)]
            why = some_of([f"{reason_of(error):.200}", *names])
            raise ConfigError(
                f"the state dict of {kind} cannot be saved and loaded, so no run could resume "
                f"({why}): load_state_dict must read what torch.save wrote and "
                "torch.load(weights_only=True) read",
                code="state-not-restored",
                found=why,
            ) from error
        yield
        if grown := misfits({name: saved[name] for name in state}, module.state_dict()):
            raise ConfigError(
                f"the state dict of {kind} changes in its first pass, so no run could resume "
                f"({some_of(grown, 3)}): register its buffers in their final shape, or call it on "
                "a batch of images before you pass it",
                code="state-changes-shape",
                found=grown,
            )
    finally:
        for each, values in zip(dicts, attributes):
            each.clear()
            each.update(values)
        for name, value in own.items():
            if value.shape == before[name].shape:
                value.detach().copy_(before[name])
            else:  # resized in place, as an observer of quantization does
                value.data = before[name]
    load_state(module, saved)


def _equal(value: Tensor, other: Tensor) -> bool:
    """Whether all values are equal; NaN, which an own buffer may hold before its first value,
    equals NaN.
    """
    return torch.equal(value, other) or not ((value == value) & (value != other)).any()


def _try_step(session: Session) -> None:
    """A step on noise without an update, and without the strategy's wrapper."""
    config = session.config
    learner = session.learner
    strategy = session.strategy
    images = config.train.batch_size // (config.train.accumulate * strategy.world_size)
    batch = noise(learner, images, session.plan.crop_and_scale(0)[0], strategy.device)
    named = {name: value for name, value in learner.plain.named_parameters() if value.requires_grad}
    unused = torch.zeros(len(named), dtype=torch.int64, device=strategy.device)

    def backward(loss: Tensor) -> None:
        # Not loss.backward(), which DDP would count. This fails with
        # torch.utils.checkpoint(use_reentrant=True).
        with contextlib.suppress(RuntimeError):
            made = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            unused.copy_(torch.tensor([gradient is None for gradient in made]))

    votes = torch.zeros(1, dtype=torch.float64, device=strategy.device)
    gradients(
        learner.plain,
        [learner.micro(batch)],
        learner.criterion,
        strategy,
        learner.precision,
        seed=0,
        votes=votes,
        aux_weight=config.loss.aux_weight,
        clock=Clock(),
        backward=backward,
    )
    static = strategy.settings.static_graph and strategy.world_size
    missing = [
        name
        for name, ranks in zip(named, strategy.reduce(unused).tolist())
        if ranks not in (0, static)
    ]
    if missing and strategy.world_size > 1:
        raise ConfigError(
            f"{some_of(missing, 3)}: no gradient on some ranks, for which {strategy.name} would "
            "wait: freeze them (requires_grad_(False)), or, if no rank uses them, set "
            "parallel.static_graph=true",
            code="parameters-unused",
            found=missing,
        )


def _try_evaluation(session: Session) -> None:
    sample = select(session.val, np.arange(1), session.val.split, ())
    try:
        session.evaluate(sample)
    except Exception as error:
        if getattr(error, "code", "") == "logits-not-finite":  # which training may change
            return
        name = sample.entries[0].image
        raise ConfigError(
            f"the model fails in an evaluation of {name} ({reason_of(error):.200}): let it take "
            "whole images, or set eval.tile to a size that it takes",
            code="evaluation-fails",
            image=name,
        ) from error

"""State, gradients, and modes of the user's own models and losses: they survive a resume, or one
line refuses them.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import refused
from own_objects import LOSS, Slow, Stripes, small
from torch import nn

import segtrain
from segtrain.models.base import OwnModel
from segtrain.training.start import oversubscription as crowd
from segtrain.training.step import Precision


class Stop:
    """A tracker that ends a run at a step with a signal."""

    def __init__(self, step: int) -> None:
        self.step = step

    def scalars(self, values: Any, step: int) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)

    def image(self, tag: str, image: Any, step: int) -> None: ...

    def text(self, tag: str, text: str) -> None: ...

    def close(self, status: str) -> None: ...


class Own(Slow):
    """Logits times the gain that ``grow`` raises in each forward pass of the training."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.grow()
        return super().forward(images) * self.gain

    def grow(self) -> None:
        self.gain = self.gain + 0.5


class ExtraState(Own):
    """Its gain is in ``get_extra_state``, as a value of another type."""

    def __init__(self, wrap: Any, unwrap: Any) -> None:
        super().__init__()
        self.wrap, self.unwrap, self.gain = wrap, unwrap, 1.0

    def get_extra_state(self) -> Any:
        return self.wrap(self.gain)

    def set_extra_state(self, state: Any) -> None:
        self.gain = self.unwrap(state)


class Unsaved(Own):
    """Its gain is a buffer that the state dict leaves out."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.register_buffer("gain", torch.ones(()), persistent=False)
        self.shape = shape

    def grow(self) -> None:
        self.gain = (self.gain + 0.5).mean() * torch.ones(self.shape)


class Expanded(Own):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("gain", torch.ones(1).expand(2)[:, None, None])

    def grow(self) -> None:
        self.gain.add_(0.5)


class Unset(Own):
    """Its gain is not a number before its first pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("gain", torch.full((), torch.nan))

    def grow(self) -> None:
        self.gain.copy_((self.gain + 0.5).nan_to_num(1.0))


class Late(Own):
    """Its gain is a buffer that has no values, or no shape, before its first pass."""

    def __init__(self, gain: torch.Tensor | None) -> None:
        super().__init__()
        self.register_buffer("gain", gain)

    def grow(self) -> None:
        if self.gain is None:
            self.gain = torch.ones(())
        elif not self.gain.numel():
            self.gain.resize_(1).fill_(1.0)


class LateWeights(nn.Module):
    """A loss with a buffer that has no value before its first pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", None)

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.scale = torch.ones(())
        return LOSS(logits, target) * self.scale


class Hooked(Slow):
    """A module whose state dict a hook has changed."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self._register_state_dict_hook(lambda module, state, prefix, local: change(state))


def copied(state: dict[str, Any]) -> None:
    state.update({name: value.clone() for name, value in state.items()})


class MovingWeights(nn.Module):
    """A loss with class weights from a moving average."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shares", torch.ones(2))

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        found = torch.bincount(target[target < 2], minlength=2).float()
        self.shares.lerp_(found / found.sum(), 0.5)
        return nn.functional.cross_entropy(
            logits, target, weight=1 / (0.1 + self.shares), ignore_index=255
        )


def trained(
    out: Path, model: nn.Module, criterion: Any, stop: int = 0, *settings: str
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    segtrain.train(
        small(
            out,
            "train.duration=4st",
            "eval.every=4st",
            "checkpoint.every=9st",
            "log.every=1",
            *settings,
        ),
        model=model,
        criterion=criterion,
        train_data=Stripes(),
        val_data=Stripes(4),
        trackers=[Stop(stop)],
    )
    return [value.detach().clone() for value in model.parameters()]


CASES: dict[str, Any] = {
    "dict": (lambda: ExtraState(lambda gain: {"gain": gain}, lambda state: state["gain"]), LOSS),
    "tensor": (lambda: ExtraState(torch.tensor, float), LOSS),
    "not in the state dict": (Unsaved, LOSS),
    "another shape": (lambda: Unsaved((2, 1, 1)), LOSS),
    "expanded": (Expanded, LOSS),
    "copies": (lambda: Hooked(copied), LOSS),
    "loss": (Slow, MovingWeights),
}


@pytest.mark.parametrize(("case", "ema"), [("dict", "0"), *((case, "0.5") for case in CASES)])
def test_a_stopped_run_has_the_state_of_own_parts_again(case, ema, tmp_path):
    model, loss = CASES[case]
    weights = []
    for out, stops in (("whole", (0,)), ("cut", (2, 0))):
        for stop in stops:
            torch.manual_seed(1)
            criterion = loss if loss is LOSS else loss()
            found = trained(tmp_path / out, model(), criterion, stop, f"optim.ema={ema}")
        weights.append(found)
    assert all(map(torch.equal, *weights))


def test_a_buffer_may_be_no_number_before_its_first_value(tmp_path):
    trained(tmp_path, model := Unset(), LOSS)
    assert model.gain == 1.0 + 3 * 0.5


def halved(state: dict[str, Any]) -> None:
    state.update({name: value.half() for name, value in state.items()})


class Learned(nn.CrossEntropyLoss):
    def __init__(self) -> None:
        super().__init__(ignore_index=255)
        self.scale = nn.Parameter(torch.ones(()))


class Whole(Slow):
    """It takes images of one size only."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images) + torch.ones(1, 2, 7, 7)


class Mean(Slow):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images).mean(0, keepdim=True)


class Items(Stripes):
    """A dataset whose length, ids, or classes are wrong."""

    def __init__(self, count: Any, **values: Any) -> None:
        super().__init__(count)
        self.__dict__.update(values)

    def __len__(self) -> Any:
        return self.count


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("unprintable")


class Raising(Stripes):
    def __getitem__(self, index: int) -> Any:
        raise Unprintable


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("state-not-restored", {"model": lambda: Hooked(halved)}),
        ("state-not-restored", {"model": lambda: Hooked(lambda state: state.clear())}),
        ("state-changes-shape", {"model": lambda: Late(None)}),
        ("state-changes-shape", {"model": lambda: Late(torch.ones(0))}),
        ("state-changes-shape", {"criterion": LateWeights}),
        ("state-not-restored", {"model": lambda: ExtraState(Unprintable, float)}),
        ("criterion-with-parameters", {"criterion": Learned}),
        ("criterion-with-parameters", {"criterion": lambda: Learned().forward}),
        ("evaluation-fails", {"model": Whole}),
        ("model-output-shape", {"model": Mean}),
        ("model-lazy", {"model": lambda: nn.LazyConv2d(2, 3)}),
        ("model-lazy", {"model": lambda: nn.Sequential(Slow(), nn.LazyBatchNorm2d(affine=False))}),
        ("model-dtype", {"model": lambda: Slow().double()}),
        ("model-dtype", {"model": lambda: nn.Sequential(Slow(), Slow(2).half())[:1].bfloat16()}),
        ("dataset-raised", {"train_data": lambda: Items(-1)}),
        ("dataset-raised", {"val_data": lambda: Items(2.0)}),
        ("dataset-raised", {"train_data": lambda: Items(6, ids=6)}),
        ("dataset-raised", {"train_data": lambda: Items(6, classes=2)}),
        ("item-raised", {"train_data": Raising}),
    ],
)
def test_what_would_fail_later_is_refused_before_the_first_step(code, parts, tmp_path, capsys):
    made = {role: make() for role, make in parts.items()}
    given = {
        "model": Slow(),
        "criterion": LOSS,
        "train_data": Stripes(),
        "val_data": Stripes(4),
        **made,
    }
    before = (
        [value.detach().clone() for value in given["model"].parameters()]
        if code != "model-lazy"
        else []
    )
    with refused(code):
        segtrain.train(small(tmp_path / "run"), **given)
    assert "step " not in capsys.readouterr().out.replace("step 2", "")
    assert all(map(torch.equal, before, given["model"].parameters()))


def test_the_trial_changes_nothing(tmp_path):
    class Counts(Slow):
        calls = 0

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            self.calls += self.training
            return super().forward(images)

    model = Counts()
    trained(tmp_path / "run", model, LOSS)
    assert model.calls == 4


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.conv(self.norm(images))


@pytest.mark.parametrize(
    ("frozen", "still", "whole", "moves", "warned"),
    [
        (True, True, False, False, False),
        (False, True, False, True, True),
        (True, True, True, True, False),
    ],
)
def test_frozen_parts_stay_in_evaluation_mode(
    frozen, still, whole, moves, warned, tmp_path, capsys
):
    model = Normalized()
    model.norm.requires_grad_(not frozen).train(not still)
    model.training = not whole
    trained(tmp_path / "run", model, LOSS)
    assert bool(model.norm.running_mean.any()) == moves
    assert ("evaluation mode" in capsys.readouterr().out) == warned


def test_an_outer_autocast_has_no_effect_and_switches_are_restored(tmp_path):
    plain, inside = Slow(), Slow()
    inside.load_state_dict(plain.state_dict())
    trained(tmp_path / "plain", plain, LOSS, 0, "train.precision=fp32")
    torch.set_num_threads(2)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            trained(
                tmp_path / "inside",
                inside,
                LOSS,
                0,
                "train.precision=fp32",
                "train.deterministic=true",
            )
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(1)
    assert all(map(torch.equal, plain.parameters(), inside.parameters()))


RANKS = """
import os, torch, segtrain
from pathlib import Path
from own_objects import LOSS, Slow, Stripes, small
from torch import nn
rank = int(os.environ["RANK"])

class Spare(Slow):
    def __init__(self, uses):
        super().__init__()
        self.spare, self.uses = nn.Conv2d(2, 2, 1), uses
    def forward(self, images):
        logits = super().forward(images)
        return self.spare(logits) if self.uses else logits

class Ordered(nn.Module):
    def __init__(self, names):
        super().__init__()
        for name in names:
            setattr(self, name, nn.Conv2d(3, 2, 3))
    def forward(self, images):
        return self.a(images) + self.b(images)

try:
    segtrain.train(small(Path({out!r}), *{settings!r}), train_data=Stripes(), val_data=Stripes(4), **{parts})
    print("trained")
except segtrain.errors.SegtrainError as error:
    print(error.code)
"""


@pytest.mark.parametrize(
    ("parts", "settings", "outcome"),
    [
        ("dict(model=Spare(False))", [], "parameters-unused"),
        ("dict(model=Spare(rank == 0))", ["parallel.static_graph=true"], "parameters-unused"),
        ("dict(model=Spare(False))", ["parallel.static_graph=true"], "trained"),
        ("dict(model=Ordered('ab' if rank else 'ba'))", [], "rank-network-differ"),
        ("dict(model=Slow(), **dict(criterion=LOSS) if rank else {})", [], "rank-settings-differ"),
    ],
)
def test_ranks_agree_on_their_parts(parts, settings, outcome, run_ranks, tmp_path):
    code = RANKS.format(out=str(tmp_path / "run"), settings=settings, parts=parts)
    for output in run_ranks(code, 2, PYTHONPATH=str(Path(__file__).parent)):
        assert output.split()[-1] == outcome, output


def test_passes_that_are_timed_leave_an_own_model_as_it_was(monkeypatch):
    monkeypatch.setattr(crowd, "SECONDS", 0.0)
    module = ExtraState(str, float)
    crowd._passes(
        OwnModel(module, 2), torch.rand(1, 3, 24, 24), Precision("cpu"), torch.get_num_threads()
    )
    assert module.gain == 1.0


def test_a_state_that_is_no_tensor_is_loaded_but_not_exported_to_safetensors(tmp_path):
    def made() -> nn.Module:
        return ExtraState(lambda gain: {"gain": gain}, lambda state: state["gain"])

    trained(tmp_path / "run", made(), LOSS)
    module = made()
    segtrain.load(tmp_path / "run", model=module)
    assert module.gain == 3.0
    with refused("state-not-tensors", found=["module._extra_state"]):
        segtrain.export(tmp_path / "run", tmp_path / "export", ["safetensors"], model=made())

"""Tests that trackers get the metrics, and that a missing or broken tracker does not stop the
run.
"""

from __future__ import annotations

import importlib.util
import io
import math
import os
import posixpath
import re
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, refused

from segtrain.config import Config, Log
from segtrain.observe.journal import say_on_stderr
from segtrain.observe.tracker import TrackedRun
from segtrain.observe.trackers import SETTINGS, TRACKERS, TrackerKind, Trackers, open_trackers
from segtrain.prove.short import shortened

OFF = Log(tensorboard=False)  # type: ignore[call-arg]


def opened(
    log: Log,
    folder: Path,
    *,
    kinds: Sequence[TrackerKind] = TRACKERS,
    rank: int = 0,
    say: Callable[[str], None] = say_on_stderr,
    **facts: Any,
) -> Trackers:
    return open_trackers(log, TrackedRun(folder, **facts), kinds, rank=rank, say=say)


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == package else real(name, *rest),
    )


def test_tensorboard_gets_scalars_and_images(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trackers = opened(Log(), tmp_path)  # type: ignore[call-arg]
    # nothing is opened before there is something to write
    assert not (tmp_path / "tensorboard").exists()
    trackers.scalars({"train/loss": 1.5, "iou/bus": math.nan}, 10)
    trackers.scalars({"train/loss": 0.5}, 20)
    trackers.image("val", np.zeros((8, 12, 3), np.uint8), 20)
    trackers.text("config", "a: 1\nb: 2")
    trackers.close("done")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [
        (10, 1.5),
        (20, 0.5),
    ]
    assert events.Tags()["scalars"] == ["train/loss"]
    (image,) = events.Images("val")
    assert (image.width, image.height, image.step) == (12, 8, 20)


def test_a_resumed_run_hides_what_is_done_again(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trackers = opened(Log(), tmp_path)  # type: ignore[call-arg]
    for step in (1, 2, 3):
        trackers.scalars({"loss": 1.0}, step)
    trackers.close("stopped")
    again = opened(Log(), tmp_path, resume_step=1)  # type: ignore[call-arg]
    again.scalars({"loss": 0.5}, 2)
    again.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1.0), (2, 0.5)]


def test_tensorboard_that_is_absent_is_said_once(tmp_path, monkeypatch):
    hide(monkeypatch, "tensorboard")
    said: list[str] = []
    trackers = opened(Log(), tmp_path, say=said.append)  # type: ignore[call-arg]
    trackers.scalars({"loss": 1.0}, 1)
    trackers.close()
    assert len(said) == 1
    assert "continuing without it" in said[0]


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_tracker_that_is_absent_names_the_extra(tmp_path, monkeypatch, name):
    hide(monkeypatch, name)
    log = OFF.model_copy(update={name: "http://127.0.0.1:5000"})
    with refused("missing-package", package=name):
        opened(log, tmp_path)
    opened(log, tmp_path, rank=1)  # only rank 0 tracks


def stand_in(
    monkeypatch: pytest.MonkeyPatch,
    calls: list[Any],
    fails: bool = False,
    params: dict[str, str] | None = None,
) -> None:
    """A module with the calls of MLflow that are used, and its rules for names. ``params``: those
    of the MLflow run.
    """
    module = types.ModuleType("mlflow")

    def record(name: str) -> Any:
        def call(*positional: Any, **named: Any) -> Any:
            if fails and name == "start_run":
                raise RuntimeError("connection\nrefused")
            for key in positional[0] if name in ("log_metrics", "log_params") else ():
                if (
                    not re.fullmatch(r"[/\w.\- ]+", key)
                    or posixpath.normpath(key) != key
                    or key[0] in "./"
                ):
                    error = ValueError(f"invalid name {key!r}")
                    error.error_code = "INVALID_PARAMETER_VALUE"  # type: ignore[attr-defined]
                    raise error
            calls.append((name, positional, named))
            run_id = positional[0] if name == "start_run" and positional[0] else "new"
            return SimpleNamespace(
                info=SimpleNamespace(run_id=run_id), data=SimpleNamespace(params=params or {})
            )

        return call

    for name in (
        "set_tracking_uri",
        "set_experiment",
        "start_run",
        "log_params",
        "log_metrics",
        "log_image",
        "log_text",
        "end_run",
    ):
        setattr(module, name, record(name))
    module.__spec__ = importlib.util.spec_from_loader("mlflow", loader=None)
    monkeypatch.setitem(sys.modules, "mlflow", module)


def test_mlflow_gets_metrics_and_the_end(tmp_path, monkeypatch):
    calls: list[Any] = []
    stand_in(monkeypatch, calls)
    settings = {"optim": {"lr": 0.1}, "many": {str(k): k for k in range(150)}}
    log = OFF.model_copy(update={"mlflow": "uri"})
    trackers = opened(log, tmp_path, name="street", hash="1a2b3c4d", config=settings)
    trackers.scalars({"loss": np.float32(0.5), "iou": math.inf}, 3)
    trackers.close("stopped")
    assert calls[0] == ("set_tracking_uri", ("uri",), {})
    assert calls[2][2]["run_name"] == "street"
    assert calls[2][2]["tags"]["segtrain.hash"] == "1a2b3c4d"
    params = [call[1][0] for call in calls if call[0] == "log_params"]
    assert [len(part) for part in params] == [100, 51]  # an MLflow server takes 100 in one call
    assert params[0]["optim.lr"] == "0.1"
    assert calls[5:] == [
        ("log_metrics", ({"loss": 0.5},), {"step": 3}),
        ("end_run", ("KILLED",), {}),
    ]


def test_names_that_mlflow_refuses_arrive_apart(tmp_path, monkeypatch):
    calls: list[Any] = []
    stand_in(monkeypatch, calls)
    odd = ["a(b", "a[b", "x/../y", "/x", "..", "a\\b", "n" * 300, "plain/name-1_2.3 4"]
    settings = {"data": {"label_map": dict.fromkeys(odd, 0)}}
    trackers = opened(OFF.model_copy(update={"mlflow": "uri"}), tmp_path, config=settings)
    trackers.scalars(dict(zip(odd, range(len(odd)))), 3)
    (sent,) = [call[1][0] for call in calls if call[0] == "log_metrics"]
    assert sorted(sent.values()) == list(range(len(odd)))
    assert sent["plain/name-1_2.3 4"] == len(odd) - 1
    assert max(map(len, sent)) <= 250


def test_a_resumed_run_goes_on_in_the_same_run_of_mlflow(tmp_path, monkeypatch):
    log, calls = OFF.model_copy(update={"mlflow": "uri"}), list[Any]()
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    for params, config in ((None, {"seed": 1}), ({"seed": "1"}, {"seed": 2, "more": 3})):
        stand_in(monkeypatch, calls, params=params)
        opened(log, tmp_path, config=config).close("stopped")
    assert [call[1][0] for call in calls if call[0] == "start_run"] == [None, "new"]
    assert [call[1] for call in calls if call[0] == "set_experiment"] == [("mine",)]
    assert [call[1][0] for call in calls if call[0] == "log_params"] == [
        {"seed": "1"},
        {"more": "3"},
    ]
    monkeypatch.setenv("MLFLOW_RUN_ID", "given")
    opened(log, tmp_path).close("done")
    assert [call[1][0] for call in calls if call[0] == "start_run"][-1] == "given"


def test_mlflow_that_cannot_be_reached_is_one_line(tmp_path, monkeypatch):
    stand_in(monkeypatch, [], fails=True)
    with refused("tracker-not-reached", key="log.mlflow", value="uri") as caught:
        opened(OFF.model_copy(update={"mlflow": "uri"}), tmp_path)
    assert "\n" not in str(caught.value)


class FakeWandB(types.ModuleType):
    """The calls of W&B that are used. ``fails``: what init raises; it sees whether there is a
    terminal to ask at.
    """

    def __init__(self, fails: str = "") -> None:
        super().__init__("wandb")
        self.__spec__ = importlib.util.spec_from_loader("wandb", loader=None)
        self.calls: list[Any] = []
        self.inits: list[dict[str, Any]] = []
        self.asked_at_a_terminal = False
        self.fails, self.log, self.finish = fails, self._call("log"), self._call("finish")
        self.Settings, self.Image, self.Html = dict, lambda image: image.shape, str

    def _call(self, name: str) -> Any:
        return lambda *positional, **named: self.calls.append((name, *positional, named))

    def init(self, **named: Any) -> FakeWandB:
        self.asked_at_a_terminal = sys.stdin.isatty()
        self.inits.append(named)
        if self.fails:
            raise RuntimeError(self.fails)
        return self


@pytest.fixture
def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandB:
    for name in ("WANDB_RUN_ID", "WANDB_FINISH_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


WANDB = OFF.model_copy(update={"wandb": "streets"})


def test_wandb_gets_numbers_images_text_and_the_end(tmp_path, fake_wandb):
    settings = {"train": {"batch_size": 8}}
    trackers = opened(WANDB, tmp_path, name="street", hash="1a2b3c4d", config=settings)
    trackers.text("config", "a: <1>")
    trackers.scalars({"loss": np.float32(0.5), "iou": math.inf}, 3)
    trackers.image("val", np.zeros((8, 12, 3), np.uint8), 3)
    trackers.close("stopped")
    (init,) = fake_wandb.inits
    expected = {
        "project": "streets",
        "name": "street",
        "tags": ["1a2b3c4d"],
        "config": settings,
        "resume": "allow",
    }
    assert init.items() >= {**expected, "dir": str(tmp_path)}.items()
    assert init["settings"]["finish_timeout"] > 0  # the end of a run waits for no network for ever
    assert fake_wandb.calls == [
        ("log", {"config": "<pre>a: &lt;1&gt;</pre>"}, {"commit": False}),
        ("log", {"loss": 0.5}, {"step": 3}),
        ("log", {"val": (8, 12, 3)}, {"step": 3}),
        ("finish", {"exit_code": 1}),
    ]


def test_a_resumed_run_goes_on_in_the_same_run_of_wandb(tmp_path, fake_wandb, monkeypatch):
    for folder in ("one", "one", "other"):
        opened(WANDB, tmp_path / folder).close("done")
    first, resumed, other = (init["id"] for init in fake_wandb.inits)
    assert first == resumed != other
    assert fake_wandb.calls == [("finish", {"exit_code": 0})] * 3
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    opened(WANDB, tmp_path / "one").close()
    assert fake_wandb.inits[-1]["id"] == "mine"


def test_wandb_that_has_no_key_is_one_line_and_asks_nobody(tmp_path, fake_wandb, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdin", terminal)
    fake_wandb.fails = "No API key\nconfigured"
    with refused("tracker-not-reached", key="log.wandb", value="streets") as caught:
        opened(WANDB, tmp_path)
    assert "\n" not in str(caught.value)
    assert not fake_wandb.asked_at_a_terminal
    assert sys.stdin is terminal


def test_the_real_wandb_keeps_a_run_for_later_when_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for resume_step in (None, 10):
        trackers = opened(
            WANDB,
            tmp_path,
            hash="1a2b",
            config={"a": {"b": 7}},
            resume_step=resume_step,
            say=pytest.fail,
        )
        trackers.text("config", "a: 1")
        trackers.scalars({"train/loss": 1.5}, 10)
        trackers.image("val", np.zeros((8, 12, 3), np.uint8), 20)
        trackers.close("done")
    run_id = (tmp_path / "trackers/wandb").read_text().strip()
    assert {path.stem for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")} == {
        f"run-{run_id}"
    }
    assert list(tmp_path.glob("wandb/offline-run-*/files/media/images/val*.png"))


class Memory:
    """A tracker that keeps what it is given."""

    name = "memory"

    def __init__(self, label: str, run: TrackedRun) -> None:
        self.label, self.run, self.kept = label, run, list[Any]()

    def scalars(self, values: Any, step: int) -> None:
        self.kept.append((dict(values), step))

    def image(self, tag: str, image: np.ndarray, step: int) -> None: ...

    def text(self, tag: str, text: str) -> None: ...

    def close(self, status: str) -> None:
        self.kept.append(status)


def test_a_row_of_the_table_is_a_tracker_and_one_that_breaks_is_dropped(tmp_path):
    made: list[Memory] = []

    def make(label: str, run: TrackedRun) -> Memory:
        made.append(Memory(label, run))
        return made[-1]

    class Broken(Memory):
        name = "broken"

        def scalars(self, values: Any, step: int) -> None:
            raise OSError("disk\nfull")

    said: list[str] = []
    row = TrackerKind("wandb", package="json", extra="wandb", make=make)
    broken = TrackerKind("mlflow", package="json", extra="mlflow", make=Broken)
    log = OFF.model_copy(update={"wandb": "streets", "mlflow": "uri"})
    trackers = opened(
        log, tmp_path, kinds=[broken, row], name="street", resume_step=4, say=said.append
    )
    for step in (5, 6):
        trackers.scalars({"loss": 0.5}, step)
    trackers.close("done")
    assert (made[0].label, made[0].run.name, made[0].run.resume_step) == ("streets", "street", 4)
    assert made[0].kept == [({"loss": 0.5}, 5), ({"loss": 0.5}, 6), "done"]
    assert said == ["broken is off from now on: scalars raised OSError: disk full"]


def test_a_tracker_of_a_platform_needs_the_platforms(tmp_path):
    with refused("platforms-missing", key="log.vertex"):
        opened(OFF.model_copy(update={"vertex": "streets"}), tmp_path)


def test_a_proof_writes_to_no_tracker():
    asked = {name: True if name == "tensorboard" else "somewhere" for name in SETTINGS}
    config = Config.model_validate({"log": asked, "model": {"encoder_weights": None}})
    log = shortened(config, None)[0].log
    assert [getattr(config.log, name) for name in SETTINGS] == list(asked.values())
    assert not any(getattr(log, name) for name in SETTINGS)


def test_the_table_imports_no_package_that_may_be_missing():
    """`segtrain doctor` and the launcher read it where packages are missing."""
    code = "import sys, segtrain.observe.trackers\nassert not {'numpy', 'pydantic', 'torch'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)

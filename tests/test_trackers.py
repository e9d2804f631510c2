"""Do the numbers reach the trackers, and does a tracker that is missing or broken leave the run alone?"""

from __future__ import annotations

import importlib.util
import math
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segtrain.config import Log
from segtrain.errors import ConfigError, MissingExtra
from segtrain.observe.trackers import Trackers, open_trackers

OFF = Log(tensorboard=False)  # type: ignore[call-arg]


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else real(name, *rest))


def test_tensorboard_gets_scalars_and_images(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trackers = open_trackers(Log(), tmp_path)  # type: ignore[call-arg]
    assert not (tmp_path / "tensorboard").exists()  # nothing is opened before there is something to write
    trackers.scalars({"train/loss": 1.5, "iou/bus": math.nan}, 10)
    trackers.scalars({"train/loss": 0.5}, 20)
    trackers.image("val", np.zeros((8, 12, 3), np.uint8), 20)
    trackers.text("config", "a: 1\nb: 2")
    trackers.close("done")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(10, 1.5), (20, 0.5)]
    assert events.Tags()["scalars"] == ["train/loss"]
    (image,) = events.Images("val")
    assert (image.width, image.height, image.step) == (12, 8, 20)


def test_a_resumed_run_hides_what_is_done_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trackers = open_trackers(Log(), tmp_path)  # type: ignore[call-arg]
    for step in (1, 2, 3):
        trackers.scalars({"loss": 1.0}, step)
    trackers.close("stopped")
    again = open_trackers(Log(), tmp_path, resume_step=1)  # type: ignore[call-arg]
    again.scalars({"loss": 0.5}, 2)
    again.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1.0), (2, 0.5)]


def test_tensorboard_that_is_absent_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "tensorboard")
    said: list[str] = []
    trackers = open_trackers(Log(), tmp_path, say=said.append)  # type: ignore[call-arg]
    trackers.scalars({"loss": 1.0}, 1)
    trackers.close()
    assert len(said) == 1
    assert "going on without it" in said[0]


def test_mlflow_that_is_absent_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "mlflow")
    log = OFF.model_copy(update={"mlflow": "http://127.0.0.1:5000"})
    with pytest.raises(MissingExtra, match=r"log\.mlflow=http://127.0.0.1:5000.*segtrain\[mlflow\]"):
        open_trackers(log, tmp_path)
    open_trackers(log, tmp_path, rank=1)  # only rank 0 tracks


def stand_in(monkeypatch: pytest.MonkeyPatch, calls: list[Any], fails: bool = False) -> None:
    """A module with the calls of MLflow that are used; the real one where it is installed is not needed."""
    module = types.ModuleType("mlflow")

    def record(name: str) -> Any:
        def call(*positional: Any, **named: Any) -> None:
            if fails and name == "start_run":
                raise RuntimeError("connection\nrefused")
            calls.append((name, positional, named))

        return call

    for name in ("set_tracking_uri", "set_experiment", "start_run", "log_metrics", "log_image", "log_text", "end_run"):
        setattr(module, name, record(name))
    module.__spec__ = importlib.util.spec_from_loader("mlflow", loader=None)
    monkeypatch.setitem(sys.modules, "mlflow", module)


def test_mlflow_gets_metrics_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    stand_in(monkeypatch, calls)
    trackers = open_trackers(OFF.model_copy(update={"mlflow": "uri"}), tmp_path, name="street", hash="1a2b3c4d")
    trackers.scalars({"loss": np.float32(0.5), "iou": math.inf}, 3)
    trackers.close("stopped")
    assert calls[0] == ("set_tracking_uri", ("uri",), {})
    assert calls[2][2]["run_name"] == "street"
    assert calls[2][2]["tags"]["segtrain.hash"] == "1a2b3c4d"
    assert calls[3:] == [("log_metrics", ({"loss": 0.5},), {"step": 3}), ("end_run", ("KILLED",), {})]


def test_mlflow_that_cannot_be_reached_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, [], fails=True)
    with pytest.raises(ConfigError, match=r"log\.mlflow=uri: .*connection refused") as caught:
        open_trackers(OFF.model_copy(update={"mlflow": "uri"}), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_tracker_that_breaks_is_dropped_and_the_others_go_on() -> None:
    class Good:
        name = "good"

        def __init__(self) -> None:
            self.seen: list[Any] = []

        def scalars(self, values: Any, step: int) -> None:
            self.seen.append((dict(values), step))

        def image(self, tag: str, image: np.ndarray, step: int) -> None:
            self.seen.append((tag, image.shape, step))

        def text(self, tag: str, text: str) -> None:
            self.seen.append((tag, text))

        def close(self, status: str) -> None:
            self.seen.append(status)

    class Broken(Good):
        name = "broken"

        def scalars(self, values: Any, step: int) -> None:
            raise OSError("disk\nfull")

    said: list[str] = []
    good, broken = Good(), Broken()
    trackers = Trackers([broken, good], say=said.append)
    trackers.scalars({"loss": 1.0}, 1)
    trackers.scalars({"loss": 2.0}, 2)
    trackers.close("done")
    assert said == ["broken is off from here on: disk full"]
    assert good.seen == [({"loss": 1.0}, 1), ({"loss": 2.0}, 2), "done"]
    assert broken.seen == []

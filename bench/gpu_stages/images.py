"""Images per second of `segtrain predict`, in batches and one by one, and of an evaluation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_stages.rig import CLASSES, Rig, config
from gpu_stages.runs import apart, reported

RUN, FOUND = "images-run", "images.txt"


def run(rig: Rig) -> None:
    folder = rig.folder / "pictures"
    rig.note("data", rig.pictures())
    name, settings = next(iter(rig.networks().items()))
    more = [
        "data.layout=folders", f"data.root={folder}", f"data.classes={json.dumps([f'c{k}' for k in range(CLASSES)])}",
        "train.duration=1st", "data.workers=auto", "train.precision=auto",
        *(f"model.{key}={json.dumps(value)}" for key, value in settings.items()),
        *([] if rig.tiny else ["data.crop=[512,1024]"]),
    ]  # fmt: skip
    with reported(rig, name):
        apart(rig, _train, rig, more)
        ways = [("batch 1", 1, False), ("batch auto", 0, False), ("batch auto, with overlays", 0, True)]
        for what, batch, overlay in ways[-1:] if rig.tiny else ways:
            _row(rig, f"{name}, predict, {what}", _predict, folder / "images" / "train", batch, overlay)
        _row(rig, f"{name}, evaluate", _evaluate)


def _train(rig: Rig, more: list[str]) -> None:
    import segtrain

    segtrain.train(config(rig, RUN, *more))


def _row(rig: Rig, what: str, measure: Callable[..., None], *arguments: Any) -> None:
    with reported(rig, what):
        apart(rig, measure, rig, *arguments)
        rig.note(what, f"{float((rig.folder / FOUND).read_text()):.1f} images/s")


def _predict(rig: Rig, images: Path, batch: int, overlay: bool) -> None:
    """With files read and written. The time of two images, and thus of loading the model, is subtracted."""
    from segtrain.infer.predict import predict

    times, files = [], sorted(images.iterdir())
    for chosen in (files[:2], files[:2], files):  # the first of them loads libraries
        begin = time.perf_counter()
        predict(
            rig.folder / RUN, chosen, rig.folder / f"predicted-{batch}-{overlay}", overlay=overlay, device=rig.device,
            batch_size=batch,
        )  # fmt: skip
        times.append(time.perf_counter() - begin)
    (rig.folder / FOUND).write_text(str((len(files) - 2) / max(0.01, times[2] - times[1])))


def _evaluate(rig: Rig) -> None:
    from segtrain.train.score import evaluate

    for _ in range(2):
        found = evaluate(rig.folder / RUN, "data.split=train").values
    (rig.folder / FOUND).write_text(str(found["protocol"]["images"] / found["seconds"]))

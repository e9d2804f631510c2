"""Seconds of training until 75 % mIoU on generated scenes of 1024x2048: segtrain, and the loop of torchvision's reference.

Both train the same network from scratch on the same JPEG and PNG files, with the same crop, batch, optimizer, schedule,
and scales, in 16 bits, and both are scored by segtrain's evaluation, whose time does not count. The time begins with the
call that starts the training. What differs is the loop and its input pipeline.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2

from gpu_stages.rig import Rig, config
from gpu_stages.runs import apart, reported
from segtrain.config import Config
from segtrain.cores import cores
from segtrain.data.datasets import open_dataset

GOAL = 0.75
STEPS = 6000
EVERY = 100  # steps between two scores
BATCH = 16
CROP = (512, 1024)
LR = 3e-4


def run(rig: Rig) -> None:
    if importlib.util.find_spec("torchvision") is None:
        rig.left_out("both loops", "torchvision is not installed")
        return
    folder, size = rig.folder / "scenes", (64, 96) if rig.tiny else (1024, 2048)
    begin = time.monotonic()
    counts = {"train": 4, "val": 2} if rig.tiny else {"train": 192, "val": 24}
    names = _draw(folder, size, counts)
    rig.note(
        "data",
        f"{counts['train']} scenes of {size[0]}x{size[1]} to train on, {counts['val']} to score, drawn in {time.monotonic() - begin:.0f} s",
    )
    name, settings = next(iter(rig.networks().items()))
    rounds = rig.left_s / 2
    for side, train in (("segtrain", _ours), ("torchvision's loop", _torchvision)):
        with reported(rig, side):
            until = time.monotonic() + (600.0 if rig.tiny else min(rounds, rig.left_s) - 15)
            apart(rig, train, rig, folder, names, settings, until)
            found = json.loads((rig.folder / f"goal-{train.__name__}.json").read_text()) or [(0, 0.0, 0.0)]
            best, last = max(miou for _, _, miou in found), found[-1]
            reached = (
                f"{last[1]:.1f} s, {last[0]} steps"
                if best >= GOAL
                else f"not reached in {last[1]:.0f} s, {last[0]} steps"
            )
            rig.note(f"{name}, {side}: {GOAL:.0%} mIoU", f"{reached}, mIoU {100 * best:.1f} %")


def _draw(folder: Path, size: tuple[int, int], counts: Mapping[str, int]) -> list[str]:
    """Write scenes as JPEG, and their masks as PNG. Returns the names of the classes."""
    settings = Config(data={"layout": "scenes", "scenes": counts["train"], "scene_size": list(size)}).data
    jobs = []
    for split, count in counts.items():
        dataset = open_dataset(settings, split)
        for part in ("images", "masks"):
            (folder / part / split).mkdir(parents=True)
        jobs += [(dataset, folder, split, index % len(dataset)) for index in range(min(count, len(dataset)))]
    with multiprocessing.get_context("fork").Pool(cores()) as pool:
        pool.starmap(_write, jobs)
    return list(open_dataset(settings, "train").labels.names)


def _write(dataset: Any, folder: Path, split: str, index: int) -> None:
    image, mask = dataset.read(index)
    cv2.imwrite(str(folder / "images" / split / f"{index:04}.jpg"), image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])
    cv2.imwrite(str(folder / "masks" / split / f"{index:04}.png"), mask)


def _settings(rig: Rig, out: str, folder: Path, names: list[str], model: Mapping[str, Any]) -> Config:
    every = 2 if rig.tiny else EVERY
    more = [
        "data.layout=folders", f"data.root={folder}", f"data.classes={json.dumps(names)}", "data.workers=auto",
        "data.scale=[0.5,2.0]", "optim.name=adamw", f"optim.lr={LR}", "optim.schedule=poly", "optim.warmup=0st",
        f"train.duration={2 * every if rig.tiny else STEPS}st", f"eval.every={every}st", "checkpoint.every=1000000st",
        *(f"model.{key}={json.dumps(value)}" for key, value in model.items()),
        *([] if rig.tiny else [f"data.crop={list(CROP)}", f"train.batch_size={BATCH}", "log.every=10", "train.precision=auto",
                               "eval.batch_size=4"]),
    ]  # fmt: skip
    return config(rig, out, *more)


class _Curve:
    """A tracker that notes (step, seconds of training, mIoU) at each score, and ends the run at the goal or too late."""

    name = "curve"

    def __init__(self, until: float) -> None:
        self._begin, self._scoring, self._until = time.monotonic(), 0.0, until
        self._ended = False
        self.points: list[tuple[int, float, float]] = []

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        now = time.monotonic()
        if "val/miou" in values:
            self._scoring += values["val/seconds"]
            self.points.append((step, now - self._begin - self._scoring, values["val/miou"]))
        reached = bool(self.points) and self.points[-1][2] >= GOAL
        if (reached or now > self._until) and not self._ended:
            self._ended = True  # a second signal would not let it save
            os.kill(os.getpid(), signal.SIGTERM)

    def image(self, *_: Any) -> None: ...

    def text(self, *_: Any) -> None: ...

    def close(self, *_: Any) -> None: ...


def _ours(rig: Rig, folder: Path, names: list[str], model: Mapping[str, Any], until: float) -> None:
    import segtrain

    watch = _Curve(until)
    segtrain.train(_settings(rig, "goal", folder, names, model), trackers=[watch])
    (rig.folder / "goal-_ours.json").write_text(json.dumps(watch.points))


def _torchvision(rig: Rig, folder: Path, names: list[str], model: Mapping[str, Any], until: float) -> None:
    """The loop of torchvision's reference with --amp: see bench/loops/torchvision_amp.py."""
    import torch
    from loops.pictures import loader
    from loops.task import grad_scaler

    from segtrain.evaluate.evaluation import evaluate
    from segtrain.models import build_model
    from segtrain.precision import AUTO, fitting

    begin, scoring, device = time.monotonic(), 0.0, torch.device(rig.device)
    settings, points = _settings(rig, "goal-torchvision", folder, names, model), []
    data, validation = (open_dataset(settings.data, split) for split in ("train", "val"))
    steps, every = (int(text.removesuffix("st")) for text in (settings.train.duration, settings.eval.every))
    amp = rig.on_gpu
    precision = next(name for name in AUTO if name in fitting(device)) if amp else "fp32"
    network: Any = build_model(settings.model, len(names)).to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=steps, power=0.9)
    scaler = grad_scaler(rig.device, amp)
    batches = loader(data, settings.data.crop, settings.train.batch_size, steps, 0 if rig.tiny else min(16, cores()))
    for step, (images, masks) in enumerate(batches, 1):
        images, masks = images.to(device), masks.to(device)
        with torch.autocast(rig.device, torch.float16 if amp else torch.bfloat16, enabled=amp):
            logits = network(images)
            loss = torch.nn.functional.cross_entropy(logits, masks, ignore_index=255)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        loss.item()  # for its log
        late = time.monotonic() > until
        if late or step % every == 0:
            found = evaluate(network, validation, settings.eval, device=device, precision=precision, workers=cores())
            scoring += found.seconds
            points.append((step, time.monotonic() - begin - scoring, found.scores.miou))
            if late or found.scores.miou >= GOAL:
                break
    (rig.folder / "goal-_torchvision.json").write_text(json.dumps(points))

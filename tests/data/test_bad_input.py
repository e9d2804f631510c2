"""Tests that every mistake in a config, data set, or command gives one error with the place, the
value, and the fix.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from refusals import FOLDERS, SCENES, assert_refused, make_set, refuse, snapshot

Damage = Callable[[Path], Any]

CONFIG = {
    "wrong type as SageMaker passes it": (
        ["--train.batch_size", "four"],
        "train.batch_size='four'",
        "integer",
    ),
    "unknown encoder": (
        ["model.arch=unet", "model.encoder=resnet17", "model.options={}"],
        "'resnet17'",
        "resnet18",
    ),
    "weights of pico": (["model.encoder_weights=imagenet"], "encoder_weights='imagenet'", "null"),
    "smddp without its library": (
        ["parallel.strategy=smddp"],
        "smdistributed.dataparallel",
        "Deep Learning Containers",
        "ddp",
    ),
    "channels_last with fsdp": (
        ["train.channels_last=true", "parallel.strategy=fsdp"],
        "train.channels_last=true",
        "auto",
    ),
}


@pytest.mark.parametrize("case", CONFIG)
def test_a_wrong_config(zygote, tmp_path, case):  # type: ignore[no-untyped-def]
    settings, *words = CONFIG[case]
    refuse(zygote, tmp_path, ["train", *SCENES, *settings], *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("setting", "cure"),
    [("train.device=cuda", "train.device=cpu"), ("parallel.backend=nccl", "gloo")],
)
def test_what_needs_a_gpu_on_a_machine_without(zygote, tmp_path, setting, cure):  # type: ignore[no-untyped-def]
    refuse(
        zygote, tmp_path, ["train", *SCENES, "parallel.strategy=ddp", setting], setting, "GPU", cure
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_pretrained_weights_that_cannot_be_fetched(zygote, tmp_path):  # type: ignore[no-untyped-def]
    nowhere = dict.fromkeys(
        ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY"),
        "http://127.0.0.1:9",
    )
    nowhere.update(HF_HOME=str(tmp_path / "hf"), TORCH_HOME=str(tmp_path / "torch"))
    settings = [*SCENES, "model.arch=fpn", "model.options={}", "model.encoder_weights=imagenet"]
    # The hub's client pauses for seconds between its attempts.
    code = (
        "import time\npause = time.sleep\ntime.sleep = lambda seconds: pause(min(seconds, 0.01))\n"
    )
    code += f"from segtrain.cli import main\nraise SystemExit(main({['train', *settings]!r}))\n"
    process = zygote.start(code=code, cwd=tmp_path, **nowhere)
    assert_refused(
        [process],
        "model.encoder_weights='imagenet'",
        "cannot be fetched",
        "model.encoder_weights=null",
    )
    assert not (tmp_path / "run").exists()


# ---- data sets
# -----------------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def save(path: Path, pixels: np.ndarray) -> None:
    assert cv2.imwrite(str(path), pixels)


def gray(value: int, kind: Any = np.uint8) -> np.ndarray:
    mask = np.zeros((40, 48), kind)
    mask[:2, :5] = value
    return mask


def rgb(*color: int) -> np.ndarray:
    mask = np.zeros((40, 48, 3), np.uint8)
    mask[:2, :5] = color[::-1]
    return mask


IMAGE, MASK = "images/train/a1", "masks/train/a1"
DATA: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "truncated PNG": (
        lambda d: cut(d / f"{IMAGE}.png"),
        (f"set/{IMAGE}.png", "ends early", "bytes", "again"),
    ),
    "unknown id": (
        lambda d: save(d / f"{MASK}.png", gray(77)),
        (f"{MASK}.png", "77 (10 pixels)", "segtrain data check"),
    ),
    "empty split": (
        lambda d: [p.unlink() for p in d.glob("*/val/*")],
        ("set/images/val", "no image", "data.split"),
    ),
    "a color outside the palette": (
        lambda d: (
            (d / "classes.txt").write_text("0 0 0 road\n9 9 9 car\n"),
            [save(p, rgb(9, 9, 8)) for p in d.glob("masks/*/*")],
        ),
        ("5 faulty files", "masks/train/a0.png", "(9, 9, 8) (10 pixels)", "red green blue name"),
    ),
    "all void": (
        lambda d: [save(p, gray(0) + 255) for p in d.glob("masks/train/*")],
        ("every pixel is void", "data.label_map"),
    ),
}


@pytest.mark.parametrize("case", DATA)
def test_a_wrong_data_set(zygote, tmp_path, case):  # type: ignore[no-untyped-def]
    damage, words = DATA[case]
    damage(make_set(tmp_path / "set"))
    refuse(zygote, tmp_path, ["train", *FOLDERS], *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data", "check", "sett"], ("sett", "did you mean 'set'?")),
        (
            ["data", "check", "set/images"],
            ("set/images", "data.images=FOLDER data.masks=FOLDER", "--side-by-side"),
        ),
        (["runs", "nowhere"], ("nowhere", "name the folder")),
        (["frain"], ("frain", "train")),
    ],
)
def test_a_wrong_command(zygote, tmp_path, arguments, words):  # type: ignore[no-untyped-def]
    make_set(tmp_path / "set")
    refuse(zygote, tmp_path, arguments, *words)


def test_a_file_that_is_spoilt_while_training(zygote, tmp_path):  # type: ignore[no-untyped-def]
    """Without the check before training, the loader finds it; no weights were saved by then."""
    root = make_set(tmp_path / "set")
    cut(root / f"{IMAGE}.png")
    settings = [
        *FOLDERS,
        "data.check=off",
        "data.workers=2",
        "checkpoint.every=99st",
        "eval.every=99st",
    ]
    refuse(
        zygote,
        tmp_path,
        ["train", *settings],
        f"set/{IMAGE}.png",
        "ends early",
        "again",
        made=("run/",),
    )
    assert not list(tmp_path.rglob("*.pt"))
    ends = [json.loads(line) for line in (tmp_path / "run/journal.jsonl").read_text().splitlines()]
    assert [event["status"] for event in ends if event["event"] == "run_end"] == ["failed"]


def test_files_without_the_right_to_read_them(zygote, public, ordinary):  # type: ignore[no-untyped-def]
    root = make_set(public / "set")
    os.chmod(root / f"{IMAGE}.png", 0)
    before = snapshot(public)
    process = zygote.start(code=ordinary("train", *FOLDERS, "data.check=full"), cwd=public)
    assert_refused([process], f"set/{IMAGE}.png", "Permission denied", "permissions")
    assert snapshot(public) == before

"""Tests that every mistake in a config, data set, or command gives one error with the place, the value, and the fix."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from refusals import CLASSES, FOLDERS, LIST, SCENES, assert_refused, finish, make_set, refuse, snapshot

Damage = Callable[[Path], Any]

CONFIG = {
    "unknown key": (["optim.lrr=1"], "optim.lrr", "did you mean 'optim.lr'?"),
    "wrong type as SageMaker passes it": (["--train.batch_size", "four"], "train.batch_size='four'", "integer"),
    "value is not YAML": (["data.crop=[32,"], "data.crop=[32,", "not valid YAML"),
    "section as value": (["train=4"], "train=4", "a mapping"),
    "unknown encoder": (["model.arch=unet", "model.encoder=resnet17", "model.options={}"], "'resnet17'", "resnet18"),
    "unknown option of SMP": (["model.arch=fpn", "model.options={decoder_dropot: 0.1}"], "decoder_dropot", "decoder_dropout"),
    "reserved option": (["model.arch=fpn", "model.options={classes: 3}"], "model.options.classes=3", "data.classes"),
    "unknown weights": (["model.arch=fpn", "model.encoder_weights=imagenett", "model.options={}"], "imagenett", "imagenet"),
    "weights of pico": (["model.encoder_weights=imagenet"], "encoder_weights='imagenet'", "null"),
    "smddp without its library": (["parallel.strategy=smddp"], "smdistributed.dataparallel", "Deep Learning Containers", "ddp"),
    "muon with fsdp": (["optim.name=muon", "parallel.strategy=fsdp"], "optim.name=muon", "ddp"),
    "channels_last with fsdp": (["train.channels_last=true", "parallel.strategy=fsdp"], "train.channels_last=true", "auto"),
    "loss that diverges": (["optim.name=sgd", "optim.lr=1e30", "train.duration=20st", "train.batch_size=4"], "not finite at step", "optim.lr"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIG)
def test_a_wrong_config(zygote, tmp_path: Path, case: str) -> None:  # type: ignore[no-untyped-def]
    settings, *words = CONFIG[case]
    made = ("run/",) if "diverges" in case else ()
    refuse(zygote, tmp_path, ["train", *SCENES, *settings], *words, made=made)
    assert not list(tmp_path.rglob("*.pt"))
    assert bool(made) or not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("setting", "cure"),
    [("train.device=cuda", "train.device=cpu"), ("parallel.backend=nccl", "gloo")],
)
def test_what_needs_a_gpu_on_a_machine_without(zygote, tmp_path: Path, setting: str, cure: str) -> None:  # type: ignore[no-untyped-def]
    refuse(zygote, tmp_path, ["train", *SCENES, "parallel.strategy=ddp", setting], setting, "GPU", cure)
    assert not (tmp_path / "run").exists()


FILES: dict[str, tuple[bytes | None, tuple[str, ...]]] = {
    "broken YAML": (b"train: [1, 2\noptim: }", ("run.yaml", "not valid YAML", "line 2")),
    "missing": (None, ("run.yaml", "No such file", "did you mean 'runs.yaml'?")),
}


@pytest.mark.parametrize("case", FILES)
def test_a_wrong_config_file(zygote, tmp_path: Path, case: str) -> None:  # type: ignore[no-untyped-def]
    content, words = FILES[case]
    (tmp_path / "run.yaml" if content else tmp_path / "runs.yaml").write_bytes(content or b"")
    refuse(zygote, tmp_path, ["train", "run.yaml"], *words)
    assert not (tmp_path / "runs").exists()


def test_settings_as_sagemaker_passes_them_are_read(zygote, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    process = zygote.start(
        "train", "--train.batch_size", "4", "--data.crop", "[64, 64]", "--print-config", cwd=tmp_path
    )
    assert finish([process]) == [0], process.output
    assert "batch_size: 4" in process.output


@pytest.mark.slow
def test_pretrained_weights_that_cannot_be_fetched(zygote, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    nowhere = dict.fromkeys(
        ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY"), "http://127.0.0.1:9"
    )
    nowhere.update(HF_HOME=str(tmp_path / "hf"), TORCH_HOME=str(tmp_path / "torch"))
    settings = [*SCENES, "model.arch=fpn", "model.options={}", "model.encoder_weights=imagenet"]
    # The hub's client pauses for seconds between its attempts.
    code = "import time\npause = time.sleep\ntime.sleep = lambda seconds: pause(min(seconds, 0.01))\n"
    code += f"from segtrain.cli import main\nraise SystemExit(main({['train', *settings]!r}))\n"
    process = zygote.start(code=code, cwd=tmp_path, **nowhere)
    assert_refused([process], "model.encoder_weights='imagenet'", "cannot be fetched", "model.encoder_weights=null")
    assert not (tmp_path / "run").exists()


# ---- data sets
# -----------------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def save(path: Path, pixels: np.ndarray) -> None:
    assert cv2.imwrite(str(path), pixels)


def jpeg(path: Path) -> Path:
    """The PNG of ``path`` as JPEG in its place."""
    save(path.with_suffix(".jpg"), cv2.imread(str(path)))
    path.unlink()
    return path.with_suffix(".jpg")


def bomb(path: Path) -> None:
    """A PNG of 45 bytes whose header claims 60000 x 60000 pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IEND", b""))


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


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
    "truncated PNG": (lambda d: cut(d / f"{IMAGE}.png"), (f"set/{IMAGE}.png", "ends early", "bytes", "again")),
    "truncated mask": (lambda d: cut(d / f"{MASK}.png"), (f"set/{MASK}.png", "ends early", "again")),
    "image of zero bytes": (lambda d: (d / f"{IMAGE}.png").write_bytes(b""), (f"set/{IMAGE}.png", "0 bytes", "again")),
    "decompression bomb": (lambda d: bomb(d / f"{IMAGE}.png"), (f"{IMAGE}.png", "60000 x 60000", "tiles")),
    "unknown id": (lambda d: save(d / f"{MASK}.png", gray(77)), (f"{MASK}.png", "77 (10 pixels)", "segtrain data check")),
    "JPEG mask": (lambda d: jpeg(d / f"{MASK}.png"), (f"{MASK}.jpg", "JPEG changes the labels", "PNG")),
    "mask of another size": (lambda d: save(d / f"{MASK}.png", gray(1)[:30]), (f"{MASK}.png", "30 x 48 pixels", "40 x 48", "resize")),
    "missing mask": (lambda d: (d / f"{MASK}.png").unlink(), (f"set/{IMAGE}.png", "without a mask")),
    "empty split": (lambda d: [p.unlink() for p in d.glob("*/val/*")], ("set/images/val", "no image", "data.split")),
    "missing split": (lambda d: (d / "images/val").rename(d / "images/valid"), ("set/images/val", "did you mean 'set/images/valid'?")),
    "missing folder": (lambda d: d.rename(d.with_name("sets")), ("set", "data.root", "did you mean 'sets'?")),
    "a color outside the palette": (
        lambda d: ((d / "classes.txt").write_text("0 0 0 road\n9 9 9 car\n"), [save(p, rgb(9, 9, 8)) for p in d.glob("masks/*/*")]),
        ("5 faulty files", "masks/train/a0.png", "(9, 9, 8) (10 pixels)", "red green blue name"),
    ),
    "all void": (lambda d: [save(p, gray(0) + 255) for p in d.glob("masks/train/*")], ("every pixel is void", "data.label_map")),
}  # fmt: skip


@pytest.mark.parametrize("case", DATA)
def test_a_wrong_data_set(zygote, tmp_path: Path, case: str) -> None:  # type: ignore[no-untyped-def]
    damage, words = DATA[case]
    damage(make_set(tmp_path / "set"))
    refuse(zygote, tmp_path, ["train", *FOLDERS], *words)
    assert not (tmp_path / "run").exists()


SETTINGS = {
    "class names file missing": (["data.classes=klasses.txt"], "klasses.txt", "data.classes"),
    "more names than ids": (["data.classes=[a,b]"], "data.classes has 2 names", "data.label_map"),
    "layout of another kind": (["data.layout=cityscapes"], "set/leftImg8bit/train", "holds images, masks"),
    "split that is not there": (["data.split=test"], "set/images/test", "holds train, val"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_do_not_fit_the_data(zygote, tmp_path: Path, case: str) -> None:  # type: ignore[no-untyped-def]
    make_set(tmp_path / "set")
    settings, *words = SETTINGS[case]
    refuse(zygote, tmp_path, ["train", *FOLDERS, *settings], *words)
    assert not (tmp_path / "run").exists()


ROW = "images/{0}/a{1}.png,masks/{0}/a{1}.png\n"
LISTS = {
    "absent file": (
        "csv",
        "image,mask\n" + ROW.format("train", 0) + ROW.format("train", 8),
        "2 files missing",
        "a8.png",
        "correct the list",
    ),
    "broken line": ("jsonl", '{"image": "a", "mask": "b"}\n{"image": \n', "line 2", "not valid JSON"),
}


@pytest.mark.parametrize("case", LISTS)
def test_a_wrong_list(zygote, tmp_path: Path, case: str) -> None:  # type: ignore[no-untyped-def]
    kind, content, *words = LISTS[case]
    make_set(tmp_path / "set")
    (tmp_path / "set" / f"train.{kind}").write_text(content)
    index = ["data.index='{split}.jsonl'"] if kind == "jsonl" else []
    refuse(zygote, tmp_path, ["train", *LIST, *index], "set/train.", *words)
    assert not (tmp_path / "run").exists()


def test_all_faults_are_told_at_once_by_data_check(zygote, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    root = make_set(tmp_path / "set")
    cut(root / "images/train/a0.png")
    (root / "masks/train/a1.png").write_bytes(b"")
    save(root / "masks/train/a2.png", gray(9))
    flip_a_bit(root / "images/val/a0.png")
    before = snapshot(tmp_path)
    process = zygote.start("data", "check", "set", cwd=tmp_path)
    assert finish([process]) == [2], process.output
    for word in (
        "images/train/a0.png",
        "masks/train/a1.png",
        "9 (10 pixels)",
        "images/val/a0.png",
        "3 faults",
        "1 fault in",
    ):
        assert word in process.output
    assert "Traceback" not in process.output
    assert "libpng" not in process.output
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data", "check", "sett"], ("sett", "did you mean 'set'?")),
        (["data", "check", "set/images"], ("set/images", "not a known layout", "data.layout=folders")),
        (["data", "check", "set", "--split", "test"], ("set/images/test", "no such folder")),
        (["runs", "nowhere"], ("nowhere", "name the folder")),
        (["runs", "set", "train.seed=1"], ("train.seed=1", "unrecognized")),
        (["frain"], ("frain", "train")),
    ],
)
def test_a_wrong_command(zygote, tmp_path: Path, arguments: list[object], words: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    make_set(tmp_path / "set")
    refuse(zygote, tmp_path, arguments, *words)


def test_crops_larger_than_the_images_are_padded(zygote, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    make_set(tmp_path / "set")
    process = zygote.start("train", *FOLDERS, "data.crop=[96,128]", "data.scale=[0.2,0.3]", cwd=tmp_path)
    assert finish([process]) == [0], process.output


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_is_spoilt_while_training(zygote, tmp_path: Path, workers: int) -> None:  # type: ignore[no-untyped-def]
    """Without the check before training, the loader finds it; no weights were saved by then."""
    root = make_set(tmp_path / "set")
    cut(root / f"{IMAGE}.png")
    settings = [*FOLDERS, "data.check=off", f"data.workers={workers}", "checkpoint.every=99st", "eval.every=99st"]
    refuse(zygote, tmp_path, ["train", *settings], f"set/{IMAGE}.png", "ends early", "again", made=("run/",))
    assert not list(tmp_path.rglob("*.pt"))
    ends = [json.loads(line) for line in (tmp_path / "run/journal.jsonl").read_text().splitlines()]
    assert [event["status"] for event in ends if event["event"] == "run_end"] == ["failed"]


def test_files_without_the_right_to_read_them(zygote, public: Path, ordinary: Callable[..., str]) -> None:  # type: ignore[no-untyped-def]
    root = make_set(public / "set")
    os.chmod(root / f"{IMAGE}.png", 0)
    before = snapshot(public)
    process = zygote.start(code=ordinary("train", *FOLDERS, "data.check=full"), cwd=public)
    assert_refused([process], f"set/{IMAGE}.png", "Permission denied", "permissions")
    assert snapshot(public) == before
    assert CLASSES

"""Tests of masks whose ids nothing names: where several readings remain, each has a command."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from conftest import refused
from data_files import picture, run_check
from PIL import Image

from segtrain.cli import main
from segtrain.config import load_config
from segtrain.errors import EXIT_ERROR


def disks(root: Path, encode: Callable[[np.ndarray], np.ndarray], count: int = 9) -> Path:
    """Masks that ``encode`` makes of 1 to 3 disks, which are numbered from 1."""
    (root / "masks").mkdir(parents=True)
    for number in range(count):
        mask = np.zeros((40, 64), np.uint8)
        for disk in range(1 + number % 3):
            cv2.circle(mask, (12 + 20 * disk, 20), 7, disk + 1, -1)
        picture(root / f"images/{number}.png", mask.shape, number)
        Image.fromarray(encode(mask).astype(np.uint8)).save(root / f"masks/{number}.png")
    return root


def ringed(mask: np.ndarray) -> np.ndarray:
    """1 in disks, 2 around them, 3 on their border."""
    disk = (mask > 0).astype(np.uint8)
    border = cv2.dilate(disk, np.ones((3, 3))) - cv2.erode(disk, np.ones((3, 3)))
    return np.where(border, 3, 2 - disk)


QUESTIONS = {
    "255 around objects of two classes": (
        lambda mask: np.where(mask, mask % 2, 255),
        ["data.label_map={0: 0, 1: 1, 255: 2}", "data.label_map={0: 0, 1: 1, 255: -1}"],
    ),
    "a number for each object": (
        lambda mask: mask,
        ["data.mask_code=objects", "data.classes=[class_0, class_1, class_2, class_3]"],
    ),
    "and void": (
        lambda mask: np.where(np.arange(64) > 60, 255, mask),
        ["data.mask_code=objects", "data.classes=[class_0, class_1, class_2, class_3]"],
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_each_reading_has_a_command(name, tmp_path, capsys):
    encode, expected = QUESTIONS[name]
    root, file = disks(tmp_path / "set", encode), tmp_path / "mine.yaml"
    assert main(["data", "check", str(root), "--write", str(file)]) == EXIT_ERROR
    lines = [shlex.split(line) for line in capsys.readouterr().err.splitlines()[-2:]]
    for line, setting in zip(lines, expected):
        assert setting in line
        assert main(line[1:]) == 0
        load_config(file)
        file.unlink()


def test_objects_of_masks_are_one_class(tmp_path):
    root = disks(tmp_path / "set", lambda mask: np.where(np.arange(64) > 60, 255, mask))
    objects = ["data.mask_code=objects", "data.classes=[background, object]"]
    (report,) = run_check(root, *objects).reports
    assert report.void == 9 * 40 * 3
    assert report.pixels[1] == sum(np.count_nonzero(disk) for disk in map(opened, range(9)))
    # 255 is an object where there is a 254, also in three equal channels.
    for path in root.glob("masks/*"):
        many = np.resize(np.arange(256, dtype=np.uint8), (40, 64))
        Image.fromarray(many).save(path)
    (root / "masks/0.png").unlink()
    Image.fromarray(many).convert("RGB").save(root / "masks/0.png")
    (report,) = run_check(root, *objects).reports
    assert (report.void, report.pixels[0]) == (0, 9 * 10)
    with refused("ids-ambiguous"):
        run_check(disks(tmp_path / "named", lambda mask: mask))
    (report,) = run_check(tmp_path / "named", "data.classes=[background, cell]").reports
    assert report.findings[0].settings == {"data.mask_code": "objects"}


def opened(number: int) -> np.ndarray:
    mask = np.zeros((40, 64), np.uint8)
    for disk in range(1 + number % 3):
        cv2.circle(mask, (12 + 20 * disk, 20), 7, 1, -1)
    return mask[:, :61]


NO_QUESTIONS = {
    "classes that may be absent": lambda mask: np.where(mask == 2, 0, mask),
    "two numbers of objects": lambda mask: np.where(mask > 2, 0, mask),
    "some void": lambda mask: np.where(cv2.dilate(mask, np.ones((3, 3))) - mask, 255, mask > 0),
}


@pytest.mark.parametrize("name", NO_QUESTIONS)
def test_other_masks_are_read_as_classes(name, tmp_path):
    encode = NO_QUESTIONS[name]
    checked = run_check(disks(tmp_path, encode))
    assert not checked.failed
    assert "border" not in checked.text()


def test_a_class_between_two_others_may_be_a_border(tmp_path, capsys):
    root = disks(tmp_path, ringed)
    assert main(["data", "check", str(root)]) == 0
    line = next(text for text in capsys.readouterr().out.splitlines() if "a border" in text)
    assert "3 separates 1 and 2" in line
    settings = shlex.split(line.rpartition("count: ")[2])
    assert settings == ["data.classes=[class_1, class_2]", "data.label_map={1: 0, 2: 1, 3: -1}"]
    (report,) = run_check(root, *settings).reports
    assert report.void
    assert not report.failed
    for number, path in enumerate(sorted(root.glob("masks/*"))):
        mask = np.array(Image.open(path))
        mask[:, : 20 + number] = 1  # now 1 and 2 touch
        Image.fromarray(mask).save(path)
    assert "border" not in run_check(root).text()

"""Tests of masks that a lossy copy has blurred, also as halves of pictures."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from data_files import run_check
from PIL import Image

from segtrain.cli import main
from segtrain.data.audit.mask_colors import code_of
from segtrain.data.audit.mask_values import MaskValues
from segtrain.data.pixels.common_colors import common_colors

SIZE = (64, 96)
COLORS = np.array([[0, 0, 170], [0, 85, 255], [255, 255, 0], [170, 0, 0]], np.uint8)


def drawn(seed: int) -> np.ndarray:
    """Areas of four classes, (64, 96)."""
    ids = np.random.default_rng(seed).integers(0, 4, (4, 6))
    return np.kron(ids, np.ones((16, 16), int))


def photo(seed: int) -> np.ndarray:
    """A smooth picture of many colors."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 9, 3), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize(SIZE[::-1], Image.Resampling.BICUBIC))


def pictures(root: Path, side: str) -> None:
    for number in range(12):
        halves = [photo(number), COLORS[drawn(number)]]
        path = root / ("train", "val", "test")[number % 3] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.hstack(halves[:: 1 if side == "right" else -1])).save(path, quality=70)


@pytest.mark.parametrize("side", ["left", "right"])
def test_printed_commands_lead_from_halves_to_a_data_set(tmp_path, capsys, side):
    root = tmp_path / "my set"
    pictures(root, side)
    words = ["check", str(root)]
    for expected in (f"--side-by-side {side}", "--nearest"):
        assert main(["data", *words]) == 2
        line = capsys.readouterr().err.splitlines()[-1].strip()
        assert line.startswith("segtrain data convert ")
        assert expected in line
        assert main(shlex.split(line)[1:]) == 0
        words = shlex.split(capsys.readouterr().out.splitlines()[-1].partition("segtrain ")[2])[1:]
    assert main(["data", *words]) == 0
    copy = Path(words[1])
    assert len([*copy.glob("masks/*/*.png")]) == 12  # the test split, too
    order = np.lexsort(COLORS.T[::-1])
    for path in copy.glob("masks/*/*.png"):
        ids = np.asarray(Image.open(path))
        assert (order[ids] == drawn(int(path.stem))).mean() > 0.97


def gray(root: Path, values: tuple[int, ...], blur: int) -> Path:
    """Masks of a few gray levels, which are off by at most ``blur``."""
    for number in range(3):
        for folder in ("images", "masks"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(number)).save(root / f"images/{number}.png")
        noise = np.random.default_rng(number).integers(-blur, blur + 1, SIZE)
        mask = np.array(values)[drawn(number)] + noise
        Image.fromarray(np.clip(mask, 0, 255).astype(np.uint8)).save(root / f"masks/{number}.png")
    return root


def test_near_gray_levels_are_one_class(tmp_path):
    root = gray(tmp_path / "set", (0, 85, 170, 255), blur=4)
    with refused("ids-ambiguous", "blurred") as caught:
        run_check(root)
    first, second = (shlex.split(line) for line in str(caught.value).splitlines()[1:])
    assert main(first[1:]) == 0
    assert main(second[1:]) == 0
    dataset = run_check(root, *first[4:]).datasets["all"]
    assert all(np.array_equal(dataset.read_mask(n), drawn(n)) for n in range(3))


def test_gray_masks_with_values_in_between_are_repaired(tmp_path):
    root = gray(tmp_path / "set", (0, 85, 170, 255), blur=4)
    for path in (root / "masks").iterdir():
        mask = np.array(Image.open(path))
        mask[:, 15::16] = np.arange(mask[:, 15::16].size).reshape(64, 6) % 256
        Image.fromarray(mask).save(path)
    with refused("masks-blurred") as caught:
        run_check(root)
    line = str(caught.value).splitlines()[-1]
    assert '"data.label_map={' in line
    assert main(shlex.split(line)[1:]) == 0
    assert not run_check(f"{root}-png").failed
    for number in range(3):
        ids = np.asarray(Image.open(f"{root}-png/masks/{number}.png"))
        assert np.array_equal(
            np.delete(ids, range(15, 96, 16), 1), np.delete(drawn(number), range(15, 96, 16), 1)
        )


def test_ids_are_not_blurred_levels(tmp_path):
    """Masks of 0 and 1 beside smoothed ones of 0 and 255: 1 is a class, not noise around 0."""
    root = gray(tmp_path / "set", (0, 0, 255, 255), blur=0)
    for number, path in enumerate(sorted((root / "masks").iterdir())):
        large = Image.open(path).resize(SIZE[::-1]).resize((192, 128)).resize(SIZE[::-1])
        (large if number else Image.fromarray((drawn(0) > 1).astype(np.uint8))).save(path)
    with refused("ids-ambiguous"):
        run_check(root)


def test_photos_have_no_common_colors():
    assert common_colors(map(photo, range(8))) == []
    assert common_colors([COLORS[drawn(0)]]) == [*map(tuple, sorted(COLORS.tolist()))]
    assert common_colors([np.zeros((*SIZE, 3), np.uint8)]) == []


def test_the_first_of_too_many_colors_are_no_code():
    values = MaskValues(colors=dict.fromkeys(range(1024), 9), cut=True)
    assert code_of(values) == ""

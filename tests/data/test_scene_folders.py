"""Tests of folders of scenes, patients, or defects, each with images and masks in folders of any
names.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from data_files import ids, picture, run_check, tree

from segtrain.cli import main


def commands(root: Path) -> list[list[str]]:
    """The words of the settings of each printed command."""
    with refused("folders-ambiguous") as caught:
        run_check(root)
    return [shlex.split(line)[4:] for line in str(caught.value).splitlines()[1:]]


def arrays(root: Path, *names: str) -> None:
    """Arrays of two bands beside heights of one, which come first, and their masks."""
    for number, name in enumerate(names):
        for folder, shape in (("dem", (12, 16)), ("sar", (12, 16, 2))):
            path = root / name / folder / f"{name}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, np.random.default_rng(number).normal(size=shape).astype(np.float32))
        ids(root / name / "mask" / f"{name}.png")


@pytest.mark.parametrize("count", [3, 12])
def test_scenes_with_folders_of_the_same_names_are_read_as_one_set(tmp_path, count):
    names = [f"s{number}" for number in range(count)]
    arrays(tmp_path / "set/areas", *names)
    first, second, *single = commands(tmp_path / "set")
    for settings, bands in ((first, 1), (second, 2)):
        checked = run_check(tmp_path / "set", *settings)
        assert not checked.failed
        assert checked.data.channels == bands
        assert [len(dataset) for dataset in checked.datasets.values()] == [count]
    for settings in single:  # images and masks of one scene
        images, masks = (word.split("=")[1].split("/")[1] for word in settings[:2])
        assert images == masks


def test_two_formats_in_each_of_several_folders(tmp_path):
    root = tree(tmp_path / "set", *(f"{name}/x/#.jpg {name}/x/#.png" for name in ("hole", "crack")))
    every, *single = commands(root)
    assert len(run_check(root, *every).datasets["all"]) == 4
    assert [len(run_check(root, *way).datasets["all"]) for way in single] == [2, 2]


def test_a_set_in_another_naming_is_not_left_out(tmp_path):
    root = tree(tmp_path / "set", "a/x/#_a.png a/y/#.png", "b/x/#_b.png b/y/#.png")
    assert [len(run_check(root, *way).datasets["all"]) for way in commands(root)] == [2, 2]


def test_a_picture_named_as_a_folder_of_pairs_has_no_masks(tmp_path):
    root = tree(tmp_path / "set", "one/#.bmp one/#.png", "two/#.bmp two/#.png")
    for name in ("one", "two"):
        picture(root / f"{name}.png")
    assert [len(run_check(root, *way).datasets["all"]) for way in commands(root)] == [2, 2]


def test_a_chain_of_folders_hides_nothing(tmp_path):
    inner = "my-set-main/archive/data/v1/x"
    tree(
        tmp_path / "set",
        *(f"{inner}/{s}/images/#.png {inner}/{s}/masks/#.png" for s in ("train", "val")),
    )
    assert main(["data", "check", str(tmp_path / "set")]) == 0


def test_a_table_about_the_images_is_no_list_of_pairs(tmp_path):
    root = tree(tmp_path / "set", "images/#.png masks_crown/#.png", "images/#.png masks_root/#.png")
    (root / "manifest.csv").write_text("image_id,image_path,crown_mask\n1,images/1.png,1.png\n")
    assert commands(root) == [
        ["data.images=images", f"data.masks=masks_{name}"] for name in ("crown", "root")
    ]

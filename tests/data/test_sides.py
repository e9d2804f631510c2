"""Tests of the classes of two sides: pairs that are missing or wrong, and flips in
predictions.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import refused
from PIL import Image
from predictable_runs import make_run

from segtrain.config import Data
from segtrain.data.audit.check import check_folder
from segtrain.data.audit.images import flip_finding
from segtrain.data.labels.classes import with_sides
from segtrain.data.labels.space import plain_space
from segtrain.infer.predictor import load


def test_the_check_names_a_wrong_pair_and_not_the_number_of_classes(tmp_path):
    for kind, channels in (("images", (3,)), ("masks", ())):
        (tmp_path / kind / "train").mkdir(parents=True)
        pixels = np.arange(3, dtype=np.uint8).reshape(1, 3, *(1 for _ in channels))
        Image.fromarray(np.broadcast_to(pixels, (4, 3, *channels)).copy()).save(
            tmp_path / kind / "train" / "a.png"
        )
    settings = ["data.layout=folders", "data.flip_pairs=[[left arm, rihgt arm]]"]
    (tmp_path / "classes.txt").write_text("bare\nleft arm\nright arm\n")
    with refused("flip-pair-invalid"):
        check_folder(str(tmp_path), ["train"], settings)


def test_sides_that_no_pair_names_are_found_and_the_fix_keeps_the_pairs():
    names = ("bare", "left arm", "right arm", "left leg", "right leg")
    arms, legs = [["left arm", "right arm"]], [["left leg", "right leg"]]
    space = with_sides(plain_space(names), Data(layout="folders", root="x", flip_pairs=arms))
    (found,) = flip_finding("data.flip", space)
    assert found.settings == {"data.flip_pairs": arms + legs}
    pairs = found.settings["data.flip_pairs"]
    whole = with_sides(space, Data(layout="folders", root="x", flip_pairs=pairs))
    assert flip_finding("data.flip", whole) == [] == flip_finding("", space)


@pytest.mark.parametrize("settings", [[], ["data.flip_pairs=[[left, right]]"]])
def test_a_mirrored_prediction_says_that_sides_are_not_exchanged_and_takes_the_pairs(
    settings, tmp_path
):
    make_run(tmp_path / "run")
    labels = plain_space(("bare", "left", "right", "tail"))
    (tmp_path / "run" / "labels.json").write_text(json.dumps(labels.to_dict()))
    said: list[str] = []
    found = load(tmp_path / "run", "eval.flip=true", *settings, device="cpu", say=said.append)
    assert found.view.mirror == ((0, 2, 1, 3) if settings else ())
    assert len(said) == (not settings)
    assert not load(tmp_path / "run", device="cpu", say=said.append).view.mirror
    assert len(said) == (not settings)

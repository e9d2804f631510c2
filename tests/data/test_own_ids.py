"""Tests of class names with ids of their own, in layouts that have ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segtrain.config import Data
from segtrain.data.datasets import open_dataset
from segtrain.data.index.published import VOC
from segtrain.data.labels import presets
from segtrain.data.labels.classes import label_space
from segtrain.data.labels.space import LabelSpace, plain_space

OWN = [f"own {number}" for number in range(1, 12)]


def _set(root: Path, folders: tuple[str, str], ids: list[int]) -> None:
    for folder in folders:
        (root / folder).mkdir(parents=True)
    Image.fromarray(np.zeros((4, 12, 3), np.uint8)).save(root / folders[0] / "a.png")
    Image.fromarray(np.tile(np.array(ids, np.uint8), (4, 1))).save(root / folders[1] / "a.png")


def _named(space: LabelSpace, raw: int) -> str | None:
    train = space.raw_to_train[raw]
    return None if train == space.ignore_index else space.names[train]


@pytest.mark.parametrize(
    ("first", "text", "names"),
    [
        ("void, without ids", "\n".join(["void", *OWN]), {0: None, 1: "own 1", 11: "own 11"}),
        ("a class", "\n".join(OWN), {0: "own 1", 10: "own 11", 11: None}),
        ("few, void in the middle", "road\nvoid\ncar", {0: "road", 1: None, 2: "car"}),
    ],
)
def test_names_beside_camvid_keep_their_ids(first, text, names, tmp_path):
    _set(tmp_path, ("train", "trainannot"), [*range(12)])
    (tmp_path / "classes.txt").write_text(text)
    space = open_dataset(Data(layout="camvid", root=str(tmp_path)), "train").labels
    assert {raw: _named(space, raw) for raw in names} == names, first


@pytest.mark.parametrize(
    ("layout", "default", "given", "names"),
    [
        ("camvid", presets.CAMVID11, ("void", *OWN), {0: None, 1: "own 1", 11: "own 11"}),
        ("voc", presets.VOC21, ("void", *map(str, range(21))), {0: None, 1: "0", 21: "20"}),
        (
            "cityscapes",
            presets.CITYSCAPES19,
            tuple(map(str, range(19))),
            {0: None, 7: "0", 33: "18"},
        ),
        ("folders", plain_space(("a", "b")), ("void", "c", "d"), {0: None, 1: "c", 2: "d"}),
        ("shards", plain_space(("a", "b")), ("void", "a", "b"), {0: "a", 1: "b"}),
    ],
)
def test_given_names_keep_their_ids(layout, default, given, names):
    data = Data(layout=layout, root="x", classes=given)  # type: ignore[arg-type]
    space = label_space(data, default, VOC.other_classes if layout == "voc" else None)
    assert {raw: _named(space, raw) for raw in names} == names


def test_names_after_void_do_not_take_the_colors_of_pascal_voc():
    void_first = label_space(
        Data(layout="voc", root="x", classes=("void", "a", "b")), presets.VOC21, VOC.other_classes
    )
    assert not void_first.colors  # black would be "a"
    plain = label_space(
        Data(layout="voc", root="x", classes=("a", "b")), presets.VOC21, VOC.other_classes
    )
    assert plain.colors[0] == 0


def test_ids_of_a_file_that_are_those_of_the_layout_leave_its_other_ids_void(tmp_path):
    (tmp_path / "c.txt").write_text("".join(f"{raw + 1} {raw}\n" for raw in range(150)))
    space = label_space(
        Data(layout="ade20k", root=str(tmp_path), classes="c.txt"), presets.ADE20K150
    )
    assert [_named(space, raw) for raw in (0, 1, 150)] == [None, "0", "149"]

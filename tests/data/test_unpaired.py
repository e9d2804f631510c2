"""Tests of the errors about images and masks that do not match, and of the settings that they
propose.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from data_files import ids, packed, picture, quiet, run_check, sample_names, tree
from PIL import Image

from segtrain.cli import main
from segtrain.config import Data, load_config
from segtrain.data.datasets import open_dataset
from segtrain.data.index import listing
from segtrain.data.index.detect import detect
from segtrain.data.index.names import NAME, fitted, propose
from segtrain.data.index.pairs import several_masks
from segtrain.errors import EXIT_ERROR, ConfigError

CLASSES = "data.classes=[a, b]"
FOLDERS = ["data.layout=folders", "data.images=images", "data.masks=masks", CLASSES]


def opened(root: Path, *settings: str) -> Data:
    return load_config(None, [f"data.root={root}", *settings]).data


@pytest.mark.parametrize(
    "pair", ["p#.jpg p#.jpg.png", "train/images/p#.jpg train/masks/p#.jpg.png"]
)
def test_masks_that_keep_the_ending_of_their_image(tmp_path, pair):
    data, (split,) = detect(str(tree(tmp_path, pair)))
    assert data.pair == (data.pair[0], "{name}.jpg.png")
    assert len(open_dataset(data.model_copy(update={"classes": ("a", "b")}), split)) == 2


def test_a_proposal_in_an_error_pairs_what_it_claims(tmp_path, capsys):
    root = tree(tmp_path / "set", "images/p#_fram.jpg masks/p#_m.jpg.png")
    assert main(["data", "check", str(root), *FOLDERS]) == EXIT_ERROR
    setting = re.search(r"the names differ: (.*) pairs 2 of 2 images", capsys.readouterr().err)
    assert setting
    assert (
        main(
            ["data", "check", str(root), *FOLDERS, "data.overlap=accept", *shlex.split(setting[1])]
        )
        == 0
    )


def test_proposals_are_tried_on_every_name():
    images = [f"{n:05d}_x.jpg" for n in range(5000)]
    found = propose(images, [f"{n:05d}_y.jpg.png" for n in range(4000)])
    assert found is not None
    assert found.pairs == 4000
    one, other = fitted(found.patterns, images, [f"{n:05d}_y.jpg.png" for n in range(4000)])
    assert len(one.keys() & other.keys()) == 4000
    # All of the first 2,000, and not half of all.
    assert propose(images, [f"{n:05d}_y.png" for n in range(2400)]) is None


IN_TWO_WAYS = {
    "by split": ["train/images/x# train/masks/x#_w", "val/images/y# val/masks/y#-manual1"],
    "in a split": [
        "train/images/x#_im train/masks/x#_w",
        "train/images/y#_im train/masks/y#-manual1",
        "val/images/z#_im val/masks/z#_w",
    ],
    "both": ["train/images/x#_train train/masks/x#_w", "val/images/y#_val val/masks/y#-manual1"],
    "same name in train": ["train/images/x# train/masks/x#", "val/images/y# val/masks/y#_man1"],
}


@pytest.mark.parametrize("name", IN_TWO_WAYS)
def test_patterns_for_names_in_two_ways_fit_all_splits(tmp_path, name):
    pairs = [f"{pair.replace(' ', '.jpg ')}.png" for pair in IN_TWO_WAYS[name]]
    root = tree(tmp_path / "set", *pairs)
    checked = run_check(root, CLASSES)
    paired = {
        (os.path.relpath(entry.image, root), os.path.relpath(str(entry.mask), root))
        for dataset in checked.datasets.values()
        for entry in dataset.entries
    }
    expected = {tuple(pair.replace("#", str(seed)).split()) for pair in pairs for seed in (1, 2)}
    assert paired == expected
    assert not checked.failed
    # The config that is written has the same patterns.
    (tmp_path / "mine.yaml").write_text(checked.config())
    assert load_config(tmp_path / "mine.yaml").data.pair == checked.data.pair


def test_of_several_patterns_the_longest_counts_and_a_name_belongs_to_one_file(tmp_path):
    root = tree(tmp_path, "p#.jpg p#_mask.png", "q#.png q#_mask_fine.png")
    pair = "data.pair=[['{name}.jpg', '{name}'], ['{name}_mask', '{name}_mask_fine.png']]"
    words = ["data.layout=folders", "data.images=.", "data.masks=.", CLASSES, pair]
    dataset = open_dataset(opened(root, *words), "all")
    assert [(Path(e.image).name, Path(str(e.mask)).name) for e in dataset.entries] == [
        *((f"p{seed}.jpg", f"p{seed}_mask.png") for seed in (1, 2)),
        *((f"q{seed}.png", f"q{seed}_mask_fine.png") for seed in (1, 2)),
    ]
    ids(root / "p2_mask_fine.png")
    with refused("name-repeated") as caught:
        open_dataset(opened(root, *words), "all")
    assert {Path(caught.value.values[key]).name for key in ("file", "other")} == {
        "p2_mask.png",
        "p2_mask_fine.png",
    }
    for wrong in ("[[], '{name}_m']", "[['{name}', 'x'], '{name}_m']"):
        with refused("invalid-value"):
            opened(root, *words[:-1], f"data.pair={wrong}")


SEVERAL = {
    "two folders": ("images/p#.jpg", "masks/p#_road.png", "masks/p#_car.png"),
    "one folder": ("p#.jpg", "p#_road_mask.png", "p#_car_mask.png"),
    "before the name": ("images/p#.jpg", "masks/road-p#.png", "masks/car-p#.png"),
    "a folder of each class": ("images/p#.jpg", "masks/road/p#.png", "masks/car/p#.png"),
    "a folder of each image": ("images/p#.jpg", "masks/p#/road.png", "masks/p#/car.png"),
    "images with an ending": ("images/p#_img.jpg", "masks/p#_road.png", "masks/p#_car.png"),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_masks_of_an_image(tmp_path, name):
    """Masks of two values are read together; masks of ids are refused."""
    for seed in (1, 2):
        image, *masks = (text.replace("#", str(seed)) for text in SEVERAL[name])
        picture(tmp_path / image, seed=seed)
        for mask, values in zip(masks, ((0, 0, 0, 255), (0, 255, 255, 255))):
            ids(tmp_path / mask, values, (12, 16))
    dataset = open_dataset(detect(str(tmp_path))[0], "all")
    assert dataset.labels.names == ("background", "car", "road")
    # Where both are, the smaller one counts.
    assert [dataset.read_mask(index)[0, :4].tolist() for index in range(2)] == [[0, 1, 1, 2]] * 2
    for seed in (1, 2):
        for text in SEVERAL[name][1:]:
            ids(tmp_path / text.replace("#", str(seed)), (0, 1, 2))
    with refused("several-masks-per-image"):
        run_check(tmp_path, CLASSES)


def test_one_of_several_masks_beside_each_image_is_chosen_by_its_ending(tmp_path):
    for seed in (1, 2):
        picture(tmp_path / f"p_{seed}.jpg", seed=seed)
        for end in ("mask", "color_mask", "other"):
            ids(tmp_path / f"p_{seed}_{end}.png", (0, 1, 2))
    with refused("several-masks-per-image") as caught:
        run_check(tmp_path, CLASSES)
    lines = str(caught.value).splitlines()[1:-1]
    patterns = [re.search(r"}(_.*)'", line)[1] for line in lines]
    assert patterns == ["_color_mask.png", "_mask.png"]
    for line in lines:
        (dataset,) = run_check(tmp_path, *shlex.split(line)[4:]).datasets.values()
        assert sample_names(dataset) == ["p_1", "p_2"]
        assert "4 files left out" in dataset.notes[0]
    ids(tmp_path / "q_1_mask.png", (0, 1, 2))
    with refused("files-unpaired", masks=1):
        run_check(tmp_path, *shlex.split(line)[4:])


def test_half_of_the_images_have_several_masks_or_none_is_refused():
    """In one folder, masks do not count as images."""
    masks = ["a_x.png", "a_y.png", "b_x.png", "b_y.png"]
    assert several_masks(["a.png", "b.png", "c.png", "d.png", *masks], masks, NAME, together=True)
    assert not several_masks(
        [*(f"{name}.png" for name in "abcde"), *masks], masks, NAME, together=True
    )


def test_a_usual_ending_tells_the_mask_from_other_pictures(tmp_path):
    root = tree(tmp_path, "x#.jpg x#_mask.png", "x#_overlay.png x#_mask.png")
    assert detect(str(root))[0].pair == ("{name}.jpg", "{name}_mask.png")


def test_pictures_that_may_be_images_are_named(tmp_path):
    root = tree(tmp_path, "x#_dem.png x#_seg.png")
    for index in (1, 2):
        (root / f"x{index}_rgb.heic").touch()
    with refused("images-unread", found=".heic"):
        detect(str(root))
    assert detect(str(root), leave_out=["*.heic"])[0].pair[0] == "{name}_dem.png"
    for index in (1, 2):
        picture(root / f"x{index}_rgb.jp2")
    with refused(
        "images-ambiguous", "data.pair=['{name}_rgb', '{name}_seg.png']", found=["_dem", "_rgb"]
    ):
        detect(str(root), leave_out=["*.heic"])


def test_masks_in_the_folder_of_their_images_are_no_images_without_a_mask(tmp_path):
    root = tree(tmp_path, "x#.jpg x#_mask.png", "y#.png y#_mask.png")
    (root / "y1_mask.png").unlink()
    assert detect(str(root))[0].pair == ("{name}", "{name}_mask.png")


def test_what_patterns_leave_out_is_a_warning(tmp_path, monkeypatch, capsys):
    root = tree(tmp_path / "set", "images/p#.jpg masks/p#_m.png")
    words = [*FOLDERS, "data.pair=['{name}.jpg', '{name}_m.png']"]
    assert open_dataset(opened(root, *words), "all").notes == ()
    for name in ("q1.jpeg", "q2.jpeg"):
        picture(root / "images" / name)
    ids(root / "masks/p1_w.png", (0, 1))
    monkeypatch.setattr(listing, "_FEW", 1)
    for folder in ("", "images", "masks"):
        os.utime(root / folder, (1, 1))
    (note,) = open_dataset(opened(root, *words), "all").notes
    assert note.startswith("warning: 3 files left out")
    assert note.endswith(f": {root}/images/q1.jpeg, {root}/images/q2.jpeg, {root}/masks/p1_w.png")
    assert main(["data", "convert", str(root), str(tmp_path / "new"), *words]) == 0
    assert note in capsys.readouterr().out
    monkeypatch.setattr(listing, "_list", lambda *_: pytest.fail("listed again"))
    assert open_dataset(opened(root, *words), "all").notes == (note,)  # from the kept listing too


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_what_is_left_out_is_in_no_listing(tmp_path, server, place):
    """Not in the detection either, where `labels` would be a second folder of masks."""
    folder = tmp_path / "set"
    if place == "bucket":
        pytest.importorskip("obstore")
        folder = server.folder / "bkt/set"
    tree(folder, "images/p#.jpg masks/p#.png", "images/raw/q#.jpg labels/p#.png")
    picture(folder / "images/preview.png")
    root = str(folder) if place == "disk" else "s3://bkt/set"
    checked = run_check(root, CLASSES, "data.leave_out=[labels, 'images/raw*', preview.png]")
    assert not checked.failed
    (dataset,) = checked.datasets.values()
    assert sample_names(dataset) == ["p1", "p2"]
    assert "5 files left out by data.leave_out" in dataset.notes
    with refused("leave-out-matches-nothing", found="label", near="labels"):
        run_check(root, *FOLDERS, "data.leave_out=[images/raw, label]")
    with pytest.raises(ConfigError, match="has lists of its files"):
        opened(folder, "data.layout=list", CLASSES, "data.leave_out=[labels]")


def test_images_without_a_mask_and_classes_without_names_do_not_stop(tmp_path):
    root = tree(tmp_path, "images/p#.png masks/p#.png")
    picture(root / "images/more.png")
    checked = run_check(root)
    assert (checked.data.absent_mask, checked.data.classes) == ("leave-out", ("class_0", "class_1"))
    assert not checked.failed
    why = " ".join(finding.message for finding in checked.reports[0].findings)
    assert "1 image without a mask: not labeled" in why
    assert "nothing names the classes: class_0, class_1" in why
    ids(root / "masks/another.png")
    with refused("files-unpaired", images=1, masks=1):
        run_check(root)


NEGATIVES = {
    "named": (["data.classes=[a, background]", "data.label_map={255: 1, 0: 0}"], (0, 255), 1),
    "not named": (["data.classes=[a, b]"], (0, 1), 0),
    "objects": (["data.classes=[background, b]", "data.mask_code=objects"], (0, 5), 0),
    "colors": (["data.classes={a: [9, 9, 9], background: [5, 5, 5]}"], (9, 5), 1),
}


@pytest.mark.parametrize("name", NEGATIVES)
def test_images_without_a_mask_may_be_background(tmp_path, name):
    settings, values, background = NEGATIVES[name]
    root = tree(tmp_path / "set", "images/p#.png masks/p#.png")
    for path in root.glob("masks/*"):
        mask = Image.open(ids(path, values))
        (mask.convert("RGB") if name == "colors" else mask).save(path)
    picture(root / "images/q.png", (7, 5))
    checked = run_check(root, *settings, "data.absent_mask=background")
    assert not checked.failed
    assert "1 image without a mask taken as background" in checked.text()
    (dataset,) = checked.datasets.values()
    assert sample_names(dataset) == ["p1", "p2", "q"]
    assert np.array_equal(dataset.read_mask(2), np.full((7, 5), background))
    assert np.array_equal(dataset.read(2)[1], dataset.read_mask(2))
    quiet(dataset, tmp_path / "packed")
    assert np.array_equal(packed(tmp_path / "packed", "all").read_mask(2), dataset.read_mask(2))
    words = [*settings, "data.absent_mask=background"]
    assert main(["data", "convert", str(root), str(tmp_path / "new"), *words]) == 0
    new = np.array(Image.open(tmp_path / "new/masks/q.png"))
    assert np.array_equal(new, dataset.read_mask(2))


def test_lists_of_masks_have_no_background(tmp_path):
    with refused("conflicting-settings", "lists masks"):
        opened(tmp_path, "data.layout=voc", "data.absent_mask=background")


UNPAIRED = {
    "masks without an image": (["masks/q.png"], [], [["data.faults=skip"]]),
    "and images without a mask": (
        ["masks/q.png"],
        ["images/r.png"],
        [
            ["data.absent_mask=leave-out", "data.faults=skip"],
            ["data.absent_mask=background", "data.faults=skip"],
        ],
    ),
    "two files of an image": (
        ["masks/q.png"],
        ["images/p1.jpg", "images/p2.jpg", "images/q.png"],
        [
            ["data.pair=['{name}.jpg', '{name}']", "data.faults=skip"],
            ["data.pair=['{name}.png', '{name}']"],
        ],
    ),
    "two files of each mask": (
        ["masks/p1.tif", "masks/p2.tif"],
        [],
        [["data.pair=['{name}', '{name}.png']"], ["data.pair=['{name}', '{name}.tif']"]],
    ),
}


@pytest.mark.parametrize("name", UNPAIRED)
def test_files_that_do_not_pair_have_a_command_for_each_way_on(tmp_path, capsys, name):
    masks, images, expected = UNPAIRED[name]
    root = tree(tmp_path, "images/p#.png masks/p#.png")
    for path in masks:
        ids(root / path)
    for seed, path in enumerate(images, 9):
        picture(root / path, seed=seed)
    # Without these, several masks of an image may be those of objects.
    given = ["data.images=images", "data.masks=masks"] * (name == "two files of each mask")
    words = ["data", "check", str(root), *given]
    assert main(words) == EXIT_ERROR
    lines = [shlex.split(line) for line in capsys.readouterr().err.splitlines()[1:]]
    assert sorted(line[1 + len(words) :] for line in lines) == sorted(expected)
    for line in lines:
        assert main([*line[1:], CLASSES]) == 0

"""Tests of annotation files of several people, and of several folders with their images."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from annotated_sets import coco, opened
from conftest import refused
from data_files import ids, picture

from segtrain.cli import main
from segtrain.data.index.detect import detect
from segtrain.errors import EXIT_ERROR

BOX = [2, 2, 12, 2, 12, 9, 2, 9]


def people(root: Path, *names: str) -> None:
    """COCO files of the same images; in each, the shapes are one pixel farther."""
    for number, name in enumerate(names):
        shutil.rmtree(root / "images", ignore_errors=True)
        moved = [place + number for place in BOX]
        coco(root, [[image, "cell", moved] for image in range(4)], 4)
        (root / "train.json").rename(root / f"{name}.json")


def merge(root: Path, *settings: str) -> int:
    shutil.rmtree(root.parent / "out", ignore_errors=True)
    annotators = [word for setting in settings[1:] for word in ("--annotator", setting)]
    words = ["data", "convert", str(root), str(root.parent / "out"), "--merge", "agreement"]
    return main([*words, *annotators, settings[0]])


def test_annotators_of_files_differ_by_what_they_drew(tmp_path, capsys):
    root = tmp_path / "set"
    people(root, "anna", "ben", "eve")
    shutil.copy(root / "ben.json", root / "copy.json")
    anna, ben, eve = (f"data.annotations={name}.json" for name in ("anna", "ben", "eve"))
    assert merge(root, anna, ben, eve) == 0
    for repeated in ((anna, anna), (anna, ben, ben), (anna, ben, "data.annotations=copy.json")):
        assert merge(root, *repeated) == EXIT_ERROR
        assert "annotator before it" in capsys.readouterr().err


def test_two_attributes_of_one_file_may_be_two_annotators(tmp_path, capsys):
    root = tmp_path / "set"
    content = {}
    for number in range(3):
        picture(root / f"images/{number}.png", (20, 30), number)
        area = {"name": "rect", "x": 3, "y": 3, "width": 9, "height": 9}
        kinds = {"anna": "ab"[number % 2], "ben": "ab"[number > 0]}
        region = {"shape_attributes": area, "region_attributes": kinds}
        content[f"{number}"] = {"filename": f"{number}.png", "size": 1, "regions": [region]}
    (root / "via.json").write_text(json.dumps(content))
    assert main(["data", "check", str(root)]) == EXIT_ERROR
    lines = capsys.readouterr().err.splitlines()[1:]
    assert [line.rpartition(" ")[2] for line in lines] == [
        "data.label_key=anna",
        "data.label_key=ben",
    ]
    assert main(shlex.split(lines[1])[1:]) == 0
    assert merge(root, "data.label_key=anna", "data.label_key=ben") == 0
    assert merge(root, "data.label_key=anna", "data.label_key=anna") == EXIT_ERROR


def test_a_project_of_via_and_its_export_are_one_choice_which_reads_all_splits(tmp_path):
    root = tmp_path / "set"
    for split, left in (("train", 3), ("val", 9)):
        picture(root / split / "a.png", (20, 30), left)
        area = {"name": "rect", "x": left, "y": 3, "width": 9, "height": 9}
        region = {"shape_attributes": area, "region_attributes": {}}
        export = {"a.png1": {"filename": "a.png", "size": 1, "regions": [region]}}
        (root / split / "project.json").write_text(json.dumps({"_via_img_metadata": export}))
        (root / split / "via.json").write_text(json.dumps(export))
    assert detect(str(root))[0].annotations == "{split}/project.json"
    assert detect(str(root), "{split}/via.json")[1] == ("train", "val")
    for split in ("train", "val"):
        export["a.png1"]["regions"] *= 2
        (root / split / "via.json").write_text(json.dumps(export))
    with refused("annotations-ambiguous"):
        detect(str(root))
    assert detect(str(root), "{split}/via.json")[1] == ("train", "val")


def test_the_folder_that_has_all_images_is_read(tmp_path):
    coco(tmp_path, [[number, "cell", BOX] for number in range(30)], 30)
    for folder, numbers in (("a_part", range(25)), ("b", range(18)), ("c", range(18, 30))):
        for number in numbers:
            picture(tmp_path / folder / f"{number}.png", (20, 30), number)
    assert detect(str(tmp_path))[0].images == "images"
    shutil.copytree(tmp_path / "images", tmp_path / "more")
    with refused("images-ambiguous", found=["images", "more"]):
        detect(str(tmp_path))
    for folder in ("images", "more"):
        shutil.rmtree(tmp_path / folder)
    assert detect(str(tmp_path))[0].images == "a_part"  # the images below are there twice
    shutil.rmtree(tmp_path / "a_part")
    assert detect(str(tmp_path))[0].images == "."
    assert len(opened(tmp_path)) == 30


@pytest.mark.parametrize("names", [["1", "2"], ["x", "y"]])
def test_masks_of_objects_that_differ_are_no_annotators(tmp_path, names):
    for number in range(4):
        picture(tmp_path / f"images/{number}.png", seed=number)
        for place, name in enumerate(names):
            ids(tmp_path / f"masks/{number}_{name}.png", (255, 0) if place else (0, 255))
    assert detect(str(tmp_path))[0].layout == "objects"
    for number in range(4):
        ids(tmp_path / f"masks/{number}_{names[1]}.png", (0, 255))
    with refused("masks-alike", found=names):
        detect(str(tmp_path))

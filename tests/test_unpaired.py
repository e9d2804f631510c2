"""Tests of the errors about images and masks that do not match, and of the settings that they propose."""

from __future__ import annotations

import os
import re
import shlex
import sys
import unicodedata
from pathlib import Path

import pytest
from test_datasets import ids, picture
from test_layouts import tree

from segtrain.cli import main
from segtrain.config import Data, load_config
from segtrain.data.datasets import open_dataset
from segtrain.data.index import listing
from segtrain.data.index.names import fitted, name_in, propose
from segtrain.errors import EXIT_ERROR, DataError

CLASSES = "data.classes=[a, b]"
FOLDERS = ["data.layout=folders", "data.images=images", "data.masks=masks", CLASSES]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "cache"))


def refusal(capsys: pytest.CaptureFixture[str], root: Path, *settings: str) -> str:
    assert main(["data", "check", str(root), *settings]) == EXIT_ERROR
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "pair", ["images/p#.jpg masks/p#.jpg.png", "p#.jpg p#.jpg.png", "train/images/p#.jpg train/masks/p#.jpg.png"]
)
def test_masks_that_keep_the_ending_of_their_image(
    tmp_path: Path, pair: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tree(tmp_path / "set", pair)
    assert main(["data", "check", str(root), CLASSES]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("segtrain train "))
    pasted = load_config(None, shlex.split(line)[2:]).data
    assert pasted.pair is not None
    assert pasted.pair[1] == "{name}.jpg.png"
    assert sum(len(open_dataset(pasted, split)) for split in ("train", "val")) == 2


def test_a_proposal_in_an_error_pairs_what_it_claims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tree(tmp_path / "set", "images/p#.jpg masks/p#.jpg.png")
    error = refusal(capsys, root, *FOLDERS)
    setting = re.search(r"the names differ: (.*) pairs 2 of 2 images", error)
    assert setting
    assert main(["data", "check", str(root), *FOLDERS, "data.overlap=accept", *shlex.split(setting[1])]) == 0


def test_proposals_are_tried_on_every_name() -> None:
    images = [f"{n:05d}_x.jpg" for n in range(5000)]
    found = propose(images, [f"{n:05d}_y.jpg.png" for n in range(4000)])
    assert found is not None
    assert found.pairs == 4000
    one, other = fitted(found.patterns, images, [f"{n:05d}_y.jpg.png" for n in range(4000)])
    assert len(one.keys() & other.keys()) == 4000
    assert (
        propose(images, [f"{n:05d}_y.png" for n in range(2400)]) is None
    )  # all of the first 2,000, and not half of all


SEVERAL = {
    "two folders": ("images/p#.jpg", "masks/p#_road.png", "masks/p#_car.png"),
    "one folder": ("p#.jpg", "p#_road.png", "p#_car.png"),
    "an ending too": ("p#.jpg", "p#_road_mask.png", "p#_car_mask.png"),
    "before the name": ("images/p#.jpg", "masks/road-p#.png", "masks/car-p#.png"),
    "a folder of each class": ("images/p#.jpg", "masks/road/p#.png", "masks/car/p#.png"),
    "a folder of each image": ("images/p#.jpg", "masks/p#/road.png", "masks/p#/car.png"),
    "images with an ending": ("images/p#_img.jpg", "masks/p#_road.png", "masks/p#_car.png"),
    "images with a beginning": ("images/img_#.jpg", "masks/road_#.png", "masks/car_#.png"),
    "one ending for all": ("p#.png", "p#_road.png", "p#_car.png"),
}


def several(root: Path, name: str) -> Path:
    for seed in (1, 2):
        image, *masks = (text.replace("#", str(seed)) for text in SEVERAL[name])
        picture(root / image, seed=seed)
        for mask in masks:
            ids(root / mask, (0, 1))
    return root


@pytest.mark.parametrize("name", SEVERAL)
def test_several_masks_of_an_image_are_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = several(tmp_path / "set", name)
    error = refusal(capsys, root, CLASSES)
    names = [os.path.relpath(text.replace("#", "1"), "masks" if "masks" in text else "") for text in SEVERAL[name][1:]]
    first, second = sorted(names)
    image = Path(SEVERAL[name][0].replace("#", "1")).name
    assert f"2 of 2 images have several masks ({image}: {first}, {second})" in error
    assert "segtrain reads one mask of class ids for each image" in error
    assert f"1 where {first} is set, 2 where {second} is set, else 0" in error
    assert error.count("\n") == 1
    if name == "a folder of each class":
        assert error.endswith("Or train on one of them alone: add /car or /road to data.masks\n")
    alone = re.search(r"Or train on one of them alone: (.*) pairs 2 images and leaves 2 masks out", error)
    assert bool(alone) == (name not in ("a folder of each class", "a folder of each image", "one ending for all"))
    if alone:
        where = (
            ["data.images=images", "data.masks=masks"]
            if "images" in SEVERAL[name][0]
            else ["data.images=.", "data.masks=."]
        )
        words = ["data.layout=folders", *where, "data.split_by={val: 1}", CLASSES, *shlex.split(alone[1])]
        assert main(["data", "check", str(root), *words]) == 0
        assert "warning: 2 " in capsys.readouterr().out


def test_a_usual_ending_tells_the_mask_from_other_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tree(tmp_path / "set", "x#.jpg x#_mask.png", "x#_overlay.png x#_mask.png")
    assert main(["data", "check", str(root), CLASSES]) == 0
    assert "2 images have a mask with data.pair=['{name}.jpg', '{name}_mask.png']; left out" in capsys.readouterr().out


def test_the_program_that_merges_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        picture(tmp_path / f"photos/p{seed}.jpg", seed=seed)
        ids(tmp_path / f"parts/p{seed}_road.png", (0, 255))
        ids(tmp_path / f"parts/p{seed}_car.png", (255, 0, 0))
    page = (Path(__file__).parents[1] / "docs/layouts.md").read_text(encoding="utf-8")
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], {})
    data = Data(layout="folders", root=".", images="photos", masks="masks", classes=("background", "road", "car"))
    dataset = open_dataset(data, "all")
    for index in range(2):
        assert sorted(set(dataset.read_mask(index).ravel().tolist())) == [0, 1, 2]


def test_what_patterns_leave_out_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tree(tmp_path / "set", "images/p#.jpg masks/p#_m.png")
    for name in ("q1.jpeg", "q2.jpeg"):
        picture(root / "images" / name)
    ids(root / "masks/p1_w.png", (0, 1))
    words = [*FOLDERS, "data.pair=['{name}.jpg', '{name}_m.png']"]
    told = (
        "2 of 4 images have a mask with data.pair=['{name}.jpg', '{name}_m.png']; left out, because they match no pattern or have no image: "
        f"2 of 4 files in {root}/images (q1.jpeg, q2.jpeg), 1 of 3 files in {root}/masks (p1_w.png)"
    )
    assert main(["data", "check", str(root), *words, "data.split_by={val: 1}"]) == 0
    out = capsys.readouterr().out
    assert f"warning: {told}\n" in out
    assert "0 faults, 1 warning" in out
    for verb in ("convert", "pack"):
        assert main(["data", verb, str(root), str(tmp_path / verb), *words, "data.split_by={val: 1}"]) == 0
        assert f"warning: {told}\n" in capsys.readouterr().out
    monkeypatch.setattr(listing, "_FEW", 1)
    for folder in ("images", "masks"):
        os.utime(root / folder, (1, 1))
    data = load_config(None, [f"data.root={root}", *words]).data
    first = open_dataset(data, "all")
    monkeypatch.setattr(listing, "_list", lambda *_: pytest.fail("listed again"))
    assert open_dataset(data, "all").notes == first.notes == (f"warning: {told}",)  # from the kept listing too


def test_nothing_is_said_where_nothing_is_left_out(tmp_path: Path) -> None:
    root = tree(tmp_path / "set", "x#.jpg x#_mask.png")
    data = load_config(
        None,
        [f"data.root={root}", "data.layout=folders", "data.images=.", "data.masks=.", CLASSES]
        + ["data.pair=['{name}.jpg', '{name}_mask.png']"],
    ).data
    assert open_dataset(data, "all").notes == ()


def test_a_folder_where_some_images_have_no_mask_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tree(tmp_path / "set", "x#.jpg x#_mask.png", "y#.jpg y#_mask.png")
    (root / "x1_mask.png").unlink()
    assert f"1 file without a mask: {root}/x1.jpg: with data.pair" in refusal(capsys, root, CLASSES)


@pytest.mark.parametrize("ending", ["", "_m"])
def test_names_in_two_unicode_forms(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path / "set", f"images/p#.jpg masks/p#{ending}.png")
    one, other = (unicodedata.normalize(form, "Ä") for form in ("NFC", "NFD"))
    picture(root / "images" / f"{one}.jpg")
    ids(root / "masks" / f"{other}{ending}.png", (0, 1))
    if (root / "masks" / f"{one}{ending}.png").exists():
        pytest.skip("this file system takes both forms for one name")
    words = [*FOLDERS, "data.split_by={val: 1}"]
    words += [f"data.pair=['{{name}}.jpg', '{{name}}{ending}.png']"] if ending else []
    error = refusal(capsys, root, *words)
    assert (
        f"names that look alike differ in their Unicode normalization (1, such as {one}): NFC in {root}/images" in error
    )
    assert f"NFD in {root}/masks" in error
    python, flag, program, folder = shlex.split(error.partition("to NFC: ")[2])
    assert (python, flag) == ("python", "-c")
    monkeypatch.setattr(sys, "argv", ["-c", folder])
    exec(program, {})
    assert main(["data", "check", str(root), *words]) == 0


def test_a_file_is_never_renamed_over_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tree(tmp_path / "set", "images/p#.jpg masks/p#.png")
    one, other = (unicodedata.normalize(form, "Ä") for form in ("NFC", "NFD"))
    for name, mask in ((one, one), (other, f"{one}b")):
        picture(root / "images" / f"{name}.jpg")
        ids(root / "masks" / f"{mask}.png", (0, 1))
    if len(list((root / "images").iterdir())) == 3:
        pytest.skip("this file system takes both forms for one name")
    picture(root / "images" / f"{other}b.jpg")
    error = refusal(capsys, root, *FOLDERS)
    assert error.endswith(f"rename the files to NFC: by hand in {root}/images/\n")


def test_a_list_in_another_unicode_form(tmp_path: Path) -> None:
    one, other = (unicodedata.normalize(form, "Ä") for form in ("NFC", "NFD"))
    picture(tmp_path / f"{one}.jpg")
    ids(tmp_path / "m.png", (0, 1))
    (tmp_path / "train.csv").write_text(f"image,mask\n{other}.jpg,m.png\n", encoding="utf-8")
    if (tmp_path / f"{other}.jpg").exists():
        pytest.skip("this file system takes both forms for one name")
    with pytest.raises(DataError, match=r"\\xc4\.jpg' is there, .*normalization \(NFC/NFD\)"):
        open_dataset(Data(layout="list", root=str(tmp_path), classes=("a", "b")), "train")


def test_folders_without_pictures_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture(tmp_path / "boxes/images/train/a.jpg")
    (tmp_path / "boxes/labels/train").mkdir(parents=True)
    for name in ("a", "b"):
        (tmp_path / f"boxes/labels/train/{name}.txt").write_text("0 0.1 0.2 0.3 0.4")
    error = refusal(capsys, tmp_path / "boxes", CLASSES)
    assert "not a known layout" in error
    assert f"{tmp_path}/boxes/labels/train/ holds 2 .txt files, which are not read (YOLO labels" in error
    assert "images/train/" not in error.partition("looked for")[0]
    for folder in ("images", "masks"):
        (tmp_path / "bare" / folder / "train").mkdir(parents=True)
    error = refusal(capsys, tmp_path / "bare", CLASSES)
    for folder in ("images", "masks"):
        assert f"{tmp_path}/bare/{folder}/train/ is empty\n" in error


def test_a_pattern_of_two_endings() -> None:
    assert name_in("{name}.jpg.png", "t/a.jpg.png") == "t/a"
    assert name_in("{name}.jpg", "a.jpg.png") is None

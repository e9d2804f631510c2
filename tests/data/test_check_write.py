"""Tests of the config that `segtrain data check --write` writes, and of what it says about it."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import refused
from data_files import ids, picture, run_check, sample_names
from PIL import Image

from segtrain.cli import main
from segtrain.config import FEW_STEPS, load_config, make_config
from segtrain.data.audit import written
from segtrain.data.audit.check import check_folder
from segtrain.data.audit.overlap import test_finding as finding_of_test
from segtrain.data.datasets import open_dataset
from segtrain.errors import EXIT_ERROR
from segtrain.training.start.faults import check_splits

CLASSES = "data.classes=[a, b]"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A set with the splits train and test, and a config to write."""
    for seed in range(8):
        folder = tmp_path / "set" / ("train" if seed < 6 else "test")
        picture(folder / f"images/{seed}.png", seed=seed)
        ids(folder / f"masks/{seed}.png")
    return tmp_path / "set", tmp_path / "mine.yaml"


def test_skipped_faults_do_not_stop_the_config(files):
    root, file = files
    (root / "train/images/0.png").write_bytes(b"")
    words = ["data", "check", str(root), CLASSES, "--write", str(file)]
    assert main(words) == EXIT_ERROR
    assert not file.exists()
    assert main([*words, "data.faults=skip"]) == 0
    assert load_config(file).data.faults == "skip"
    for image in (root / "test/images").iterdir():
        image.write_bytes(b"")  # no image is left
    assert run_check(root, CLASSES, "data.faults=skip").failed


def test_a_config_is_replaced_until_a_class_has_a_name(files, capsys):
    root, file = files
    for path in root.glob("train/masks/*"):
        ids(path, (0, 7))
    words = ["data", "check", str(root), "--write", str(file)]
    assert main(words) == EXIT_ERROR
    assert main([*words, "data.layout=voc"]) == EXIT_ERROR
    assert f"{file} was not written" in capsys.readouterr().err
    named = file.read_text().replace("?7", "road")
    file.write_text(named)
    assert main([*words, CLASSES]) == EXIT_ERROR
    assert file.read_text() == named
    file.write_text(named.replace("road", "?7"))
    assert main([*words, CLASSES, "data.label_map={0: 0, 1: 1, 7: 1}"]) == 0
    assert load_config(file).data.classes == ("a", "b")


def test_a_small_set_is_trained_for_enough_steps(files, monkeypatch):
    root, file = files
    words = ["data", "check", str(root), "--write", str(file)]
    for classes in ([], [CLASSES]):  # with a ? for each name, and without
        main([*words, *classes])
        for line in ("loss: {class_weights: auto}", f"train: {{duration: {FEW_STEPS}st}}"):
            assert line in file.read_text()
    assert run_check(root, CLASSES).command.endswith(f"={FEW_STEPS}st")
    monkeypatch.setattr(written, "FEW_STEPS", 7)  # 20 epochs of 6 images are 8 steps
    assert "duration" not in run_check(root, CLASSES).config()
    # Divided by data.split_by, and where only the validation split is checked.
    (root / "test").rename(root.with_name("elsewhere"))
    assert "duration" not in run_check(root, CLASSES).config()
    monkeypatch.setattr(written, "FEW_STEPS", 9)
    assert "{duration: 9st}" in run_check(root, CLASSES).config()


def test_a_test_split_that_takes_the_place_of_val_is_named(files):
    checked = run_check(files[0], CLASSES)
    (finding,) = checked.reports[0].findings
    assert "'test' is the validation split" in finding.message
    settings = {"data.split_by": {"of": "train", "val": 1}, "data.split": "val"}
    assert finding.settings == settings
    assert not finding.fatal
    config = make_config({"data": checked.data.model_dump(exclude_unset=True)}, "the test")
    train, test = (open_dataset(checked.data, split) for split in ("train", "test"))
    assert f"note: {finding.text()}" in check_splits(config, train, test).remarks
    divided = checked.data.model_copy(update={"split": "val"})
    assert not finding_of_test(divided, open_dataset(divided, "train"))


def test_a_set_that_the_config_divides_is_no_warning(files):
    root, _ = files
    (root / "test").rename(root.with_name("elsewhere"))
    (report,) = run_check(root, CLASSES).reports
    assert not report.warning_count
    assert "no split 'val', only train: data.split_by divides train" in report.table()


def test_the_values_of_some_masks_are_called_so(files, monkeypatch):
    root, _ = files
    ids(root / "train/masks/1.png", (0, 7))
    text = run_check(root).text()
    assert "the masks have the ids 0 (50.0 %), 1 (43.8 %) and 7 (6.2 %). Write the name" in text
    monkeypatch.setattr("segtrain.data.audit.settled._SOME", 2)
    ids(root / "train/masks/0.png", (0, 9))
    assert "4 of 8 masks have the ids" in run_check(root).text()
    ids(root / "train/masks/0.png")
    assert "unknown ids 7" in run_check(root, CLASSES).reports[0].faults[0][1]
    for path in root.glob("train/masks/*"):
        ids(path, (0, 64, 255))
    for path in root.glob("test/masks/*"):
        ids(path, (0, 64, 128))
    data = run_check(root).data
    assert data.classes == ("class_0", "class_64", "class_128", "class_255")
    assert data.label_map == {0: 0, 64: 1, 128: 2, 255: 3}
    for path in root.glob("*/masks/*"):
        Image.fromarray(np.tile([-1, 0, 1, 1], (12, 4)).astype(np.int32)).save(path, "tiff")
    checked = run_check(root)
    assert (checked.failed, checked.unnamed, checked.data.classes) == (False, True, ("?0", "?1"))
    table = "data.label_map={-1: '?', 0: 0, 1: 1}"
    with refused("class-name-missing", found=-1):
        run_check(root, CLASSES, table)
    assert not run_check(root, CLASSES, table.replace("'?'", "-1")).failed


def test_gray_levels_by_a_palette_are_those_of_other_masks(files):
    """Programs that save GIFs choose the indices: 251 may be white, as 255 is without a palette."""
    root, _ = files
    for path in root.glob("*/masks/*"):
        ids(path, (0, 255))
    mask = Image.open(ids(root / "train/masks/0.png", (0, 251)))
    mask.putpalette([0] * 753 + [255] * 3 + [9] * 12)
    mask.save(root / "train/masks/0.png")
    checked = run_check(root)
    assert (checked.failed, checked.data.classes) == (False, ("class_0", "class_255"))
    assert checked.data.label_map == {0: 0, 255: 1, 251: 1}
    assert "index -> level: {251: 255}" in checked.text()
    # Without a palette, these are two ids so near that they may be noise.
    ids(root / "train/masks/0.png", (0, 251))
    with refused("ids-ambiguous"):
        run_check(root)


def test_colors_of_palettes_keep_the_order_of_the_indices(files):
    root, _ = files
    colors = [(0, 0, 0), (128, 0, 0), (0, 128, 0)]
    for path in root.glob("*/masks/*"):
        mask = Image.open(ids(path, (0, 1, 2)))
        mask.putpalette([value for color in colors for value in color])
        mask.save(path)
    Image.open(path).convert("RGB").save(path)
    checked = run_check(root)
    assert (checked.failed, [*checked.data.classes.values()]) == (False, colors)
    assert "to ignore a color: name it void" in checked.text()


def test_a_single_image_has_no_command_that_trains(files):
    root, file = files
    shutil.rmtree(root / "test")
    for path in [*root.glob("train/*/*")]:
        if path.stem != "0":
            path.unlink()
    checked = run_check(root, CLASSES)
    assert checked.failed
    assert not checked.command
    assert "train is a single image: add images" in checked.text(file)


def test_a_stray_id_has_a_command_for_each_meaning(files, capsys):
    root, file = files
    for path in root.glob("*/masks/*"):
        ids(path, (0, 255))
    mask = np.array(Image.open(root / "train/masks/0.png"))
    mask[0, 0] = 32
    Image.fromarray(mask).save(root / "train/masks/0.png")
    (root / "train/images/1.png").write_bytes(b"")
    assert main(["data", "check", str(root), "--write", str(file)]) == EXIT_ERROR
    ignored, kept = capsys.readouterr().err.splitlines()[-2:]
    assert '"data.label_map={0: 0, 32: 1, 255: 2}"' in kept
    assert main(shlex.split(ignored)[1:]) == EXIT_ERROR  # an empty file
    again = capsys.readouterr().out.rpartition("check again with the proposed settings:\n")[2]
    assert main(shlex.split(again)[1:]) == 0
    data = load_config(file).data
    assert (data.label_map, data.faults) == ({0: 0, 32: -1, 255: 1}, "skip")


def test_equal_images_of_pascal_voc_are_left_out_of_train(tmp_path):
    root, names = tmp_path / "set", ("a", "b", "c", "d", "e", "f")
    for name in names:
        picture(root / f"JPEGImages/{name}.jpg", seed=0 if name in "bc" else ord(name))
        ids(root / f"SegmentationClass/{name}.png", (0, 1))
    lists = root / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    (lists / "trainval.txt").write_text("\n".join(names))
    left_out = set[tuple[str, ...]]()
    for seed in range(9):
        checked = run_check(root, CLASSES, f"data.split_by={{of: trainval, val: 2, seed: {seed}}}")
        assert not checked.failed
        train, val = (sample_names(open_dataset(checked.data, part)) for part in ("train", "val"))
        assert not ({*"bc"} & {*train} and {*"bc"} & {*val})
        assert len(train) + len(val) == len(names) - bool(checked.data.leave_out)
        left_out.add(checked.data.leave_out)
    assert left_out - {()} <= {(f"JPEGImages/{n}.jpg", f"SegmentationClass/{n}.png") for n in "bc"}
    assert len(left_out) > 1


def test_equal_images_in_both_parts_of_a_divided_set_are_a_fault(files, capsys):
    root, file = files
    (root / "test").rename(root.with_name("elsewhere"))
    for path in root.glob("train/images/*"):
        picture(path)
    checked = run_check(root, CLASSES)
    assert checked.failed
    assert "images of val are training images" in checked.text()
    assert not run_check(root, CLASSES, "data.overlap=accept").failed
    for number in (0, 2, 4):
        picture(root / f"train/images/{number}.png", seed=number)
        (root / f"train/images/{number + 1}.png").unlink()
        (root / f"train/masks/{number + 1}.png").rename(root / f"train/masks/{number} [1].png")
        picture(root / f"train/images/{number} [1].png", seed=number)
    assert main(["data", "check", str(root), "--write", str(file)]) == 0
    assert "Leave them out of train, as done above" in capsys.readouterr().out
    image, mask = load_config(file).data.leave_out
    assert mask == image.replace("images", "masks")
    # As in a set that has a val split.
    (root.with_name("elsewhere")).rename(root / "val")
    picture(min(root.glob("val/images/*")), seed=0)
    checked = run_check(root, CLASSES)
    paths = [
        f"train/{kind}/{name}.png" for kind in ("images", "masks") for name in ("0 [[]1]", "0")
    ]
    assert checked.data.leave_out == tuple(paths)
    assert not checked.failed
    values = yaml.safe_load(checked.config())
    del values["data"]["leave_out"]
    file.write_text(yaml.safe_dump(values))
    assert run_check(file).failed


PATIENTS = {
    "names": "p{p}_{n}",
    "folders": "case{p}/{n}",
    "few groups": "p{few}_{n}",
    "classes": "{letter}_{n}",
    "one image each": "p{p}{n}_0",
}


@pytest.mark.parametrize("form", PATIENTS)
def test_images_of_a_patient_stay_together(tmp_path, form):
    for p in range(7):
        for n in range(4):
            name = PATIENTS[form].format(p=p, n=n, few=p % 4, letter="abcdefg"[p])
            name += f"{p}" * (form == "few groups")
            picture(tmp_path / f"images/{name}.png", seed=4 * p + n)
            ids(tmp_path / f"masks/{name}.png")
    checked = run_check(tmp_path, CLASSES)
    assert not checked.failed
    together = form in ("names", "folders")
    assert bool(checked.data.split_by.group) == together
    assert ("stay together" in checked.text()) == together
    train, val = (sample_names(open_dataset(checked.data, split)) for split in ("train", "val"))
    assert len({*train, *val}) == 28
    if together:
        assert not {name[:-2] for name in train} & {name[:-2] for name in val}
        assert 4 <= len(val) <= 8


def test_one_jpeg_among_the_masks_has_no_label_map(files):
    root, _ = files
    Image.new("L", (16, 12), 99).save(root / "train/masks/1.png", "jpeg")
    report = run_check(root, CLASSES).reports[0]
    assert "JPEG changes the labels" in report.faults[0][1]
    assert not any("the masks are JPEGs" in finding.message for finding in report.findings)


def test_ids_of_objects_are_no_interpolation(files):
    root, _ = files
    for path in root.glob("train/masks/*.png"):
        picture(path.parent.parent / "images" / path.name, (960, 960), seed=int(path.stem))
        objects = np.kron(np.arange(100).reshape(10, 10) // 2, np.ones((40, 40), int))
        Image.fromarray(np.pad(objects, (0, 560)).astype(np.uint8)).save(path)
    assert "if each id is an object" in check_folder(str(root), ["train"], []).text()
    report = check_folder(str(root), ["train"], [CLASSES]).reports[0]
    assert "interpolation" not in report.table()
    (finding,) = (finding for finding in report.findings if finding.fatal)
    assert finding.settings == {"data.mask_code": "objects"}

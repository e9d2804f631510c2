"""Tests of which files are listed: none in folders of the system, and exactly those that a list
names.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import refused
from data_files import ids, picture, run_check, sample_names

from segtrain.config import Data
from segtrain.data.audit.check import check_folder
from segtrain.data.datasets import open_dataset
from segtrain.data.index.detect import detect
from segtrain.infer.predict import plan

SYSTEM = (".cache", "@eaDir", "#recycle", "$Recycle.Bin", "__MACOSX", "lost+found", "@tmp")
# layout -> a pair of files in split train, and folders in which copies of them are no data
PAIRS = {
    "folders": ("images/train/a.png", "masks/train/a.png"),
    "camvid": ("train/a.png", "trainannot/a.png"),
    "cityscapes": (
        "leftImg8bit/train/ulm/a_leftImg8bit.png",
        "gtFine/train/ulm/a_gtFine_labelIds.png",
    ),
    "ade20k": ("images/training/a.png", "annotations/training/a.png"),
    "voc": ("JPEGImages/a.png", "SegmentationClass/a.png"),
}


def names(data: Data, split: str = "train") -> list[str]:
    return [Path(entry.image).name for entry in open_dataset(data, split).entries]


def with_copies(root: Path, layout: str) -> Path:
    """A data set of one pair, and a copy of each file in each folder of SYSTEM, beside it and at
    the top.
    """
    for file, write in zip(PAIRS[layout], (picture, ids)):
        path = write(root / file)
        for folder in SYSTEM:
            write(path.parent / folder / "deeper" / path.name)
            write(root / folder / file)
    if layout == "voc":
        (root / "ImageSets/Segmentation").mkdir(parents=True)
        (root / "ImageSets/Segmentation/train.txt").write_text("a\n")
    return root


def test_runs_inside_a_data_set_hold_no_data(tmp_path):
    for name, write in (("a.png", picture), ("a_mask.png", ids)):
        write(tmp_path / "set" / name)
    places = {"images": ".", "masks": ".", "pair": ("{name}", "{name}_mask")}
    data = Data(root=str(tmp_path / "set"), layout="folders", classes=("x", "y"), **places)
    assert names(data, "all") == ["a.png"]
    run = picture(tmp_path / "set/runs/one/pictures/val.png").parents[1]
    with refused("files-unpaired"):  # any other folder belongs to the data set
        names(data, "all")
    for name in ("journal.jsonl", "config.yaml"):
        (run / name).touch()
    assert names(data, "all") == ["a.png"]


@pytest.mark.parametrize("layout", PAIRS)
def test_folders_of_the_system_hold_no_data(tmp_path, layout):
    data, splits = detect(str(with_copies(tmp_path / "set", layout)))
    assert (data.layout, splits) == (layout, ("train",))
    dataset = open_dataset(
        data.model_copy(update={"classes": ("a", "b")} if layout == "folders" else {}), "train"
    )
    assert len(dataset) == 1
    if layout != "voc":  # its lists name the masks
        (note,) = [note for note in dataset.notes if "@eaDir" in note]
        assert f"{2 * len(SYSTEM)} image files" in note


def test_folders_of_the_system_hold_no_data_in_a_bucket(server):
    pytest.importorskip("obstore")
    here = with_copies(server.folder / "bkt/set", "folders")
    data, splits = detect("s3://bkt/set")
    assert (data.layout, splits) == ("folders", ("train",))
    local, bucket = (
        open_dataset(data.model_copy(update={"classes": ("a", "b"), "root": root}), "train")
        for root in (str(here), "s3://bkt/set")
    )
    assert len(bucket) == len(local) == 1
    assert bucket.notes == local.notes


def test_predict_leaves_folders_of_the_system_out(tmp_path):
    for folder in (
        "in",
        "in/town",
        *(f"in/{name}" for name in SYSTEM),
        "in/town/.ipynb_checkpoints",
    ):
        picture(tmp_path / folder / "a.png")
    said: list[str] = []
    tasks = plan([tmp_path / "in"], tmp_path / "out", say=said.append)
    assert [task.image for task in tasks] == [tmp_path / "in/a.png", tmp_path / "in/town/a.png"]
    assert f"{len(SYSTEM) + 1} files" in said[0]


# lines of a list, images in the folder, and those that are read (None: refused)
LINES = {
    "blanks": ("a 1\nb 2\n", "a 1.jpg, b 2.jpg, a.jpg, b.jpg", "a 1.jpg, b 2.jpg"),
    "a column of some": ("a  1\na 2\n", "a.jpg, a 2.jpg", "a.jpg, a 2.jpg"),
    "suffix and blank": ("a 1.png\nb.png 1\n", "a 1.png, a.jpg, b.png", "a 1.png, b.png"),
    "a byte order mark": ("\ufeffa\n", "a.jpg", "a.jpg"),
    "two formats": ("a\nb\n", "a.jpg, a.png, b.png", "a.jpg, b.png"),
    "another image only": ("a 1\n", "a 2.jpg", None),
    "twice": ("a\na.jpg\n", "a.jpg", None),
}


def test_images_of_a_voc_list_without_a_mask_are_not_labeled(tmp_path):
    """CVAT lists frames in which nothing is drawn, and writes no mask for them."""
    for name in "abc":
        picture(tmp_path / f"JPEGImages/{name}.jpg", seed=ord(name))
        ids(tmp_path / f"SegmentationClass/{name}.png")
    (tmp_path / "ImageSets/Segmentation").mkdir(parents=True)
    (tmp_path / "ImageSets/Segmentation/default.txt").write_text("a\nb\nc\n")
    (tmp_path / "SegmentationClass/b.png").unlink()
    checked = run_check(tmp_path)
    assert (checked.failed, checked.data.absent_mask) == (False, "leave-out")
    assert "1 image without a mask: not labeled" in checked.text()
    (tmp_path / "JPEGImages/c.jpg").unlink()
    with refused("list-file-missing", count=2):
        run_check(tmp_path)


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_a_voc_list_is_a_name(tmp_path, name):
    text, there, wanted = LINES[name]
    for file in there.split(", "):
        picture(tmp_path / "JPEGImages" / file)
        ids(tmp_path / "SegmentationClass" / f"{Path(file).stem}.png")
    (tmp_path / "ImageSets/Segmentation").mkdir(parents=True)
    (tmp_path / "ImageSets/Segmentation/train.txt").write_bytes(text.encode())
    data = Data(layout="voc", root=str(tmp_path))
    if wanted is None:
        with refused("list-file-repeated" if name == "twice" else "list-file-missing"):
            names(data)
        return
    assert names(data) == wanted.split(", ")
    assert [Path(entry.mask or "").stem for entry in open_dataset(data, "train").entries] == [
        Path(file).stem for file in wanted.split(", ")
    ]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("train.txt", "\ufeff'i/a 1.png', 'm/a 1.png'\n'i/b, 2.png' 'm/b, 2.png'\n"),
        ("train.csv", 'image , mask\ni/a 1.png , m/a 1.png\n"i/b, 2.png", "m/b, 2.png" \n'),
        ("train.csv", "\ufeffimage\tmask\r\ni/a 1.png\tm/a 1.png\r\ni/b, 2.png\tm/b, 2.png\r\n"),
    ],
)
def test_names_with_blanks_and_commas_in_lists(tmp_path, file, text):
    for name in ("a 1.png", "b, 2.png", "a.png"):
        picture(tmp_path / "i" / name)
        ids(tmp_path / "m" / name)
    (tmp_path / file).write_bytes(text.encode())
    data = Data(
        layout="list", root=str(tmp_path), index="{split}" + Path(file).suffix, classes=("a", "b")
    )
    assert names(data) == ["a 1.png", "b, 2.png"]
    assert [Path(entry.mask or "").name for entry in open_dataset(data, "train").entries] == names(
        data
    )


def test_a_check_reads_train_and_val_only(tmp_path):
    for split in ("train", "val", "test"):
        picture(tmp_path / "images" / split / f"{split}.png", seed=len(split))
        ids(tmp_path / "masks" / split / f"{split}.png", (0, 9) if split == "test" else (0, 1))
    classes = ["data.classes=[a, b]"]
    checked = run_check(tmp_path, *classes)
    assert [(report.split, report.failed) for report in checked.reports] == [
        ("train", False),
        ("val", False),
    ]
    assert ["test" in note for note in checked.reports[0].notes] == [True]
    assert [report.failed for report in check_folder(str(tmp_path), ["test"], classes).reports] == [
        True
    ]


def test_train_extra_of_cityscapes_has_coarse_masks(tmp_path):
    for split, kind in (("train", "gtFine"), ("train", "gtCoarse"), ("train_extra", "gtCoarse")):
        picture(tmp_path / f"leftImg8bit/{split}/ulm/a_leftImg8bit.png")
        ids(tmp_path / f"{kind}/{split}/ulm/a_{kind}_labelIds.png", (7,))
    data, _ = detect(str(tmp_path))
    masks = {split: open_dataset(data, split).entries[0].mask for split in ("train", "train_extra")}
    assert [Path(mask or "").name for mask in masks.values()] == [
        "a_gtFine_labelIds.png",
        "a_gtCoarse_labelIds.png",
    ]


def test_listed_images_without_a_mask_are_left_out_on_request(tmp_path):
    """CVAT lists frames without shapes, and writes no mask for them."""
    for name in ("frame 1", "frame 2", "frame 3"):
        picture(tmp_path / f"JPEGImages/{name}.png")
    ids(tmp_path / "SegmentationClass/frame 2.png")
    (tmp_path / "ImageSets/Segmentation").mkdir(parents=True)
    lines = tmp_path / "ImageSets/Segmentation/train.txt"
    lines.write_text("frame 1\nframe 2\nframe 3\n")
    data = Data(layout="voc", root=str(tmp_path), absent_mask="leave-out")
    dataset = open_dataset(data, "train")
    assert sample_names(dataset) == ["frame 2"]
    assert dataset.entries[0].image.endswith("frame 2.png")
    assert len(dataset.notes) == 1
    lines.write_text("frame 2\nframe 4\n")  # neither its image nor its mask exists
    with refused("list-file-missing", count=1):
        open_dataset(data, "train")

"""Tests of which files are listed: none in folders of the system, and exactly those that a list names."""

from __future__ import annotations

from pathlib import Path

import pytest
from cloud.bucket import BucketServer
from test_datasets import ids, picture
from test_layouts import tree

from segtrain.config import Data
from segtrain.data.datasets import open_dataset
from segtrain.data.index.detect import detect
from segtrain.infer.predict import plan

SYSTEM = (".cache", "@eaDir", "#recycle", "$Recycle.Bin", "__MACOSX", "lost+found", "@tmp")
# layout -> a pair of files in split train, and folders in which copies of them are no data
PAIRS = {
    "folders": ("images/train/a.png", "masks/train/a.png"),
    "camvid": ("train/a.png", "trainannot/a.png"),
    "cityscapes": ("leftImg8bit/train/ulm/a_leftImg8bit.png", "gtFine/train/ulm/a_gtFine_labelIds.png"),
    "ade20k": ("images/training/a.png", "annotations/training/a.png"),
    "voc": ("JPEGImages/a.png", "SegmentationClass/a.png"),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "cache"))


def names(data: Data, split: str = "train") -> list[str]:
    return [Path(entry.image).name for entry in open_dataset(data, split).entries]


def with_copies(root: Path, layout: str) -> Path:
    """A data set of one pair, and a copy of each file in each folder of SYSTEM, beside it and at the top."""
    for file, write in zip(PAIRS[layout], (picture, ids)):
        path = write(root / file)
        for folder in SYSTEM:
            write(path.parent / folder / "deeper" / path.name)
            write(root / folder / file)
    if layout == "voc":
        (root / "ImageSets/Segmentation").mkdir(parents=True)
        (root / "ImageSets/Segmentation/train.txt").write_text("a\n")
    return root


@pytest.mark.parametrize("layout", PAIRS)
def test_folders_of_the_system_hold_no_data(tmp_path: Path, layout: str) -> None:
    data, splits = detect(str(with_copies(tmp_path / "set", layout)))
    assert (data.layout, splits) == (layout, ("train",))
    dataset = open_dataset(data.model_copy(update={"classes": ("a", "b")} if layout == "folders" else {}), "train")
    assert len(dataset) == 1
    if layout != "voc":  # its lists name the masks
        (note,) = [note for note in dataset.notes if "@eaDir" in note]
        assert f"{2 * len(SYSTEM)} image files" in note


def test_folders_of_the_system_hold_no_data_in_a_bucket(server: BucketServer) -> None:
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


def test_predict_leaves_folders_of_the_system_out(tmp_path: Path) -> None:
    for folder in ("in", "in/town", *(f"in/{name}" for name in SYSTEM), "in/town/.ipynb_checkpoints"):
        picture(tmp_path / folder / "a.png")
    said: list[str] = []
    tasks = plan([tmp_path / "in"], tmp_path / "out", say=said.append)
    assert [task.image for task in tasks] == [tmp_path / "in/a.png", tmp_path / "in/town/a.png"]
    assert f"{len(SYSTEM) + 1} files" in said[0]

"""Tests that a layout with its own data set needs one file and one row: here, masks are drawn from
a JSON file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from conftest import refused
from data_files import picture

from segtrain.config import Data
from segtrain.data.audit.audit import audit
from segtrain.data.audit.check import check_folder
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.file_dataset import FileDataset
from segtrain.data.index.entries import Entry
from segtrain.data.index.layout import Layout, root_store
from segtrain.data.index.layouts import LAYOUTS
from segtrain.data.labels.space import LabelSpace, plain_space
from segtrain.data.shards.pack import pack
from segtrain.data.shards.pack_sample import Packing
from segtrain.data.storage import Range
from segtrain.data.train_loader import TrainLoader
from segtrain.training.start.agree import _sizes
from segtrain.training.start.same_data import differences, split_of

BOXES = {"a": [2, 3, 9, 12], "b": [0, 0, 5, 5], "c": [6, 1, 12, 16], "d": [1, 1, 2, 2]}


@dataclass(frozen=True, kw_only=True)
class BoxDataset(FileDataset):
    """Images in files; a mask is the box of its image in the JSON file."""

    boxes: dict[str, list[int]]

    @property
    def separate_files(self) -> bool:
        return False

    def stored_mask(self, index: int) -> Any:
        top, left, bottom, right = self.boxes[self.entries[index].meta["name"]]
        mask = np.zeros(self.size(index), np.uint8)
        mask[top:bottom, left:right] = 1
        return mask

    def ranges(self, index: int) -> list[Range]:
        return super().ranges(index)[:1]


def open_boxes(layout: Layout, data: Data, split: str) -> Dataset:
    file = f"{data.root}/{split}.json"
    boxes = json.loads(Path(file).read_text())["boxes"]
    entries = [Entry(f"{data.root}/{name}.png", file, {"name": name}) for name in sorted(boxes)]
    return BoxDataset(
        "boxes",
        split,
        layout.label_space(data),
        entries,
        data.root,
        store=root_store(data),
        boxes=boxes,
    )


def labels_of(layout: Layout, data: Data) -> LabelSpace:
    return plain_space(
        tuple(json.loads(Path(data.root, f"{data.train_split}.json").read_text())["classes"])
    )


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Data:
    row = Layout(
        "list",
        "SPLIT.json",
        lambda root, store: ({}, ["train"]),
        open=open_boxes,
        own_labels=labels_of,
    )
    monkeypatch.setitem(LAYOUTS, "list", row)
    for seed, name in enumerate(BOXES):
        picture(tmp_path / f"set/{name}.png", seed=seed)
    (tmp_path / "set/train.json").write_text(
        json.dumps({"classes": ["ground", "box"], "boxes": BOXES})
    )
    return Data(layout="list", root=str(tmp_path / "set"), crop=(8, 8))


def test_every_layout_of_the_config_has_a_row():
    assert set(LAYOUTS) == set(get_args(Data.model_fields["layout"].annotation))


def test_it_is_audited_packed_and_trained_on(data, tmp_path):
    dataset = open_dataset(data, "train")
    assert dataset.labels.names == ("ground", "box")
    assert audit(dataset).pixels.tolist() == [4 * 192 - 63 - 25 - 90 - 1, 63 + 25 + 90 + 1]
    (report,) = check_folder(data.root, ["train"], ["data.layout=list"]).reports
    assert not report.failed
    with TrainLoader(dataset, data, seed=0, batch_size=2, last_step=1) as loader:
        assert sum(len(batch.masks) for step in loader for batch in step) == 2
    pack(dataset, str(tmp_path / "shards"), Packing(), say=lambda text: None)
    packed = open_dataset(Data(layout="shards", root=str(tmp_path / "shards")), "train")
    for index in range(4):
        assert all(map(np.array_equal, packed.read(index), dataset.read(index)))
    assert packed.packed_from == dataset.fingerprint()
    with refused("pack-into-source"):
        pack(dataset, data.root, Packing(), say=lambda text: None)


def test_a_resumed_run_sees_that_it_has_changed(data):
    before = open_dataset(data, "train")
    record = split_of(before, audit(before)).record
    assert _sizes(before)[:, 0, 0].tolist() == before.stamps()[:, 0, 0].tolist()
    Path(data.root, "train.json").write_text(
        json.dumps({"classes": ["a", "b"], "boxes": {**BOXES, "a": [0, 0, 9, 9]}})
    )
    after = open_dataset(data, "train")
    assert after.fingerprint() != before.fingerprint()
    changed = differences(record, split_of(after, audit(after)).record)
    assert changed == ["the classes differ", "masks have other labels"]

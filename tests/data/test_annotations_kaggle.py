"""Tests of run lengths in CSV files of Kaggle."""

from __future__ import annotations

from pathlib import Path

import pytest
from annotated_sets import masks_of, opened
from conftest import refused
from PIL import Image


def table(root: Path, *rows: str, header: str = "ImageId,EncodedPixels") -> None:
    """A table of runs beside two images of 4 x 3 pixels."""
    for name in "ab":
        Image.new("RGB", (4, 3)).save(root / f"{name}.png")
    (root / "sample_submission.csv").write_text("ImageId,EncodedPixels\na.png,1 1\n")
    (root / "labels.csv").write_text("\n".join([header, *rows]) + "\n")


def test_pixels_count_down_the_columns_or_along_the_rows(tmp_path):
    table(tmp_path, "a,2 3 5 1", "b.png,12 1")
    masks = masks_of(opened(tmp_path))
    assert masks["a"].tolist() == [[0, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]]
    assert masks["b"].sum() == masks["b"][2, 3] == 1
    masks = masks_of(opened(tmp_path, "data.rle_order=rows"))
    assert masks["a"].tolist() == [[0, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]]


def test_empty_cells_are_images_without_shapes(tmp_path):
    table(tmp_path, "a,-1,10", "b,1 2,9", "a,,9", header=" id,rle_mask,Class Id")
    dataset = opened(tmp_path)
    assert dataset.labels.names == ("background", "9")
    assert {name: int(mask.sum()) for name, mask in masks_of(dataset).items()} == {"a": 0, "b": 2}


@pytest.mark.parametrize("runs", ["1 2 3", "0 5", "5 2 6 2", "9 1 1 1", "1 0", "1 x"])
def test_runs_of_another_coding_are_refused(tmp_path, runs):
    table(tmp_path, "b,1 2", f"a,{runs}")
    with refused("annotation-invalid", place="a"):
        opened(tmp_path)


def test_runs_of_another_size_are_refused(tmp_path):
    table(tmp_path, "a,12 1", "b,12 2")
    dataset = opened(tmp_path)
    assert dataset.read_mask(0).any()
    with refused("annotation-invalid"):
        dataset.read_mask(1)

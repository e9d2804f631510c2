"""Images of several bands: what is read, where there is no data, and the crops of a training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from band_sets import CLASSES, MEAN, STD, band_data, band_set
from batch_bytes import content, kept
from conftest import refused

from segtrain.config import Data, Origin
from segtrain.data.audit.check import check_folder
from segtrain.data.augment.geometry import draw
from segtrain.data.datasets import open_dataset
from segtrain.data.labels.space import LabelSpace
from segtrain.data.own import own_dataset, own_labels
from segtrain.data.pixels.bands import BandImage, Bands
from segtrain.data.pixels.crop import StoredSample, write_crop
from segtrain.data.pixels.reading import Reading
from segtrain.data.train_loader import TrainLoader

RNG = np.random.default_rng(1)
DEEP = RNG.integers(0, 5000, (23, 37, 6), np.uint16)


def written(path: Path, values: np.ndarray, **options: Any) -> str:
    if path.suffix == ".npy":
        np.save(path, values)
    elif path.suffix == ".png":
        cv2.imwrite(str(path), values[..., ::-1])
    else:
        planes = options.get("planarconfig") == "separate"
        pytest.importorskip("tifffile").imwrite(
            path,
            values.transpose(2, 0, 1) if planes else values,
            photometric="minisblack",
            **options,
        )
    return str(path)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.npy", {}),
        ("a.png", {}),
        ("a.tif", {"planarconfig": "contig", "rowsperstrip": 5, "compression": "zlib"}),
        ("a.tif", {"planarconfig": "separate", "tile": (16, 16), "byteorder": ">"}),
    ],
)
def test_a_part_has_the_values_of_the_whole(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    values = DEEP[..., :3] if name == "a.png" else DEEP
    path = written(tmp_path / name, values, **options)
    bands = Bands(values.shape[2], mean=(7.0,) * values.shape[2])
    for source in (path, Path(path).read_bytes()):
        image = BandImage(source, path, bands)
        assert (image.shape, image.header.bits) == (values.shape, 16)
        assert (image.values() == values).all()
        assert (image.values(slice(4, 21), slice(15, 33)) == values[4:21, 15:33]).all()


def test_missing_values_are_the_mean_and_pixels_without_any_are_void(tmp_path: Path) -> None:
    values = np.array(DEEP, np.float32)
    values[0, :3], values[1, :2, 4], values[2, 0, 0] = -9, np.nan, np.inf
    mean = tuple(range(10, 16))
    by_setting = BandImage(written(tmp_path / "a.npy", values), "a", Bands(6, -9, mean))
    tag = [(42113, 2, 0, "-9", True)]
    path = written(tmp_path / "a.tif", values, planarconfig="contig", extratags=tag, metadata=None)
    for image in (by_setting, BandImage(path, "a", Bands(6, None, mean))):
        pixels, void = image.read()
        assert void.sum() == void[0, :3].sum() == 3
        assert (pixels[0, :3] == mean).all()
        assert (pixels[1, :2, 4] == 14).all()
        assert pixels[2, 0, 0] == 10
        assert (pixels[3:] == values[3:]).all()


@pytest.mark.parametrize("rotate", [0.0, 40.0])
def test_crops_have_the_geometry_of_rgb(rotate: float) -> None:
    """Levels as stored values: the same masks, and pixels that differ by the rounding alone."""
    image = cv2.resize(RNG.integers(0, 256, (9, 13, 3), np.uint8), (90, 70))
    mask = RNG.integers(0, 4, (70, 90), np.uint8)
    labels = LabelSpace(tuple("abcd"), {n: n for n in range(4)})
    stored = Reading.from_data(Data(values="stored", mean=(124, 116, 104), std=(1, 1, 1)))
    data = Data(scale=(0.2, 2), rotate=rotate)
    for seed in range(30):
        geometry = draw(np.random.default_rng(seed), (70, 90), (32, 48), data).plain()
        out = np.empty((32, 48, 3), np.uint8), np.empty((32, 48), np.uint8)
        record = StoredSample(image, mask, "a", "b", "train")
        write_crop(record, labels, geometry, (32, 48), out)
        for count in (1, 9):  # OpenCV takes four at once
            wide = np.repeat(image.astype(np.float32), 3, 2)[..., :count]
            fill = np.repeat(stored.fill, 3)[:count]
            bands = np.empty((32, 48, count), np.float32), np.empty((32, 48), np.uint8)
            part = replace(record, image=wide)
            write_crop(part, labels, geometry, (32, 48), bands, fill=fill)
            assert (bands[1] == out[1]).all()
            assert np.abs(bands[0] - np.repeat(out[0], 3, 2)[..., :count]).max() <= 2


def test_workers_cache_and_windows_change_nothing(tmp_path: Path) -> None:
    root = band_set(tmp_path)
    settings: dict[str, Any] = {"class_balanced_crop_prob": 0.5, "rotate": 9, "scale": (0.3, 2)}
    batches = []
    for cache, workers, kind in (("off", 0, "thread"), ("ram", 0, "thread"), ("off", 2, "process")):
        data = band_data(root, cache=cache, **settings)
        dataset, options = open_dataset(data, "train"), {"batch_size": 4, "last_step": 5}
        with TrainLoader(dataset, data, seed=2, workers=workers, kind=kind, **options) as loader:
            batches.append(kept(loader))
    assert content(batches[0]) == content(batches[1]) == content(batches[2])
    (batch,) = batches[0][0]
    assert (batch.images.dtype, batch.images.shape) == (torch.float32, (4, 24, 32, 5))
    assert batch.images.isfinite().all()


def test_labels_of_pixels_without_data_are_ignored_in_files_and_in_python(tmp_path: Path) -> None:
    root = band_set(tmp_path, channels_first=True)
    dataset = open_dataset(band_data(root), "val")
    image, mask = dataset.read(2)
    assert (np.flatnonzero((mask == 255).any(1)) == np.arange(3, 9)).all()
    assert (mask == 255).sum() == 6 * 7
    assert np.allclose(image[4, 6], MEAN)
    assert np.isclose(image[22, 33, 2], MEAN[2])
    values = np.load(root / "images/val/2.npy").transpose(1, 2, 0).astype(np.float64)
    raw = cv2.imread(str(root / "masks/val/2.png"), cv2.IMREAD_UNCHANGED)

    class Items(list):  # type: ignore[type-arg]
        classes = CLASSES

    items = Items([(values, raw, "two")])
    reading = Reading.from_data(band_data(root))
    own = own_dataset(items, own_labels(items, band_data(root)), "val", reading)
    assert all((ours == theirs).all() for ours, theirs in zip(own.read(0), (image, mask)))
    with refused("item-image"):
        own_dataset(Items([(values[..., :3], raw, "two")]), dataset.labels, "val", reading)


def test_the_check_measures_mean_and_std_without_missing_values(tmp_path: Path) -> None:
    root = band_set(tmp_path)
    overrides = ["data.layout=folders", "data.channels=5", f"data.classes={CLASSES}"]
    checked = check_folder(str(root), None, overrides)
    images = np.stack([np.load(root / f"images/train/{index}.npy") for index in range(6)])
    assert np.allclose(checked.data.mean, np.nanmean(images, (0, 1, 2), np.float64), rtol=1e-5)
    assert np.allclose(checked.data.std, np.nanstd(images, (0, 1, 2), np.float64), rtol=1e-4)
    assert checked.reports[0].void == 6 * 6 * 7
    with refused("normalization-missing"):
        Origin().changed(Data(channels=5))


def test_what_does_not_go_with_bands_is_refused(tmp_path: Path) -> None:
    root = band_set(tmp_path, count=1)
    with refused("band-count-differs", found=5, expected=4):
        four = band_data(root, channels=4, mean=MEAN[:4], std=STD[:4])
        open_dataset(four, "train").read(0)
    for settings in ({"hue": 0.1}, {"bits": 12}, {"transforms": [{"Blur": {}}]}, {"mean": [1.0]}):
        with refused("conflicting-settings"):
            band_data(root, **settings)
    with refused("layout-without-bands"):
        open_dataset(band_data(root, layout="coco"), "train")
    path = root / "images/train/0.npy"
    path.write_bytes(path.read_bytes()[:5000])
    with refused("image-damaged", file=str(path)):
        open_dataset(band_data(root), "train").read(0)

"""Images of several bands: what is read, where there is no data, and the crops of a training."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from band_sets import CLASSES, MEAN, STD, band_data, band_set
from batch_bytes import content, kept
from cloud.bucket import BucketServer
from conftest import refused
from data_files import run_check
from PIL import Image

from segtrain.config import Data, Origin
from segtrain.data.augment.geometry import draw
from segtrain.data.convert import convert_folder
from segtrain.data.datasets import open_dataset
from segtrain.data.index.detect import detect
from segtrain.data.labels.space import LabelSpace
from segtrain.data.own import own_dataset, own_labels
from segtrain.data.pixels.bands import BandImage
from segtrain.data.pixels.crop import StoredSample, write_crop
from segtrain.data.pixels.floats import Pixels
from segtrain.data.pixels.reading import Reading
from segtrain.data.train_loader import TrainLoader
from segtrain.infer.predict import plan

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
def test_a_part_has_the_values_of_the_whole(tmp_path, name, options):
    values = DEEP[..., :3] if name == "a.png" else DEEP
    path = written(tmp_path / name, values, **options)
    for source in (path, Path(path).read_bytes()):
        image = BandImage((source,), (path,), Pixels(values.shape[2], True))
        assert (image.shape, image.header.bits) == (values.shape, 16)
        assert (image.values() == values).all()
        assert (image.values(slice(4, 21), slice(15, 33)) == values[4:21, 15:33]).all()


def test_missing_values_are_the_mean_and_pixels_without_any_are_void(tmp_path):
    values = np.array(DEEP, np.float32)
    values[0, :3], values[1, :2, 4], values[2, 0, 0] = -9, np.nan, np.inf
    mean = tuple(range(10, 16))
    by_setting = BandImage([written(tmp_path / "a.npy", values)], "a", Pixels(6, True, -9, mean))
    tag = [(42113, 2, 0, "-9", True)]
    path = written(tmp_path / "a.tif", values, planarconfig="contig", extratags=tag, metadata=None)
    for image in (by_setting, BandImage([path], "a", Pixels(6, True, None, mean))):
        pixels, void = image.read()
        assert void.sum() == void[0, :3].sum() == 3
        assert (pixels[0, :3] == mean).all()
        assert (pixels[1, :2, 4] == 14).all()
        assert pixels[2, 0, 0] == 10
        assert (pixels[3:] == values[3:]).all()


@pytest.mark.parametrize("rotate", [0.0, 40.0])
def test_crops_have_the_geometry_of_rgb(rotate):
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
            pixels = Pixels(count, True, None, tuple(np.repeat(stored.pixels.mean, 3)[:count]))
            bands = np.empty((32, 48, count), np.float32), np.empty((32, 48), np.uint8)
            part = replace(record, image=wide)
            write_crop(part, labels, geometry, (32, 48), bands, pixels=pixels)
            assert (bands[1] == out[1]).all()
            assert np.abs(bands[0] - np.repeat(out[0], 3, 2)[..., :count]).max() <= 2


def test_workers_cache_and_windows_change_nothing(tmp_path):
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


def test_labels_of_pixels_without_data_are_ignored_in_files_and_in_python(tmp_path):
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


def test_the_check_measures_mean_and_std_without_missing_values(tmp_path):
    root = band_set(tmp_path)
    overrides = ["data.layout=folders", "data.channels=5", f"data.classes={CLASSES}"]
    checked = run_check(root, *overrides)
    images = np.stack([np.load(root / f"images/train/{index}.npy") for index in range(6)])
    assert np.allclose(checked.data.mean, np.nanmean(images, (0, 1, 2), np.float64), rtol=1e-5)
    assert np.allclose(checked.data.std, np.nanstd(images, (0, 1, 2), np.float64), rtol=1e-4)
    assert checked.reports[0].void == 6 * 6 * 7
    with refused("normalization-missing"):
        Origin().changed(Data(channels=5))


def split_set(root: Path, patterns: tuple[str, str]) -> Path:
    """``band_set`` with the bands of each image in two files; ``patterns``: of their paths."""
    band_set(root)
    for file in sorted(root.glob("images/*/*.npy")):
        values = np.load(file)
        for pattern, part in zip(patterns, (values[..., :3], values[..., 3:])):
            path = root / pattern.format(split=file.parent.name, name=file.stem)
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, part)
        file.unlink()
    return root


@pytest.mark.parametrize(
    ("images", "files"),
    [
        ("images/{split}", ["{name}/B02.npy", "{name}/B03.npy"]),
        ("images/{split}", ["{name}_red.npy", "{name}_nir.npy"]),
        (".", ["rgb/{split}/{name}.npy", "depth/{split}/{name}.npy"]),
    ],
)
def test_bands_in_several_files_are_those_of_one(tmp_path, images, files):
    below = images if images != "." else ""
    root = split_set(tmp_path / "split", tuple(f"{below}/{text}".strip("/") for text in files))
    settings = {"images": images, "files": files}
    ours = open_dataset(band_data(root, **settings), "val")
    theirs = open_dataset(band_data(band_set(tmp_path / "whole")), "val")
    for index in range(len(theirs)):
        pairs = zip(ours.read(index), theirs.read(index))
        assert all((one == other).all() for one, other in pairs)
    first, second = ours.stored_image(0).names
    before = ours.fingerprint()
    np.save(second, np.zeros((40, 48, 3)))
    assert ours.fingerprint() != before
    with refused("band-count-differs", found=6):
        ours.read(0)
    np.save(second, np.zeros((40, 24, 2)))
    with refused("band-size-differs", file=second, found=(40, 24)):
        ours.read(0)
    tasks = plan([Path(first).parent], tmp_path / "out", reading=ours.reading)
    assert first in [str(task.image) for task in tasks]
    assert second not in [str(task.image) for task in tasks]
    Path(second).unlink()
    with refused(
        "band-file-missing", found=[os.path.relpath(second, root / below.format(split="val"))]
    ):
        open_dataset(band_data(root, **settings), "val")


@pytest.mark.parametrize("options", [{"tile": (64, 64)}, {"rowsperstrip": 40}])
def test_a_bucket_is_asked_for_the_window_of_a_crop(tmp_path, monkeypatch, options):
    pytest.importorskip(
        "obstore", reason="obstore is not installed: pip install 'segtrain[buckets]'"
    )
    root = band_set(tmp_path / "bkt", count=1)
    values = RNG.normal(0, 1, (640, 640, 5)).astype(np.float32)
    options = {**options, "planarconfig": "contig", "metadata": None}
    (root / "images/train/0.npy").unlink()
    file = written(root / "images/train/0.tif", values, **options)
    Image.fromarray(np.zeros((640, 640), np.uint8)).save(root / "masks/train/0.png")
    server = BucketServer(tmp_path)
    for key, value in server.environment().items():
        monkeypatch.setenv(key, value)
    dataset = open_dataset(band_data("s3://bkt"), "train")
    assert [os.path.basename(part.path) for part in dataset.ranges(0)] == ["0.png"]
    before = dataset.store.tally.sums.bytes
    part = dataset.stored_image(0).values(slice(100, 160), slice(200, 260))
    assert (part == values[100:160, 200:260]).all()
    assert dataset.store.tally.sums.bytes - before < os.path.getsize(file) / 4
    server.close()


def masks_in(root: Path) -> dict[str, int]:
    return {
        split.name: sum(path.is_file() for path in split.rglob("*"))
        for split in (root / "masks").iterdir()
    }


def test_stacks_of_arrays_are_converted_and_detected(tmp_path):
    images = RNG.integers(0, 4000, (5, 6, 8, 9), np.uint16)  # (N, C, H, W)
    masks = RNG.integers(0, 3, (5, 8, 9, 1))
    root = tmp_path / "in"
    root.mkdir()
    np.savez(root / "train.npz", x=images, y=masks)
    np.save(root / "val_images.npy", images[:2])
    np.save(root / "val_labels.npy", np.eye(3, dtype=np.float32)[masks[:2, ..., 0]])
    with refused("layout-unknown", f"segtrain data convert {root} DST"):
        run_check(root)
    for name in ("test-volume", "dev-volume", "dev-labels"):
        gray = [Image.fromarray(np.full((8, 9), page, np.uint8)) for page in range(3)]
        gray[0].save(root / f"{name}.tif", save_all=True, append_images=gray[1:])
    lines = list[str]()
    convert_folder(str(root), str(tmp_path / "out"), None, [], lines.append)
    assert "test-volume.tif has no masks" in lines[0]
    assert np.array_equal(np.array(Image.open(tmp_path / "out/masks/dev/000002.png")), gray[2])
    shutil.rmtree(tmp_path / "out/images/dev")
    shutil.rmtree(tmp_path / "out/masks/dev")
    assert masks_in(tmp_path / "out") == {"train": 5, "val": 2}
    data, splits = detect(str(tmp_path / "out"))
    assert (data.layout, data.channels, data.stored, splits) == (
        "folders",
        6,
        True,
        ("train", "val"),
    )
    dataset = open_dataset(data.model_copy(update={"classes": tuple("abc")}), "train")
    image, mask = dataset.read(3)
    assert (image.transpose(2, 0, 1) == images[3]).all()
    assert (mask == masks[3, ..., 0]).all()
    planes = open_dataset(data.model_copy(update={"classes": tuple("abc")}), "val").read_mask(1)
    assert (planes == masks[1, ..., 0]).all()
    for wrong in (masks, masks[:2] - 2):
        np.save(root / "val_labels.npy", wrong)
        with refused("stacks-unfit", split="val"):
            convert_folder(str(root), str(tmp_path / "other"), None, [], lambda _: None)


def test_files_that_hold_an_image_and_its_mask_are_converted(tmp_path):
    """As those of Synapse, of the brain tumors of figshare, and of NYU."""
    h5py = pytest.importorskip("h5py", reason="h5py reads and writes HDF5")
    savemat = pytest.importorskip("scipy.io", reason="scipy writes .mat").savemat
    masks = RNG.integers(0, 3, (2, 8, 9), np.uint8)
    images, colors = masks * 0.25, np.stack([masks * 7] * 3, -1)
    for folder in ("train_npz", "test_h5", "val"):
        (tmp_path / "in" / folder).mkdir(parents=True)
    np.savez(tmp_path / "in/train_npz/case1_slice1.npz", image=images[0], label=masks[0])
    with h5py.File(tmp_path / "in/test_h5/case2.npy.h5", "w") as file:
        file["image"], file["label"] = images, masks.astype(np.float32)
    one = {"image": colors[1], "depth": images[1], "names": np.array(["a", "b"], object)}
    savemat(tmp_path / "in/val/one.mat", {"s": {**one, "label": masks[1]}})
    stacks = {"images": np.moveaxis(colors, 0, -1), "labels": np.moveaxis(masks, 0, -1)}
    savemat(tmp_path / "in/val/all.mat", stacks)
    with refused("layout-unknown", f"segtrain data convert {tmp_path / 'in'} DST"):
        run_check(tmp_path / "in")
    lines, out = list[str](), tmp_path / "out"
    convert_folder(str(tmp_path / "in"), str(out), None, [], lines.append)
    assert masks_in(out) == {"test": 2, "train": 1, "val": 3}
    assert lines[0].endswith("not read: s/depth")
    for name, index in (
        ("train/train_npz/case1_slice1", 0),
        ("test/test_h5/case2.npy_000001", 1),
        ("val/val/one", 1),
        ("val/val/all_000000", 0),
        ("val/val/all_000001", 1),
    ):
        assert np.array_equal(np.array(Image.open(out / f"masks/{name}.png")), masks[index])
        if name[:3] == "val":
            assert np.array_equal(np.array(Image.open(out / f"images/{name}.png")), colors[index])
        else:
            assert np.array_equal(np.load(out / f"images/{name}.npy")[..., 0], images[index])
    np.savez(tmp_path / "in/val/two.npz", a=images[0], b=images[0], label=masks[0])
    with refused("stacks-unfit", "two.npz/a float64"):
        convert_folder(str(tmp_path / "in"), str(tmp_path / "other"), None, [], lines.append)
    assert not (tmp_path / "other").exists()


def test_the_first_proposal_describes_the_bands(tmp_path):
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for name in "ab":
        written(
            tmp_path / f"images/{name}.tif", np.full((8, 8, 4), 9, np.uint16), planarconfig="contig"
        )
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / f"masks/{name}.png")
    data = run_check(tmp_path).data
    assert (data.channels, data.values, data.mean) == (4, "stored", (9.0,) * 4)


def test_what_does_not_go_with_bands_is_refused(tmp_path):
    root = band_set(tmp_path, count=1)
    with refused("band-count-differs", found=5, expected=4):
        four = band_data(root, channels=4, mean=MEAN[:4], std=STD[:4])
        open_dataset(four, "train").read(0)
    for settings in (
        {"hue": 0.1},
        {"bits": 12},
        {"transforms": [{"Blur": {}}]},
        {"mean": [1.0]},
    ):
        with refused("conflicting-settings"):
            band_data(root, **settings)
    with refused("conflicting-settings"):
        band_data(root, channels=3, values="8-bit", files=("{name}_a.png", "{name}_b.png"))
    with refused("layout-without-bands"):
        open_dataset(band_data(root, layout="coco"), "train")
    path = root / "images/train/0.npy"
    path.write_bytes(path.read_bytes()[:5000])
    with refused("image-damaged", file=str(path)):
        open_dataset(band_data(root), "train").read(0)

"""Tests that deep images and extra bands are read right, or refused with the setting that reads
them.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from conftest import refused
from PIL import Image

from segtrain.cli import main
from segtrain.config import Data, load_config
from segtrain.data.audit.images import image_properties
from segtrain.data.augment.geometry import Geometry
from segtrain.data.cache import RamCache
from segtrain.data.datasets import open_dataset
from segtrain.data.pixels import decode
from segtrain.data.pixels.crop import image_of, write_crop, write_whole
from segtrain.data.pixels.reading import Reading
from segtrain.errors import EXIT_ERROR, ConfigError, DataError
from segtrain.training.start.faults import check_splits

PLAIN = np.add.outer(np.arange(12) * 7, np.arange(16) * 11).astype(np.uint8)  # (12, 16), 0..242


def write(path: Path, values: np.ndarray) -> Path:
    """PNG or TIFF of any depth; RGB(A) order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    turned = values if values.ndim == 2 else values[..., [2, 1, 0, *range(3, values.shape[2])]]
    assert cv2.imwrite(str(path), np.ascontiguousarray(turned))
    return path


def tiff(path: Path, values: np.ndarray, extra: int = 0, geo: bool = False) -> Path:
    """An uncompressed little-endian TIFF of (H, W, bands) uint8 or uint16, bands beyond RGB of an
    unnamed kind; with ``geo`` a tag of GeoTIFF."""
    height, width, bands = values.shape
    bits, body = values.dtype.itemsize * 8, values.tobytes()
    at = 8 + 2 + 12 * (10 + geo) + 4
    rows = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, bands, at),
        (259, 3, 1, 1),
        (262, 3, 1, 2),
        (273, 4, 1, at + 2 * bands + 2 * (bands - 3)),
        (277, 3, 1, bands),
        (278, 4, 1, height),
        (279, 4, 1, len(body)),
    ]
    extras = [extra] * (bands - 3)
    rows.append((338, 3, len(extras), extras[0] if len(extras) <= 2 else at + 2 * bands))
    if geo:
        rows.append((33550, 4, 1, 1))
    head = (
        b"II*\0"
        + struct.pack("<IH", 8, len(rows))
        + b"".join(struct.pack("<HHII", *row) for row in rows)
    )
    tail = (
        struct.pack("<I", 0)
        + struct.pack(f"<{bands}H", *[bits] * bands)
        + struct.pack(f"<{len(extras)}H", *extras)
    )
    path.write_bytes(head + tail + body)
    return path


def folders(root: Path, **settings: object) -> Data:
    return Data(layout="folders", root=str(root), classes=("a", "b"), **settings)


def pair(root: Path, name: str, values: np.ndarray) -> None:
    write(root / "images/train" / name, values)
    write(root / "masks/train" / f"{Path(name).stem}.png", np.zeros(values.shape[:2], np.uint8))


@pytest.mark.parametrize(
    ("kind", "number"), [(np.uint16, 1), (np.int16, 2), (np.uint32, 1), (np.float32, 3)]
)
@pytest.mark.parametrize("compressed", [True, False])
def test_masks_of_one_band_in_separate_planes(kind, number, compressed, tmp_path):
    """GDAL writes PlanarConfiguration=2 also for one band. Pillow cannot decode most of these."""
    values = (np.arange(20 * 30) % 7 * 100).reshape(20, 30).astype(kind)
    body = zlib.compress(values.tobytes()) if compressed else values.tobytes()
    rows = [
        (256, 30),
        (257, 20),
        (258, 8 * values.itemsize),
        (259, 8 if compressed else 1),
        (262, 1),
        (273, 146),
        (277, 1),
        (278, 20),
        (279, len(body)),
        (284, 2),
        (339, number),
    ]
    head = (
        b"II*\0"
        + struct.pack("<IH", 8, len(rows))
        + b"".join(struct.pack("<HHII", tag, 3, 1, v) for tag, v in rows)
    )
    content = head + bytes(4) + body
    assert np.array_equal(decode.decode_mask(content, "x.tif"), values)
    with refused("image-damaged"):
        decode.decode_mask(content[:-40], "x.tif")


@pytest.mark.parametrize(
    ("name", "bands"),
    [("x.png", 1), ("x.png", 3), ("x.tif", 1), ("x.tif", 3), ("x.pgm", 1), ("x.ppm", 3)],
)
@pytest.mark.parametrize("bits", [8, 10, 12, 16])
def test_deep_images_give_the_upper_eight_of_their_bits(tmp_path, name, bands, bits):
    deep = np.repeat(PLAIN[..., None], bands, 2).astype(np.uint16) << (bits - 8)
    path = write(tmp_path / name, deep[..., 0] if bands == 1 else deep)
    seen = decode.decode_image(str(path), reading=Reading(bits))
    assert np.array_equal(seen, np.repeat(PLAIN[..., None], 3, 2))
    if 8 < bits < 16:
        with pytest.raises(
            DataError, match=rf"the value .* does not fit data\.bits=8: set data\.bits={bits}"
        ):
            decode.decode_image(str(path), reading=Reading(8))


def test_the_bits_are_the_same_on_every_way_to_pixels(tmp_path, monkeypatch):
    for index, name in enumerate(("a.png", "b.png", "c.tif")):
        pair(tmp_path, name, np.roll(PLAIN, index, 1).astype(np.uint16) << 4)
    pair(tmp_path, "d.png", PLAIN)  # of 8 bits: as it is
    dataset = open_dataset(folders(tmp_path, bits=12), "train")
    geometry = Geometry((12, 16), (12, 16), 0, 0, False)
    for library in ("1", "0"):
        monkeypatch.setenv("SEGTRAIN_NATIVE", library)
        for index, shift in enumerate((0, 1, 2, 0)):
            wanted = np.repeat(np.roll(PLAIN, shift, 1)[..., None], 3, 2)
            record, whole, crop = (
                dataset.record(index),
                np.zeros((12, 16, 3), np.uint8),
                np.zeros((12, 16, 3), np.uint8),
            )
            mask = np.zeros((12, 16), np.uint8)
            write_whole(record, dataset.labels, (whole, mask))
            write_crop(record, dataset.labels, geometry, (12, 16), (crop, mask))
            ways = [
                dataset.read(index)[0],
                dataset.read_image(index),
                RamCache(dataset).read(index)[0],
                whole,
                crop,
                image_of(record),
            ]
            assert all(np.array_equal(way, wanted) for way in ways), (library, index)


def test_extra_bands_are_refused_or_dropped_by_a_setting(tmp_path):
    rgb = np.dstack([PLAIN, PLAIN + 1, PLAIN + 2])
    for name, values in (
        ("four.tif", np.dstack([rgb, PLAIN])),
        ("deep.tif", np.dstack([rgb, PLAIN]).astype(np.uint16) << 8),
        ("saved.tif", None),
    ):
        path = tmp_path / name
        if values is None:
            Image.fromarray(np.dstack([rgb, PLAIN])).save(path)  # calls the fourth band alpha
        else:
            tiff(path, values)
        assert decode.read_header(str(path)).form.endswith("4 bands")
        with refused("extra-band-in-use", file=str(path), found=4):
            decode.decode_image(str(path))
        assert np.array_equal(decode.decode_image(str(path), reading=Reading(drop=True)), rgb)
    constant = tiff(tmp_path / "opaque.tif", np.dstack([rgb, np.full_like(PLAIN, 255)]))
    assert np.array_equal(decode.decode_image(str(constant)), rgb)
    five = tiff(tmp_path / "five.tif", np.dstack([rgb, PLAIN, PLAIN]))
    for reading in (Reading(), Reading(drop=True)):
        with refused("too-many-bands", file=str(five), found=5):
            decode.decode_image(str(five), reading=reading)
    many = tiff(tmp_path / "many.tif", np.dstack([PLAIN] * 17))
    with refused("too-many-bands", found=17) as caught:
        decode.decode_image(str(many))
    assert "data.channels" not in str(caught.value)


def test_a_geotiff_prints_no_line_of_opencv(tmp_path):
    pair(tmp_path, "x.png", PLAIN)
    (tmp_path / "images/train/x.png").unlink()
    tiff(tmp_path / "images/train/x.tif", np.dstack([PLAIN] * 4).astype(np.uint16) << 8, geo=True)
    asked = [
        "data",
        "check",
        str(tmp_path),
        "data.layout=folders",
        "--split",
        "train",
        "data.classes=[a, b]",
        "data.extra_bands=drop",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "segtrain", *asked], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_what_has_no_one_meaning_is_refused(tmp_path):
    Image.fromarray(PLAIN.astype(np.float32) / 255).save(tmp_path / "float.tif")
    Image.fromarray(PLAIN.astype(np.int32) * 1000).save(tmp_path / "wide.tif")
    pages = [Image.fromarray(PLAIN) for _ in range(3)]
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    for name, code, values in (
        ("float.tif", "image-floating-point", {}),
        ("wide.tif", "values-beyond-16-bits", {"found": (0, 242_000)}),
        ("pages.tif", "several-images", {"found": 3}),
    ):
        content, header = (tmp_path / name).read_bytes(), decode.read_header(str(tmp_path / name))
        with refused(code, file=str(tmp_path / name), **values):
            decode.decode_image(str(tmp_path / name))
        if header.bits > 8:
            with refused(code, file=name, **values):
                image_properties(content, name, header)
    with refused("several-images", found=3):
        decode.decode_mask(str(tmp_path / "pages.tif"))


def test_bits_that_no_image_has_are_refused():
    for value in (7, 17, 1.5, "deep"):
        with pytest.raises(ConfigError, match=r"data\.bits"):
            load_config(None, [f"data.bits={value}"])


@pytest.mark.parametrize(
    "read", [decode.decode_image, decode.decode_mask, decode.read_header, decode.check_whole]
)
def test_what_is_no_file_is_refused_without_reading_it(tmp_path, read):
    os.mkfifo(tmp_path / "fifo.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "folder.png").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s.png"))
        for name, what in (
            ("fifo", "a FIFO"),
            ("zero", "a device"),
            ("folder", "a folder"),
            ("s", "a socket"),
        ):
            with pytest.raises(DataError, match=rf"{name}.png: is {what}, not a file: take it out"):
                read(str(tmp_path / f"{name}.png"))


@pytest.fixture
def deep_set(tmp_path):
    for split, top in (("train", 4080), ("val", 900)):
        values = np.linspace(0, top, 12 * 16).astype(np.uint16).reshape(12, 16)
        write(tmp_path / f"set/images/{split}/x.png", values)
        write(tmp_path / f"set/masks/{split}/x.png", np.tile(np.uint8([0, 1]), (12, 8)))
    return tmp_path / "set"


def test_images_of_twelve_bits_are_refused_with_the_setting_that_reads_them(deep_set, capsys):
    words = ["data", "check", str(deep_set), "data.classes=[a, b]"]
    assert main(words) == EXIT_ERROR
    printed = capsys.readouterr().out
    assert "on the command line: data.bits=12" in printed
    assert "if they are meant to be so dark: data.bits=16" in printed
    for bits in (12, 16):
        assert main([*words, f"data.bits={bits}"]) == 0
    assert main([*words, "data.bits=10"]) == EXIT_ERROR
    bright = write(deep_set / "images/val/x.png", np.full((12, 16), 40000, np.uint16))
    assert main(words) == 0  # one depth for all: the others are dark pictures of 16 bits
    bright.unlink()


def test_training_refuses_images_that_would_turn_black(deep_set, tmp_path):
    settings = [
        "data.layout=folders",
        "data.classes=[a, b]",
        f"data.root={deep_set}",
        f"out={tmp_path / 'run'}",
    ]
    config = load_config(None, settings)
    splits = [open_dataset(config.data, split) for split in ("train", "val")]
    with pytest.raises(DataError, match=r"4,080 .* 12 bits") as caught:
        check_splits(config, *splits)
    assert caught.value.settings == {"data.bits": 12}
    config = load_config(None, [*settings, "data.bits=12"])
    check_splits(config, *(open_dataset(config.data, split) for split in ("train", "val")))


def test_the_check_names_forms_and_what_happens_to_alpha(tmp_path, capsys):
    rgb = np.dstack([PLAIN] * 3)
    for name, alpha in (("clear", 7), ("opaque", 255)):
        pair(tmp_path, f"{name}.png", np.dstack([rgb, np.full_like(PLAIN, alpha)]))
    pair(tmp_path, "deep.png", np.dstack([rgb, np.full_like(PLAIN, 9)]).astype(np.uint16) << 8)
    pair(tmp_path, "plain.png", rgb)
    assert main(["data", "check", str(tmp_path), "data.classes=[a, b]", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["train"]
    assert found["forms"] == {"8-bit RGBA": 2, "8-bit RGB": 1, "16-bit RGBA": 1}
    told = next(text for text in found["warnings"] if "alpha" in text)
    assert told.startswith("2 images with a transparent alpha channel, which is ignored")
    assert "clear.png" in told
    assert "deep.png" in told


def test_a_split_of_faults_alone_has_no_size(tmp_path, capsys):
    pair(tmp_path, "x.png", PLAIN)
    (tmp_path / "images/train/x.png").write_bytes(b"")
    assert main(["data", "check", str(tmp_path), "data.classes=[a, b]"]) == EXIT_ERROR
    printed = capsys.readouterr().out
    assert ": 1 image, all faulty, 0.0% void" in printed
    assert "segtrain train " not in printed


def test_tiffs_of_any_kind_say_what_they_hold(tmp_path):
    rgb = np.dstack([PLAIN] * 3)
    for name, options in (("big", {"big_tiff": True}), ("small", {})):
        Image.fromarray(np.dstack([rgb, PLAIN])).save(tmp_path / f"{name}.tif", **options)
        header = decode.read_header(str(tmp_path / f"{name}.tif"))
        assert (header.height, header.width, header.channels, header.bits, header.pages) == (
            12,
            16,
            4,
            8,
            1,
        )
        pages = [Image.fromarray(rgb) for _ in range(3)]
        pages[0].save(tmp_path / f"{name}.tif", save_all=True, append_images=pages[1:], **options)
        assert decode.read_header(str(tmp_path / f"{name}.tif")).pages == 3
    deep = write(tmp_path / "deep.tif", rgb.astype(np.uint16))
    assert decode.read_header(str(deep)).bits == 16


@pytest.mark.parametrize("mode", ["RGB", "CMYK", "L", "RGBA"])
def test_pixels_of_a_tiff_may_be_shared_with_torch(tmp_path, mode):
    """torch warns of arrays that cannot be written to."""
    Image.fromarray(np.dstack([PLAIN] * 3)).convert(mode).save(tmp_path / "x.tif")
    pixels = decode.decode_image(str(tmp_path / "x.tif"))
    assert pixels.shape == (12, 16, 3)
    assert pixels.flags.writeable
    assert pixels.flags.c_contiguous


def test_a_tiff_with_directories_without_end_is_read_in_time(tmp_path):
    path = tiff(tmp_path / "x.tif", np.dstack([PLAIN] * 4))
    content = bytearray(path.read_bytes())
    # its next directory is itself
    content[8 + 2 + 12 * 10 : 8 + 2 + 12 * 10 + 4] = struct.pack("<I", 8)
    path.write_bytes(content)
    assert decode.read_header(str(path)).pages == 1


def test_opencv_is_silenced_by_the_function_of_its_release(monkeypatch):
    """It is cv2.setLogLevel up to OpenCV 4.12, and cv2.utils.logging.setLogLevel since 4.13."""
    levels: list[int] = []
    with monkeypatch.context() as older:
        older.setattr(cv2, "setLogLevel", levels.append, raising=False)
        older.delattr(cv2.utils, "logging", raising=False)
        runpy.run_path(decode.__file__)
    assert levels == [0]
    monkeypatch.delattr(cv2, "setLogLevel", raising=False)
    monkeypatch.setattr(
        cv2.utils, "logging", SimpleNamespace(setLogLevel=levels.append), raising=False
    )
    runpy.run_path(decode.__file__)
    assert levels == [0, 0]

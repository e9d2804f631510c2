"""Tests of the native JPEG decoder: parts have the pixels of a full decode, and damage is
refused.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from segtrain.config import Data
from segtrain.data.augment.geometry import Geometry
from segtrain.data.datasets import open_dataset
from segtrain.data.pixels import native
from segtrain.data.pixels.jpeg_tiles import Tiles
from segtrain.data.sample import SampleMaker, Task
from segtrain.data.scenes import scene as scenes
from segtrain.errors import DataError

built = pytest.mark.skipif(
    not native.available(), reason=f"no native decoder here: {native.describe()}"
)
SAMPLING = {"420": 0x221111, "422": 0x211111, "440": 0x121111, "444": 0x111111, "411": 0x411111}


def test_it_is_built_where_its_libraries_are():
    probe = "#include <stdio.h>\n#include <jpeglib.h>\n#include <libdeflate.h>\n"
    compiler = shutil.which("c++")
    if os.environ.get("SEGTRAIN_NATIVE") == "0" or compiler is None:
        pytest.skip("no compiler, or SEGTRAIN_NATIVE=0")
    run = subprocess.run(
        [compiler, "-E", "-x", "c++", "-"], input=probe.encode(), capture_output=True, check=False
    )
    if run.returncode:
        pytest.skip("no headers of libjpeg-turbo and libdeflate")
    assert native.available(), native.describe()
    assert "libjpeg-turbo" in native.describe()


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A street scene with noise, so that each tile has codes of its own."""
    image = cv2.resize(
        scenes.scene(seed, 1, (144, 192))[0], (width, height), interpolation=cv2.INTER_CUBIC
    )
    noise = np.random.default_rng(seed).normal(0, 5, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def jpeg(image: np.ndarray, sampling: str = "420", **more: int) -> bytes:
    if sampling == "gray":
        image = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    flags = [
        cv2.IMWRITE_JPEG_QUALITY,
        more.get("quality", 92),
        cv2.IMWRITE_JPEG_OPTIMIZE,
        more.get("optimize", 0),
    ]
    flags += [
        cv2.IMWRITE_JPEG_PROGRESSIVE,
        more.get("progressive", 0),
        cv2.IMWRITE_JPEG_RST_INTERVAL,
        more.get("rst", 0),
    ]
    if sampling in SAMPLING:
        flags += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLING[sampling]]
    return cv2.imencode(".jpg", image, flags)[1].tobytes()


def reference(content: bytes) -> np.ndarray:
    """A full decode by Pillow."""
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def part(
    content: bytes, top: int, left: int, height: int, width: int, index: bytes = b""
) -> np.ndarray:
    """Pixels of a rectangle through the call that makes samples: nothing is scaled, flipped or
    colored.
    """
    size = native.size(content, "x.jpg")
    assert size is not None
    image, mask = np.empty((height, width, 3), np.uint8), np.empty((height, width), np.uint8)
    table = np.arange(256, dtype=np.uint8)
    geometry = Geometry(size, size, top, left)
    ids = np.zeros(size, np.uint8)
    done = native.crop(
        content,
        ids,
        geometry,
        (height, width),
        table,
        np.ones(256, np.uint8),
        (0, 0, 0),
        255,
        image,
        mask,
        ("x.jpg", "x.png"),
        index,
    )
    assert done == -1
    return image


@built
@pytest.mark.parametrize("sampling", [*SAMPLING, "gray"])
@pytest.mark.parametrize("size", [(300, 420), (257, 683), (61, 37)])
@pytest.mark.parametrize("optimize", [0, 1])
def test_any_part_has_the_pixels_of_a_full_decode(sampling, size, optimize):
    content = jpeg(picture(*size), sampling, optimize=optimize)
    whole = reference(content)
    index = native.jpeg_index(content)
    assert index
    rng = np.random.default_rng(1)
    for _ in range(12):
        top, left = int(rng.integers(0, size[0] - 1)), int(rng.integers(0, size[1] - 1))
        height, width = (
            int(rng.integers(1, size[0] - top + 1)),
            int(rng.integers(1, size[1] - left + 1)),
        )
        wanted = whole[top : top + height, left : left + width]
        for kind, pixels in {
            "plain": part(content, top, left, height, width),
            "index": part(content, top, left, height, width, index),
        }.items():
            assert np.array_equal(pixels, wanted), (kind, top, left, height, width)


@built
@pytest.mark.parametrize("rst", [1, 5, 7, 27, 54, 60])
def test_restart_markers_of_other_writers(rst):
    content = jpeg(picture(300, 432), rst=rst)  # 27 MCUs a row
    whole = reference(content)
    assert native.jpeg_index(content) is None
    for top, left, height, width in (
        (0, 0, 20, 20),
        (100, 130, 90, 200),
        (280, 400, 20, 32),
        (131, 3, 1, 1),
    ):
        assert np.array_equal(
            part(content, top, left, height, width), whole[top : top + height, left : left + width]
        )


@built
def test_progressive_files_are_decoded_too():
    content = jpeg(picture(200, 300), progressive=1)
    assert native.jpeg_index(content) is None
    assert np.array_equal(part(content, 50, 60, 70, 80), reference(content)[50:120, 60:140])


@built
def test_an_index_of_another_file_is_not_used():
    one, other = jpeg(picture(300, 400, 1)), jpeg(picture(300, 400, 2))
    index = native.jpeg_index(one)
    assert index
    assert np.array_equal(part(other, 100, 100, 50, 60, index), reference(other)[100:150, 100:160])
    assert np.array_equal(part(one, 100, 100, 50, 60, index[:-5]), reference(one)[100:150, 100:160])


@built
def test_a_mangled_index_gives_an_error_or_pixels_but_no_crash():
    content = jpeg(picture(300, 400))
    index = native.jpeg_index(content)
    assert index
    rng = np.random.default_rng(0)
    for _ in range(200):
        mangled = bytearray(index)
        for place in rng.integers(24, len(index), 20):
            mangled[place] = int(rng.integers(256))
        with contextlib.suppress(DataError):
            part(content, 100, 100, 150, 200, bytes(mangled))


@built
def test_any_bytes_are_refused_or_decoded_but_never_crash():
    content = jpeg(picture(80, 120))
    rng = np.random.default_rng(3)
    for _ in range(400):
        damaged = bytearray(content)
        for place in rng.integers(2, len(content), int(rng.integers(1, 8))):
            damaged[place] = int(rng.integers(256))
        for action in (
            lambda b: native.check(b, 3, "x"),
            lambda b: part(b, 10, 10, 20, 30),
            native.jpeg_index,
        ):
            with contextlib.suppress(
                DataError, AssertionError
            ):  # the header may claim another size than the mask beside it
                action(bytes(damaged))


def folder(tmp_path: Path, size: tuple[int, int] = (600, 800)) -> Data:
    for k in range(3):
        for kind in ("images", "masks"):
            (tmp_path / kind / "train").mkdir(parents=True, exist_ok=True)
        (tmp_path / "images/train" / f"{k}.jpg").write_bytes(jpeg(picture(*size, k)))
        cv2.imwrite(str(tmp_path / "masks/train" / f"{k}.png"), np.full(size, k, np.uint8))
    return Data(layout="folders", root=str(tmp_path), classes=("a", "b", "c"), crop=(128, 160))


def samples(sampler: SampleMaker, count: int = 12) -> list[bytes]:
    made = []
    for k in range(count):
        image, mask = np.empty((128, 160, 3), np.uint8), np.empty((128, 160), np.uint8)
        sampler(Task(k % 3, k // 3, (128, 160), (0.5, 2.0)), image, mask)
        made.append(image.tobytes() + mask.tobytes())
    return made


@built
def test_places_of_tiles_are_kept_and_change_no_pixel(tmp_path, monkeypatch):
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "cache"))
    data = folder(tmp_path)
    source = open_dataset(data, "train")
    first = SampleMaker(source, data, 0)
    monkeypatch.setattr(first.tiles, "_off", True)
    plain = samples(first)
    assert not list((tmp_path / "cache").glob("tiles-*"))
    assert samples(SampleMaker(source, data, 0)) == plain  # makes the index
    (kept,) = (tmp_path / "cache").glob("tiles-*/*.tiles")
    size = kept.stat().st_size
    monkeypatch.setattr(native, "jpeg_index", None)  # from now on it must come from the file
    assert samples(SampleMaker(source, data, 0)) == plain
    assert kept.stat().st_size == size


@built
@pytest.mark.parametrize("harm", ["cut", "mangled", "other file"])
def test_a_damaged_or_outdated_record_is_made_again(tmp_path, monkeypatch, harm):
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "cache"))
    data = folder(tmp_path)
    source = open_dataset(data, "train")
    samples(SampleMaker(source, data, 0))
    (kept,) = (tmp_path / "cache").glob("tiles-*/*.tiles")
    content = bytearray(kept.read_bytes())
    if harm == "cut":
        kept.write_bytes(content[: len(content) // 2])
    elif harm == "mangled":
        content[200] ^= 255
        kept.write_bytes(content)
    else:
        (tmp_path / "images/train/0.jpg").write_bytes(jpeg(picture(600, 800, 7)))
    off = SampleMaker(source, data, 0)
    monkeypatch.setattr(off.tiles, "_off", True)
    assert samples(SampleMaker(source, data, 0)) == samples(off)


@built
@pytest.mark.parametrize("before", ["baseline", "progressive"])
def test_a_fresh_record_wins_over_that_of_an_overwritten_image(tmp_path, monkeypatch, before):
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path))
    old, new = (
        jpeg(picture(600, 800), progressive=int(before == "progressive")),
        jpeg(picture(600, 800, 7)),
    )
    index = native.jpeg_index(new)
    Tiles("x", 1).get(0, "x.jpg", old, (600, 800))
    (kept,) = tmp_path.glob("tiles-*/*.tiles")
    kept = kept.rename(kept.with_name("z.tiles"))  # after all names that begin with a PID
    os.utime(kept, (1, 1))
    assert Tiles("x", 1).get(0, "x.jpg", new, (600, 800)) == index
    monkeypatch.setattr(native, "jpeg_index", None)  # from now on it must come from the cache
    assert Tiles("x", 1).get(0, "x.jpg", new, (600, 800)) == index


@built
def test_the_cache_keeps_no_file_open_and_may_be_cleared(tmp_path, monkeypatch):
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path))
    content = jpeg(picture(600, 800))
    index = native.jpeg_index(content)

    def opened() -> list[str]:
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return [
            os.readlink(link)
            for link in links
            if os.path.lexists(link) and ".tiles" in os.readlink(link)
        ]

    for sample in range(3):
        Tiles("x", 3).get(sample, "x.jpg", content, (600, 800))
    tiles = Tiles("x", 3)
    assert [tiles.get(sample, "x.jpg", content, (600, 800)) for sample in range(3)] == [index] * 3
    assert len(list(tmp_path.glob("tiles-*/*.tiles"))) == 3
    assert opened() == []
    shutil.rmtree(tiles.folder)
    assert tiles.get(0, "x.jpg", content, (600, 800)) == index


@built
def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "cache").write_text("a file where a folder must be")
    data = folder(tmp_path / "data")
    source = open_dataset(data, "train")
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "cache"))
    samples(SampleMaker(source, data, 0))
    said = capsys.readouterr().err
    assert said.count("cannot be kept") == 1
    assert "SEGTRAIN_CACHE" in said


def test_names_need_not_be_utf_8(tmp_path, monkeypatch):
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path))
    content = jpeg(picture(600, 800))
    tiles = Tiles("street\udcb0.jpg", 1)
    assert tiles.get(0, "street\udcb0.jpg", content, (600, 800)) == (
        native.jpeg_index(content) or b""
    )


@built
def test_small_pictures_need_no_index(tmp_path, monkeypatch):
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "cache"))
    assert Tiles("x", 1).get(0, "x.jpg", jpeg(picture(100, 100)), (100, 100)) == b""
    assert not (tmp_path / "cache").exists()


@built
def test_files_are_read_in_one_call(tmp_path, monkeypatch):
    """Also files that are larger than the room for the first try. What is not a regular file is left
    to Python, which names the reason."""
    content, path = bytes(range(256)) * 10, tmp_path / "b\udcfc.bin"
    path.write_bytes(content)
    for room in (1 << 16, 100, len(content)):
        monkeypatch.setattr(native, "_room", room)
        assert native.read(str(path)) == content
        assert native.read(str(path), 10, 20) == content[10:30]
    (tmp_path / "empty").touch()
    assert native.read(str(tmp_path / "empty")) == b""
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe", "."):
        assert native.read(str(tmp_path / name)) is None
    assert native.read(str(path), len(content) - 10, 20) is None  # it ends too early
    monkeypatch.setenv("SEGTRAIN_NATIVE", "0")
    assert native.read(str(path)) is None

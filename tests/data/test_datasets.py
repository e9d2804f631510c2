"""Tests of data sets: the pairs of each layout, and one error with a fix for each kind of bad file
or list.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from data_files import camvid, ids, picture, sample_names
from PIL import Image

from segtrain.config import Data
from segtrain.data.cache import RamCache
from segtrain.data.datasets import open_dataset
from segtrain.data.index.entries import Entry
from segtrain.data.pixels import decode
from segtrain.data.pixels.crop import pixels_of
from segtrain.errors import DataError


def test_camvid(tmp_path):
    data = camvid(tmp_path)
    dataset = open_dataset(data, "val")
    image, mask = dataset.read(0)
    assert len(dataset) == 2
    assert sample_names(dataset) == ["a", "b"]
    assert image.shape == (12, 16, 3)
    assert image.dtype == mask.dtype == np.uint8
    assert sorted(np.unique(mask)) == [0, 10, 255]  # 11 in the file is void
    assert dataset.size(1) == (12, 16)
    assert np.array_equal(dataset.read_image(0), image)
    assert np.array_equal(dataset.read_mask(0), mask)
    assert dataset.labels.names[-1] == "bicyclist"


def test_camvid_reads_its_own_class_names(tmp_path):
    data = camvid(tmp_path)
    (tmp_path / "classes.txt").write_text("\n".join(f"c{i}" for i in range(11)) + "\nVoid\n")
    labels = open_dataset(data, "val").labels
    assert labels.names == tuple(f"c{i}" for i in range(11))
    for void in ("unlabeled", "Unlabelled"):
        (tmp_path / "classes.txt").write_text(f"a\nb\n{void}\n")
        assert open_dataset(data, "val").labels.names == ("a", "b")
    assert labels.raw_to_train[11] == 255


def test_cityscapes(tmp_path):
    for city in ("aachen", "bonn"):
        stem = f"{city}_000000_000019"
        picture(tmp_path / "leftImg8bit" / "val" / city / f"{stem}_leftImg8bit.png")
        ids(tmp_path / "gtFine" / "val" / city / f"{stem}_gtFine_labelIds.png", (7, 33, 4))
        ids(tmp_path / "gtFine" / "val" / city / f"{stem}_gtFine_instanceIds.png")
        ids(tmp_path / "gtFine" / "val" / city / f"{stem}_gtFine_color.png")
    dataset = open_dataset(Data(layout="cityscapes", root=str(tmp_path)), "val")
    assert sample_names(dataset) == [
        "aachen/aachen_000000_000019",
        "bonn/bonn_000000_000019",
    ]
    assert sorted(np.unique(dataset.read_mask(0))) == [0, 18, 255]


def test_ade20k(tmp_path):
    for short, folder in (("train", "training"), ("val", "validation")):
        picture(tmp_path / "images" / folder / f"ADE_{short}_1.jpg")
        ids(tmp_path / "annotations" / folder / f"ADE_{short}_1.png", (0, 1, 150))
    for split in ("train", "val", "validation"):
        dataset = open_dataset(Data(layout="ade20k", root=str(tmp_path)), split)
        assert len(dataset) == 1
        assert sorted(np.unique(dataset.read_mask(0))) == [0, 149, 255]


@pytest.mark.parametrize("ending", ["", "_mask"])
def test_a_pair_of_folders(tmp_path, ending):
    for name in ("x", "y", "deep/z"):
        picture(tmp_path / "images" / "train" / f"{name}.png")
        ids(tmp_path / "masks" / "train" / f"{name}{ending}.png")
    (tmp_path / "images" / "train" / "Thumbs.db").write_bytes(b"-")
    (tmp_path / "images" / "train" / "._x.png").write_bytes(b"-")
    dataset = open_dataset(Data(layout="folders", root=str(tmp_path), classes=("a", "b")), "train")
    assert sample_names(dataset) == ["deep/z", "x", "y"]
    assert all(ending in str(e.mask) for e in dataset.entries)
    with refused("classes-missing"):
        open_dataset(Data(layout="folders", root=str(tmp_path)), "train")
    (tmp_path / "classes.txt").write_text("one\ntwo\nthree\n")
    assert open_dataset(Data(layout="folders", root=str(tmp_path)), "train").labels.names == (
        "one",
        "two",
        "three",
    )


def lists(root: Path) -> list[dict[str, str]]:
    rows = []
    for name, split in (("a", "train"), ("b", "val"), ("c", "val")):
        picture(root / f"{name}.png")
        ids(root / f"{name}_m.png")
        rows.append(
            {"image": f"{name}.png", "mask": f"{name}_m.png", "split": split, "town": name.upper()}
        )
    return rows


def test_csv_and_jsonl_lists(tmp_path):
    rows = lists(tmp_path)
    header = ",".join(rows[0])
    (tmp_path / "all.csv").write_text(
        "\ufeff" + "\n".join([header, *(",".join(row.values()) for row in rows)]) + "\n"
    )
    (tmp_path / "val.jsonl").write_text("\n".join(json.dumps(row) for row in rows[1:]) + "\n\n")
    base = {"layout": "list", "root": str(tmp_path), "classes": ("a", "b")}
    from_csv = open_dataset(Data(**base, index="all.csv"), "val")
    from_json = open_dataset(Data(**base, index="{split}.jsonl"), "val")
    assert from_csv.entries == from_json.entries
    assert len(from_csv) == 2
    assert from_csv.entries[0].meta["town"] == "B"


def test_lists_that_are_wrong(tmp_path):
    lists(tmp_path)
    data = Data(layout="list", root=str(tmp_path), classes=("a", "b"), index="x.csv")
    js = data.model_copy(update={"index": "x.jsonl"})
    for name, text, code, values in (
        ("x.csv", "image,masks\na.png,a_m.png\n", "list-column-missing", {"near": "masks"}),
        ("x.csv", "image,mask\na.png,a_m.png\na.png,a_m.png\n", "list-file-repeated", {"count": 1}),
        ("x.csv", "image,mask\na.png,q.png\n", "list-file-missing", {"count": 1}),
        ("x.csv", "image,mask\na.png,\n", "list-row-empty", {"rows": [1]}),
        (
            "x.csv",
            "image,mask,split\na.png,a_m.png,train\nb.png,,val\n",
            "list-row-empty",
            {"rows": [2]},
        ),
        ("x.csv", "image,mask\n", "split-empty", {}),
        ("x.csv", "image,mask,split\na.png,a_m.png,test\n", "split-empty", {}),
        ("x.jsonl", '{"image": "a.png"\n', "list-line-invalid", {"line": 1}),
        ("x.jsonl", "[1]\n", "list-line-invalid", {"line": 1}),
    ):
        (tmp_path / name).write_text(text)
        with refused(code, file=str(tmp_path / name), **values):
            open_dataset(js if name.endswith("l") else data, "val")
        (tmp_path / name).unlink()
    (tmp_path / "y.csv").write_text("image,mask\n")
    with refused("list-missing", near="y.csv"):
        open_dataset(data, "val")


@pytest.mark.parametrize("spelling", ["./a.png", "x/../a.png", ".//a.png", "{root}/a.png"])
def test_an_image_is_listed_once_under_any_spelling(tmp_path, spelling):
    lists(tmp_path)
    (tmp_path / "x").mkdir()
    other = spelling.format(root=tmp_path)
    (tmp_path / "val.csv").write_text(
        f"image,mask\na.png,a_m.png\nb.png,b_m.png\n{other},a_m.png\n"
    )
    with refused("list-file-repeated", count=1):
        open_dataset(Data(layout="list", root=str(tmp_path)), "val")
    (tmp_path / "val.csv").write_text(f"image,mask\n{other},a_m.png\nb.png,b_m.png\n")
    assert (
        len(open_dataset(Data(layout="list", root=str(tmp_path), classes=("a", "b")), "val")) == 2
    )


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("up", ".."),
        ("loop", "."),
        ("top", "../.."),
        ("again", "town"),
        ("town/back", "../../train"),
    ],
)
def test_a_folder_is_walked_once(tmp_path, link, target):
    for split in ("train", "val"):
        for town in ("", "town/"):
            picture(tmp_path / "images" / split / f"{town}a.png")
            ids(tmp_path / "masks" / split / f"{town}a.png")
    data = Data(layout="folders", root=str(tmp_path), classes=("a", "b"))
    assert len(open_dataset(data, "train")) == 2
    for kind in ("images", "masks"):
        (tmp_path / kind / "train" / link).symlink_to(target)
    with refused("folder-linked-twice") as caught:
        open_dataset(data, "train")
    assert str(caught.value).count("\n") == 0
    assert len(open_dataset(data, "val")) == 2


def test_images_and_masks_that_stand_alone(tmp_path):
    data = camvid(tmp_path, tuple(f"n{i}" for i in range(9)))
    for i in range(7):
        (tmp_path / "valannot" / f"n{i}.png").unlink()
    ids(tmp_path / "valannot" / "other.png")
    with pytest.raises(DataError) as caught:
        open_dataset(data, "val")
    assert (caught.value.values["images"], caught.value.values["masks"]) == (7, 1)
    text = str(caught.value)
    assert "n4.jpg and 2 more" in text
    assert "n5.jpg" not in text
    assert "other.png" in text


def test_folders_that_are_missing_or_empty(tmp_path):
    data = camvid(tmp_path)
    with refused("folder-missing", near="val"):
        open_dataset(data, "vall")
    with refused("folder-missing"):
        open_dataset(data.model_copy(update={"root": str(tmp_path / "gone" / "x")}), "val")
    (tmp_path / "test").mkdir()
    (tmp_path / "testannot").mkdir()
    with refused("split-empty"):
        open_dataset(data, "test")
    picture(tmp_path / "val" / "a.png")
    with refused("name-repeated"):
        open_dataset(data, "val")


def test_a_mask_of_another_size(tmp_path):
    data = camvid(tmp_path)
    ids(tmp_path / "valannot" / "a.png", size=(6, 16))
    with refused("mask-size-differs", found=(6, 16), expected=(12, 16), rotated=False):
        open_dataset(data, "val").read(0)


def test_exif_turns_are_not_applied(tmp_path, monkeypatch):
    data = camvid(tmp_path, ("a",))
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((16, 12, 3), np.uint8)).save(tmp_path / "val" / "a.jpg", exif=exif)
    dataset = open_dataset(data, "val")
    assert dataset.read_image(0).shape[:2] == dataset.size(0) == (16, 12)
    with refused("mask-size-differs", rotated=True):
        dataset.read(0)
    with refused("mask-size-differs", rotated=True):
        pixels_of(dataset.record(0), dataset.labels)
    Image.fromarray(np.zeros((16, 12, 3), np.uint8)).save(tmp_path / "a.png", exif=exif)
    assert decode.decode_image(str(tmp_path / "a.png")).shape[:2] == (16, 12)
    monkeypatch.setitem(sys.modules, "simplejpeg", None)  # as if it were not installed
    assert dataset.read_image(0).shape[:2] == (16, 12)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "tif", "webp", "gif"])
def test_damaged_images(tmp_path, suffix):
    path = picture(tmp_path / f"x.{suffix}", (40, 50))
    whole = path.read_bytes()
    assert decode.read_header(str(path)).height == 40
    assert decode.decode_image(str(path)).shape == (40, 50, 3)
    decode.check_whole(str(path))
    for content, words in (
        (b"", "0 bytes"),
        (whole[: len(whole) // 2], None),
        (whole[:20], None),
        (b"<html>not found</html>" * 9, "not an image"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=words) as caught:
            decode.decode_image(str(path))
        assert str(path) in str(caught.value)
        assert "take it out" in str(caught.value)
        if suffix in ("jpg", "png"):
            with pytest.raises(DataError):
                decode.check_whole(str(path))
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        decode.decode_image(str(path))
    if suffix == "png":
        for place in (len(whole) // 2, len(whole) - 20):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
            with pytest.raises(DataError, match="checksum"):
                decode.decode_image(str(path))
            with pytest.raises(DataError, match="checksum"):
                decode.decode_mask(str(path))


def test_a_bomb_is_refused_by_its_header(tmp_path):
    path = picture(tmp_path / "x.png")
    content = bytearray(path.read_bytes())
    content[16:24] = (100_000).to_bytes(4, "big") * 2
    path.write_bytes(content)
    for read in (decode.decode_image, decode.decode_mask, decode.read_header):
        with pytest.raises(DataError, match=r"100000 x 100000 pixels.*tiles"):
            read(str(path))


def test_a_header_without_pixels_is_damaged(tmp_path):
    png, jpeg = picture(tmp_path / "x.png").read_bytes(), picture(tmp_path / "x.jpg").read_bytes()
    scan = jpeg.index(b"\xff\xda")
    for content in (
        png[:16] + bytes(4) + png[20:],
        png[:20] + bytes(4) + png[24:],
        jpeg[:2] + jpeg[scan:],
    ):
        with refused("image-header-damaged"):
            decode.read_header(content)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_with_a_long_trailer_is_whole(tmp_path, monkeypatch, progressive):
    """Phones append a video to a picture."""
    noise = np.random.default_rng(0).integers(0, 255, (300, 400, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "x.jpg", quality=95, progressive=progressive)
    content, video = (tmp_path / "x.jpg").read_bytes(), b"ftypmp42" * (1 << 17)
    pixels = decode.decode_image(content)
    for trailer in (video, b"\xff\xd8\xff\xe1" + video):
        decode.check_whole(content + trailer)
        assert np.array_equal(decode.decode_image(content + trailer), pixels)
    monkeypatch.setattr(decode.native, "whole", lambda *_: None)
    assert np.array_equal(decode.decode_image(content + video), pixels)
    for end in (len(content) - 2, len(content) // 2):
        # the second as a download that was interrupted
        for cut in (content[:end], content[:end] + bytes(1 << 20)):
            with refused("image-ends-early", found=len(cut)):
                decode.check_whole(cut)
            with refused("image-ends-early"):
                decode.decode_image(cut)


def test_an_image_without_a_mask_has_one_code(tmp_path):
    dataset = open_dataset(camvid(tmp_path, ("a",)), "val")
    entry = dataset.entries[0]
    dataset = replace(dataset, entries=[Entry(entry.image, None, entry.meta)])
    for read in (dataset.read, lambda index: pixels_of(dataset.record(index), dataset.labels)):
        with refused("mask-missing", file=entry.image):
            read(0)


def test_images_of_other_modes(tmp_path):
    gray = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5
    Image.fromarray(gray).save(tmp_path / "gray.png")
    Image.fromarray(gray).save(tmp_path / "gray.jpg", quality=100)
    Image.fromarray(gray.astype(np.uint16) << 8).save(tmp_path / "deep.png")
    Image.fromarray(gray.astype(np.uint16) << 8).save(tmp_path / "deep.tif")
    Image.fromarray(np.dstack([gray] * 3 + [gray * 0])).save(tmp_path / "clear.png")
    Image.fromarray(gray).convert("P").save(tmp_path / "palette.png")
    for name in ("gray.png", "gray.jpg", "deep.png", "deep.tif", "clear.png", "palette.png"):
        image = decode.decode_image(str(tmp_path / name))
        assert image.shape == (6, 8, 3)
        assert image.dtype == np.uint8
        assert np.abs(image[..., 0].astype(int) - gray).max() <= 2, name
    Image.fromarray(np.dstack([gray] * 4), "CMYK").save(tmp_path / "print.jpg")
    assert decode.decode_image(str(tmp_path / "print.jpg")).shape == (6, 8, 3)


def test_fingerprint_is_of_names_sizes_and_labels_alone(tmp_path):
    first, second = camvid(tmp_path / "one"), camvid(tmp_path / "two")
    marks = [open_dataset(data, "val").fingerprint() for data in (first, second)]
    assert marks[0] == marks[1]
    assert len(marks[0]) == 12
    changed = open_dataset(first.model_copy(update={"ignore_index": 200}), "val").fingerprint()
    picture(tmp_path / "two" / "val" / "a.jpg", seed=5)
    assert len({marks[0], changed, open_dataset(second, "val").fingerprint()}) == 3


def test_records_hold_what_is_stored(tmp_path):
    data = camvid(tmp_path)
    dataset = open_dataset(data, "val")
    found = dataset.record(1)
    assert found.image == (tmp_path / "val" / "b.jpg").read_bytes()
    assert found.mask == (tmp_path / "valannot" / "b.png").read_bytes()
    assert (found.image_name, found.mask_name, found.ids) == (
        *map(str, (tmp_path / "val/b.jpg", tmp_path / "valannot/b.png")),
        "raw",
    )
    kept = RamCache(dataset).record(1)
    assert np.array_equal(kept.image, dataset.read(1)[0])
    assert np.array_equal(kept.mask, dataset.read(1)[1])
    assert kept.ids == "train"
    drawn = open_dataset(Data(scenes=4, scene_size=(48, 64)), "train")
    assert np.array_equal(drawn.record(2).mask, drawn.read(2)[1])
    (tmp_path / "val" / "b.jpg").unlink()
    with pytest.raises(DataError, match=r"b.jpg: cannot be read"):
        dataset.record(1)

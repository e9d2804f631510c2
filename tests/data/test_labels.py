"""Tests of label spaces: train ids of masks of every kind, and errors about wrong values and class
files.
"""

from __future__ import annotations

import numpy as np
import pytest
from conftest import refused
from PIL import Image
from pngs import GRAY, PALETTE, chunk, write

from segtrain.config import Data
from segtrain.data.labels import presets
from segtrain.data.labels.classes import label_space
from segtrain.data.labels.space import LabelSpace, color_wheel, plain_space
from segtrain.data.pixels.decode import decode_mask
from segtrain.errors import DataError

SPACE = LabelSpace(
    ("road", "car"),
    ((128, 64, 128), (0, 0, 142)),
    255,
    {7: 0, 26: 1, 0: 255},
    {0x804080: 0, 0x00008E: 1},
)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int16, np.int64])
def test_remap_takes_any_integer_type(kind):
    raw = np.array([[7, 26, 0], [26, 26, 7]], kind)
    mapped = SPACE.remap(raw)
    assert mapped.dtype == np.uint8
    assert mapped.tolist() == [[0, 1, 255], [1, 1, 0]]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32])
def test_unknown_ids_are_named_with_their_pixels(kind):
    raw = np.full((10, 10), 7, kind)
    raw[0, :4], raw[1, :2] = 99, 3
    with refused(
        "mask-ids-unknown", "99 (4 pixels)", file="masks/a.png", found={99: 4, 3: 2}, pixels=6
    ):
        SPACE.remap(raw, "masks/a.png")


def test_ids_beyond_the_table_are_unknown_not_wrapped():
    for raw in (
        np.array([[65536 + 7]], np.int32),
        np.array([[-1]], np.int16),
        np.array([[7 + 256]], np.uint16),
    ):
        with refused("mask-ids-unknown", pixels=1):
            SPACE.remap(raw)
    assert presets.CITYSCAPES19.remap(np.array([[-1, 7]], np.int16)).tolist() == [[255, 0]]


def test_many_classes_leave_room_for_the_unknown():
    space = plain_space(tuple(map(str, range(254))))
    assert space.remap(np.array([[0, 253, 255]], np.uint8)).tolist() == [[0, 253, 255]]
    with refused("mask-ids-unknown", found={254: 1}):
        space.remap(np.array([[254]], np.uint8))


def test_interpolated_masks_are_called_so():
    raw = np.zeros((100, 100), np.uint8)
    raw[:, 50:] = 26
    raw[:, 45:50] = (4, 8, 13, 17, 21)
    with pytest.raises(DataError, match="interpolation: use nearest"):
        LabelSpace(("a", "b"), color_wheel(2), 255, {0: 0, 26: 1}).remap(raw)


def test_colorize_and_dict_round_trip():
    assert SPACE.colorize(np.array([[0, 1, 255]], np.uint8)).tolist() == [
        [[128, 64, 128], [0, 0, 142], [0, 0, 0]]
    ]
    for space in (SPACE, presets.CAMVID11, presets.CITYSCAPES19, presets.VOC21):
        assert LabelSpace.from_dict(space.to_dict()) == space
    with refused("labels-invalid"):
        LabelSpace.from_dict({"names": ["a"]})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"palette": [[0, 0, 0], [999, 0, 0]]}, "channels of 'b'"),
        ({"palette": [[0, 0, 0], [0, -1, 0]]}, "[0, -1, 0]"),
        ({"palette": [[0, 0, 0], [float("inf"), 0, 0]]}, "infinity"),
        ({"palette": [[0, 0, 0]]}, "1 colors"),
        ({"ignore_index": 70000}, "ignore_index=70000"),
    ],
)
def test_a_description_with_impossible_numbers_is_refused(changes, words):
    right = {
        "names": ["a", "b"],
        "palette": [[0, 0, 0], [1, 2, 3]],
        "ignore_index": 255,
        "raw_to_train": {"0": 0},
    }
    LabelSpace.from_dict(right)
    with refused("labels-invalid", words):
        LabelSpace.from_dict({**right, **changes})


@pytest.mark.parametrize(
    ("bits", "palette"),
    [(1, False), (8, False), (16, False), (2, True), (4, True)],
)
def test_png_masks_keep_their_stored_values(bits, palette):
    rows = np.arange(35).reshape(5, 7) % (1 << bits) * (257 if bits == 16 else 1)
    # All entries have one color: only indices tell them apart.
    extra = (
        chunk(b"PLTE", bytes([9, 9, 9]) * (1 << bits)) + chunk(b"tRNS", bytes([0]))
        if palette
        else b""
    )
    assert np.array_equal(
        decode_mask(write(rows, PALETTE if palette else GRAY, bits, extra=extra)), rows
    )


def test_masks_by_pillow_and_opencv_agree(tmp_path):
    ids = (np.arange(12 * 9).reshape(12, 9) % 21).astype(np.uint8)
    picture = Image.fromarray(ids)
    picture.putpalette([c for color in color_wheel(256) for c in color])
    for name in ("a.png", "a.bmp", "a.gif", "a.tif"):
        picture.save(tmp_path / name)
        assert np.array_equal(decode_mask(str(tmp_path / name)), ids), name
    Image.fromarray(ids.astype(np.uint16) * 1000).save(tmp_path / "b.tif")
    assert np.array_equal(decode_mask(str(tmp_path / "b.tif")), ids.astype(np.uint16) * 1000)
    Image.fromarray(ids == 3).save(tmp_path / "e.png")
    assert np.array_equal(decode_mask(str(tmp_path / "e.png")), ids == 3)


def test_a_jpeg_mask_is_refused(tmp_path):
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "m.jpg")
    with pytest.raises(DataError, match="`segtrain data convert` makes it a PNG"):
        decode_mask(str(tmp_path / "m.jpg"))


def test_label_space_from_the_config():
    folders = {"layout": "folders", "root": "/nowhere"}
    space = label_space(Data(**folders, classes=("a", "b")))
    assert space.raw_to_train == {0: 0, 1: 1, 255: 255}
    space = label_space(
        Data(**folders, classes=("a", "b"), label_map={10: 0, 20: 1, 30: -1}, ignore_index=254)
    )
    assert space.raw_to_train == {10: 0, 20: 1, 30: 254, 254: 254}
    assert label_space(Data(**folders, label_map={5: 0, 6: 2})).num_classes == 3
    moved = label_space(Data(layout="camvid", root="x", ignore_index=100), presets.CAMVID11)
    assert moved.raw_to_train[11] == 100
    assert moved.ignore_index == 100


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        ({"classes": ()}, "classes-missing", {"layout": "folders"}),
        ({"classes": ("a", "a")}, "class-name-repeated", {"name": "a"}),
        ({"classes": ("a", "b"), "ignore_index": 1}, "ignore-index-is-a-class", {"found": 1}),
        ({"classes": ("a", "b"), "label_map": {0: 2}}, "train-id-invalid", {"found": 2}),
        ({"classes": ("a",), "label_map": {0: -2}}, "train-id-invalid", {"found": -2}),
        ({"classes": tuple(map(str, range(40000)))}, "classes-count-invalid", {"found": 40000}),
    ],
)
def test_label_settings_that_cannot_be(settings, code, values):
    with refused(code, **values):
        label_space(Data(layout="folders", root="x", **settings))


def test_names_of_another_number_than_the_layouts():
    with refused("classes-count-differs", found=5, expected=19):
        label_space(
            Data(layout="cityscapes", root="x", classes=tuple("abcde")), presets.CITYSCAPES19
        )

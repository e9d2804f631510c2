"""Tests that each usual mask encoding is read right, or refused with settings that read it right.

Each set is made here: shapes of a known truth, written in one encoding. Where the check refuses it,
the settings that it proposes (values, not parsed from text) are appended to the command line, and
the pixels of each class must then be those of the truth.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import refused
from mask_sets import (
    COLORS,
    FOUR,
    THREE,
    TWO,
    Encode,
    by_table,
    check,
    failed,
    fix,
    make,
    one_bit,
    palette,
    pixels,
    rgb,
    truth,
)
from PIL import Image

from segtrain.config import Data, load_config
from segtrain.config.paste import command, in_yaml, words
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.audit.mask_encoding import mask_finding
from segtrain.data.audit.mask_values import MaskValues, numbers_objects, top_of, values_of
from segtrain.data.audit.statistics import label_warnings
from segtrain.data.labels.classes import label_space
from segtrain.data.labels.space import plain_space
from segtrain.data.pixels.decode import decode_mask
from segtrain.errors import ConfigError

RIGHT: dict[str, tuple[Encode, str, bool]] = {
    "0..2 and 255 for void": (by_table({}), THREE, True),
    "1 bit": (one_bit, TWO, False),
    "16 bits": (by_table({}, np.uint16), THREE, True),
    "ids three times over": (rgb(np.arange(3, dtype=np.uint8)[:, None].repeat(3, 1)), THREE, False),
    "palette, by index": (palette([0, 1, 2], COLORS), THREE, False),
    "float TIFF of whole numbers": (by_table({}, np.float32, ".tif"), THREE, True),
}


@pytest.mark.parametrize("name", RIGHT)
def test_read_right(name, tmp_path):
    encode, classes, void = RIGHT[name]
    counts = make(tmp_path, encode, 2 if classes == TWO else 3, void)
    reports = check(tmp_path, classes)
    assert not any(
        report.failed or report.warnings or report.findings for report in reports.values()
    )
    assert pixels(reports) == counts


REFUSED: dict[str, tuple[Encode, str, bool, str]] = {
    "RGB black and white": (
        rgb(np.array([[0, 0, 0], [255, 255, 255]], np.uint8)),
        TWO,
        False,
        "data.label_map={0: 0, 255: 1}",
    ),
    "1 and 255": (by_table({0: 255, 1: 1}), TWO, False, "data.label_map={255: 0, 1: 1}"),
    "1-based with void": (
        by_table({0: 1, 1: 2, 2: 3}),
        THREE,
        True,
        "data.label_map={1: 0, 2: 1, 3: 2}",
    ),
    "background as 255": (
        by_table({0: 255, 1: 0, 2: 1}),
        THREE,
        False,
        "data.label_map={255: 0, 0: 1, 1: 2}",
    ),
    "background as 255, others by id": (
        by_table({0: 255}),
        THREE,
        False,
        "data.label_map={255: 0, 1: 1, 2: 2}",
    ),
    "16-bit ids above 255": (
        by_table({0: 1000, 1: 24000, 2: 26000}, np.uint16),
        THREE,
        False,
        "data.label_map={1000: 0, 24000: 1, 26000: 2}",
    ),
    "0 and 1 in some masks, 0 and 255 in others": (
        lambda mask, path: by_table({1: 255} if "1" in path.name else {})(mask, path),
        TWO,
        False,
        "data.label_map={0: 0, 1: 1, 255: 1}",
    ),
    "gray levels": (
        by_table({1: 85, 2: 170, 3: 255}),
        FOUR,
        False,
        "data.label_map={0: 0, 85: 1, 170: 2, 255: 3}",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_settings_that_read_it_right(name, tmp_path):
    encode, classes, void, wanted = REFUSED[name]
    counts = make(tmp_path, encode, {TWO: 2, FOUR: 4}.get(classes, 3), void)
    refused = check(tmp_path, classes)
    found, first = fix(refused), next(iter(refused.values()))
    assert words(found.settings) == [wanted]
    assert f'"{wanted}"' in first.table()
    reports = check(tmp_path, classes, *words(found.settings))
    assert not any(
        report.failed or report.warnings or report.findings for report in reports.values()
    )
    assert pixels(reports) == counts
    pasted = shlex.split(command(found.settings))  # as a shell reads the line that is shown
    (tmp_path / "fix.yaml").write_text(in_yaml(found.settings))
    base = [f"data.root={tmp_path}", "data.layout=folders"]
    by_line, by_file = load_config(None, [*base, *pasted]), load_config(tmp_path / "fix.yaml", base)
    assert by_line.data == by_file.data
    assert by_line.data != load_config(None, base).data


def test_what_255_means_may_be_said(tmp_path):
    """Masks of background and void alone: a map that leaves the other class empty is not proposed,
    but taken as meant.
    """
    make(tmp_path, by_table({1: 255}), 2)
    assert not fix(check(tmp_path, TWO)).others
    reports = check(tmp_path, TWO, "data.label_map={0: 0, 1: 1, 255: -1}")
    assert not failed(reports)
    assert all(
        "no pixel of cell (1 of 2 classes)" in report.warnings for report in reports.values()
    )


def proposed(names: tuple[str, ...], ids: dict[int, int], **data: Any) -> SplitFinding | None:
    config = load_config(None, ["data.root=x", "data.layout=folders"]).data.model_copy(update=data)
    return mask_finding(config, plain_space(names), {"train": MaskValues(ids)})


def test_more_ids_than_classes():
    """1-based with 0 for what is not labeled, or 0-based with the last id for void: by the first
    class's name.
    """
    ids = {0: 5, 1: 50, 2: 30, 3: 20}
    last_is_void, zero_is_void = {0: 0, 1: 1, 2: 2, 3: -1}, {0: -1, 1: 0, 2: 1, 3: 2}
    for names, found_ids, expected in (
        ("road car sky", ids, zero_is_void),
        ("background car sky", ids, last_is_void),
        # 3 is rarer than 0, and not the rarest
        ("sky car road", {0: 15, 1: 5, 2: 31, 3: 8}, last_is_void),
        ("wall sky flag", {0: 8, 1: 50, 2: 30, 3: 1}, zero_is_void),
    ):
        found = proposed(tuple(names.split()), found_ids)
        assert found is not None
        assert found.fatal
        assert found.settings == {"data.label_map": expected}, names
    assert found.others[0][1] == {"data.label_map": last_is_void}
    # the space lacks 3
    assert proposed(("road", "car", "sky"), ids, label_map={0: 0, 1: 1, 2: 2, 3: -1}) is not None
    assert proposed(("a", "b", "c"), {1: 9, 3: 4}).settings == {
        "data.label_map": {1: 0, 2: 1, 3: 2}
    }  # type: ignore[union-attr]


def test_instance_ids_become_one_class(tmp_path):
    """Each mask numbers its objects from 1: another largest id in each."""

    def instances(mask: np.ndarray, path: Path) -> None:
        ids = np.where(mask == 1, 1, 0)
        number = int(path.name[1:])
        for place in range(2 * number):
            ids[0, place] = place + 2
        Image.fromarray(ids.astype(np.uint8)).save(path.with_name(path.name + ".png"))

    make(tmp_path, instances, 2)
    found = fix(check(tmp_path, TWO))
    assert "count up without a gap, at most to 31: these look like instance ids" in found.message
    assert found.settings == {"data.mask_code": "objects"}
    reports = check(tmp_path, TWO, *words(found.settings))
    assert not failed(reports)
    assert all(len(report.values.ids) == 2 and report.pixels[1] for report in reports.values())
    three = fix(check(tmp_path, THREE))
    assert "not class ids" in three.message
    assert not three.settings


@pytest.mark.parametrize(
    ("tops", "is_one"),
    [
        ({5: 1, 9: 1, 12: 1}, True),
        ({5: 1, 9: 1, 300: 1}, True),
        ({12: 9}, False),  # all masks hold the same ids
        ({5: 1, 9: 1, 12: 1, -1: 3}, False),  # ids with gaps: of classes
        ({1: 5, 2: 5}, False),  # few
        ({}, False),
    ],
)
def test_instance_ids_are_told_from_ids_of_more_classes(tops, is_one):
    config = load_config(None, ["data.root=x", "data.layout=folders"]).data
    values = MaskValues(dict.fromkeys(range(20), 9), tops=tops)
    found = mask_finding(config, plain_space(("a", "b")), {"train": values})
    assert found is not None
    assert ("instance ids" in found.message) == is_one


def test_values_between_two_classes_are_no_objects():
    objects = {0: 10**6} | dict.fromkeys(range(1, 200), 2000)
    assert numbers_objects(objects)
    assert not numbers_objects(objects | {199: 10**5})  # the second class, and what is between
    assert not numbers_objects(objects | dict.fromkeys(range(1, 150), 500))
    assert not numbers_objects({0: 10**6} | dict.fromkeys(range(1, 20), 2000))


def test_the_ids_of_one_mask_count_up_or_have_gaps():
    assert [
        top_of(ids, 255)
        for ids in ({0}, {0, 1, 2}, {1, 2}, {0, 1, 255}, {0, 2}, {2, 3}, set(), {255})
    ] == [
        0,
        2,
        2,
        1,
        -1,
        -1,
        -1,
        -1,
    ]
    assert top_of(range(301), 255) == 300  # 255 is an object there


def test_guesses_that_are_not_sure_are_warnings():
    for names, ids, expected in (
        (("background", "a", "b"), {0: 80, 1: 17, 255: 3}, None),  # class b may just be rare
        (("road", "car", "sky"), {1: 60, 2: 40}, {1: 0, 2: 1, 3: 2}),
        (("a", "b"), {0: 60, 1: 38, 77: 1, 99: 1}, {0: 0, 1: 1, 77: -1, 99: -1}),
    ):
        found = proposed(names, ids)
        assert found is not None
        assert not found.fatal
        assert expected is None or found.settings == {"data.label_map": expected}
    for ids in ({0: 5, 1: 5}, {0: 5, 1: 5, 255: 4}, {0: 3}, {255: 3}, {}):
        assert proposed(("a", "b"), ids) is None, ids


def test_values_are_counted():
    rng = np.random.default_rng(0)
    for raw in (
        rng.integers(0, 4, (9, 7), np.uint8),
        np.repeat(rng.integers(-2, 3, (6, 5), np.int16), 4, 1),
    ):
        values, counts = values_of(raw)
        expected = np.unique(raw, return_counts=True)
        assert values.tolist() == expected[0].tolist()
        assert counts.tolist() == expected[1].tolist()
    values, counts = values_of(COLORS[np.array([[0, 1, 1], [2, 1, 0]])])
    assert dict(zip(values.tolist(), counts.tolist())) == {0: 2, 0x804080: 3, 142: 1}


def test_warnings_about_labels():
    assert label_warnings(("a", "b", "c"), [5, 5, 5], 15) == ()
    assert label_warnings(("a", "b", "c"), [5, 0, 5], 11) == (
        "no pixel of b (1 of 3 classes)",
        "52.4% of the pixels are void: the loss and the scores ignore them",
    )
    assert any("belong to one class" in text for text in label_warnings(("a", "b"), [0, 5], 0))
    assert label_warnings(("a",), [5], 0) == ()


BY_COLOR = "data.classes={background: [0, 0, 0], road: [128, 64, 128], car: [0, 0, 142]}"


def test_a_palette_whose_colors_contradict_its_indices(tmp_path):
    counts = make(tmp_path, palette([2, 0, 1], COLORS), 3)
    found = fix(check(tmp_path, BY_COLOR))
    assert "the colors of their palettes belong to other classes" in found.message
    assert found.settings == {"data.label_map": {0: 1, 1: 2, 2: 0}}
    reports = check(tmp_path, BY_COLOR, *words(found.settings))
    assert not any(report.failed or report.warnings for report in reports.values())
    assert pixels(reports) == counts
    # in their order, and of other colors: by index
    for index, colors in ((0, COLORS), (1, COLORS[::-1].copy() + 9)):
        make(tmp_path / str(index), palette([0, 1, 2], colors), 3)
        assert not failed(check(tmp_path / str(index), BY_COLOR))


@pytest.mark.parametrize("files", [["train/n03"], ["val/n12", "val/n13", "val/n14", "val/n15"]])
def test_palettes_that_contradict_each_other_where_classes_have_no_colors(files, tmp_path):
    """In one split, or one split against another."""
    counts = make(tmp_path, palette([0, 1, 2], COLORS), 3)
    for file in files:
        palette([0, 1, 2], COLORS[[0, 2, 1]])(
            truth(int(file[-2:]), 3, False), tmp_path / "masks" / file
        )
    found = fix(check(tmp_path, THREE))
    first, other = (f"{tmp_path}/masks/{file}.png" for file in ("train/n00", files[0]))
    assert f"index 1 is [128, 64, 128] in {first} and [0, 0, 142] in {other}" in found.message
    ((when, settings),) = found.others
    assert "if the indices are right" in when
    reports = check(tmp_path, THREE, *words(settings))
    assert not failed(reports)
    assert pixels(reports) == counts


def test_palettes_may_differ_in_colors_that_no_pixel_has(tmp_path):
    make(tmp_path, palette([0, 1, 2], COLORS), 3)
    picture = Image.open(tmp_path / "masks/train/n00.png")
    picture.putpalette([*COLORS.ravel().tolist(), *[200] * 50])
    picture.save(tmp_path / "masks/train/n00.png")
    assert not failed(check(tmp_path, THREE))


def test_colors_that_no_class_has_can_be_ignored(tmp_path):
    counts = make(tmp_path, rgb(np.vstack([COLORS[:2], [[1, 2, 3]]]).astype(np.uint8)), 3)
    two = "data.classes={background: [0, 0, 0], road: [128, 64, 128]}"
    reports = check(tmp_path, two)
    assert all(report.faults for report in reports.values())
    (found,) = reports["train"].findings
    assert found.settings["data.classes"]["void"] == [[1, 2, 3]]
    again = check(tmp_path, two, *words(found.settings))
    assert not failed(again)
    assert pixels(again) == {split: number[:2] for split, number in counts.items()}


def test_classes_as_a_mapping():
    base = ["data.root=x", "data.layout=folders"]
    space = label_space(
        load_config(
            None,
            [
                *base,
                "data.classes={a: [1, 2, 3], b: [], c: [[4, 5, 6], [7, 8, 9]], void: [0, 0, 0]}",
            ],
        ).data
    )
    assert space.names == ("a", "b", "c")
    assert space.colors == {0x010203: 0, 0x040506: 2, 0x070809: 2, 0: 255}
    assert space.palette[0] == (1, 2, 3)
    assert space.raw_to_train == {0: 0, 1: 1, 2: 2, 255: 255}
    assert label_space(load_config(None, [*base, "data.classes={a: [], b: []}"]).data).colors == {}
    for wrong in ("{a: [1, 2]}", "{a: [1, 2, 300]}", "{a: red}"):
        with pytest.raises(ConfigError, match=r"data\.classes"):
            load_config(None, [*base, f"data.classes={wrong}"])


def test_masks_whose_compression_or_alpha_hides_labels(tmp_path):
    from PIL import Image

    ids = np.kron(np.random.default_rng(0).integers(0, 3, (6, 8)), np.ones((8, 8))).astype(np.uint8)
    Image.fromarray(np.dstack([ids] * 3)).save(tmp_path / "lossy.webp", quality=80)
    with refused("mask-lossy", file=str(tmp_path / "lossy.webp"), found="webp"):
        decode_mask(str(tmp_path / "lossy.webp"))
    Image.fromarray(np.dstack([ids] * 3)).save(tmp_path / "exact.webp", lossless=True)
    assert np.array_equal(decode_mask(str(tmp_path / "exact.webp"))[..., 0], ids)
    Image.fromarray(ids).save(tmp_path / "lossy.jp2", irreversible=True)
    with refused("mask-lossy", found="jpeg2000"):
        decode_mask(str(tmp_path / "lossy.jp2"))
    Image.fromarray(ids).save(tmp_path / "exact.jp2")
    assert np.array_equal(decode_mask(str(tmp_path / "exact.jp2")), ids)
    Image.fromarray(np.dstack([ids * 0, ids])).save(tmp_path / "la.png")
    with refused("mask-in-alpha", file=str(tmp_path / "la.png")):
        decode_mask(str(tmp_path / "la.png"))
    Image.fromarray(np.dstack([ids, ids * 0 + 255])).save(tmp_path / "opaque.png")
    assert np.array_equal(decode_mask(str(tmp_path / "opaque.png")), ids)


def test_two_classes_that_some_masks_store_as_0_and_255():
    other = MaskValues({0: 90, 255: 10}, void_with={0: 1})
    splits = {"train": MaskValues({0: 90, 1: 10}), "val": other}
    finding = mask_finding(Data(), plain_space(("a", "b"), 255), splits)
    assert finding is not None
    assert finding.fatal
    assert finding.settings == {"data.label_map": {0: 0, 1: 1, 255: 1}}
    splits["train"].add(splits["val"])
    assert mask_finding(Data(), plain_space(("a", "b"), 255), splits) is not None
    splits["train"].add(MaskValues({0: 80, 1: 10, 255: 10}, void_with={1: 1}))
    assert mask_finding(Data(), plain_space(("a", "b"), 255), splits) is None

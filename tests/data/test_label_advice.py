"""Tests that each proposal of `data check` works when it is pasted: no faults, and no class without
a pixel.

A proposal that cannot be known (which color is which class) must stop when it is pasted as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import refused
from mask_sets import COLORS, FOUR, THREE, TWO, by_table, check, failed, make, one_bit, pixels, rgb
from PIL import Image
from predictable_runs import make_run
from refusals import TINY

import segtrain
from segtrain.cli import main
from segtrain.config import load_config
from segtrain.config.paste import words
from segtrain.data.audit.statistics import AuditReport
from segtrain.data.index.subset import without
from segtrain.data.labels.classes import label_space
from segtrain.data.own import own_dataset, own_labels
from segtrain.errors import EXIT_ERROR
from segtrain.training.start.faults import check_splits

Encode = Callable[[np.ndarray, Path], None]


def proposals(reports: dict[str, AuditReport]) -> list[list[str]]:
    """Everything that is printed to be pasted, as arguments."""
    found = [finding for report in reports.values() for finding in report.findings]
    return [
        words(settings)
        for f in found
        for settings in (f.settings, *(s for _, s in f.others))
        if settings
    ]


def with_strays(strays: dict[int, int], table: dict[int, int], kind: Any = np.uint8) -> Encode:
    """Like ``by_table``, and each mask has ``strays`` (value -> pixels) in its last row."""

    def encode(mask: np.ndarray, path: Path) -> None:
        stored = np.vectorize(lambda value: table.get(int(value), int(value)))(mask).astype(kind)
        values = np.repeat(list(strays), list(strays.values()))
        stored[-1, : len(values)] = values
        Image.fromarray(stored).save(path.with_name(path.name + ".png"))

    return encode


ONE = "data.classes=[crack]"
# Encoding, classes in the masks, settings, and the setting that must be among the proposals ("":
# any that works).
KINDS: dict[str, tuple[Encode, int, list[str], str]] = {
    "one class, 0/255": (by_table({1: 255}), 2, [ONE], "data.label_map={0: 0, 255: 1}"),
    "one class, 0/1": (by_table({}), 2, [ONE], "data.classes=[background, crack]"),
    "one class, the rest void": (
        by_table({1: 255}), 2, [ONE, "data.label_map={0: -1, 255: 0}"], "data.label_map={0: 0, 255: 1}"
    ),
    "void and one class": (by_table({1: 255}), 2, ["data.classes=[void, crack]"], "data.label_map={0: 0, 255: 1}"),
    "0/3/250/255": (with_strays({3: 9, 250: 9}, {1: 255}), 2, [TWO], "data.label_map={0: 0, 3: 0, 250: 1, 255: 1}"),
    "a stray among ids": (with_strays({77: 3}, {}), 3, [THREE], "data.label_map={0: 0, 1: 1, 2: 2, 77: -1}"),
    "1 bit, and a map for 255": (one_bit, 2, [TWO, "data.label_map={0: 0, 255: 1}"], "data.label_map={}"),
    "a map for other ids": (
        by_table({1: 7, 2: 9}), 3, [THREE, "data.label_map={0: 0, 70: 1, 90: 2}"], "data.label_map={0: 0, 7: 1, 9: 2}"
    ),
    "255 and strays, among them 1": (
        with_strays({1: 2, 77: 3, 128: 1}, {1: 255}), 2, [TWO],
        "data.label_map={0: 0, 255: 1, 1: -1, 77: -1, 128: -1}",
    ),
    "values blurred by a lossy copy": (
        with_strays({2: 9, 119: 10, 243: 9}, {1: 121, 2: 242}), 3, [THREE],
        "data.label_map={0: 0, 2: 0, 119: 1, 121: 1, 242: 2, 243: 2}",
    ),
    "void first, not in the masks": (
        by_table({}), 3, ["data.classes=[void, background, road, car]"], "data.label_map={0: 0, 1: 1, 2: 2}"
    ),
    "RGB without black": (rgb(COLORS), 3, ["data.classes={road: [128, 64, 128], car: [0, 0, 142]}"], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_what_is_proposed_works(name, tmp_path):
    encode, classes, settings, wanted = KINDS[name]
    make(tmp_path, encode, classes)
    found = proposals(check(tmp_path, *settings))
    assert found
    assert not wanted or any(wanted in words for words in found)
    for pasted in found:
        reports = check(tmp_path, *settings, *pasted)
        assert not failed(reports)
        assert all(report.pixels.all() for report in reports.values())


def settings_of(root: Path, *settings: str) -> list[dict[str, Any]]:
    return [
        dict(f.settings)
        for report in check(root, *settings).values()
        for f in report.findings
        if f.fatal
    ]


def test_names_of_colors_are_no_guess(tmp_path):
    """Pasted as it is, the proposal stops; with the names written, or from a file beside the data,
    it works.
    """
    counts = make(tmp_path, rgb(COLORS), 3)
    ((classes,),) = (found.values() for found in settings_of(tmp_path, THREE))
    assert classes == {"?1": [0, 0, 0], "?2": [128, 64, 128], "?3": [0, 0, 142]}
    another_blue = "data.classes={background: [0, 0, 0], road: [128, 64, 128], car: [0, 0, 144]}"
    assert settings_of(tmp_path, another_blue) == [{"data.classes": classes}]
    with refused("class-name-missing", found="?1"):
        check(tmp_path, THREE, *words({"data.classes": classes}))
    named = dict(zip(("background", "road", "car"), classes.values()))
    assert pixels(check(tmp_path, THREE, *words({"data.classes": named}))) == counts
    (tmp_path / "class_dict.csv").write_text("name,r,g,b\nroad,128,64,128\ncar,0,0,142\n")
    (found,) = settings_of(tmp_path, THREE)
    assert list(found["data.classes"]) == ["background", "road", "car"]
    assert pixels(check(tmp_path, THREE, *words(found))) == counts


@pytest.mark.parametrize("step", [1, 40])
def test_ids_of_segments_are_no_colors(step, tmp_path):
    """Colors that differ by a few units, or of which most are in one mask only."""

    def encode(mask: np.ndarray, path: Path) -> None:
        number = int(path.name[1:])
        colors = np.array(
            [[0, 0, 0], [60, number % 4 * step, number * 15], [200, number * 15, 9]], np.uint8
        )
        rgb(colors)(mask, path)

    make(tmp_path, encode, 3)
    assert settings_of(tmp_path, THREE) == [{}]


def test_an_export_with_classes_of_its_own_in_a_known_layout(tmp_path):
    """CVAT's form of CamVid: black is the background, though no line says so. CamVid's own classes
    do not fit.
    """
    make(tmp_path / "made", rgb(COLORS), 3)
    for split in ("train", "val"):
        (tmp_path / "made/images" / split).rename(tmp_path / split)
        (tmp_path / "made/masks" / split).rename(tmp_path / f"{split}annot")
    (tmp_path / "made/images").rmdir()
    (tmp_path / "made/masks").rmdir()
    (tmp_path / "made").rmdir()
    (tmp_path / "label_colors.txt").write_text("0 0 142 small car\n128 64 128 road\n")
    assert settings_of(tmp_path) == []
    reports = check(tmp_path)
    assert "small car" in reports["train"].table()
    assert not failed(reports)
    assert all(report.pixels.all() for report in reports.values())


EMPTY: dict[str, tuple[Encode, int, str]] = {
    "a value too few": (by_table({1: 90}), 2, THREE),
    "gray levels of which one does not occur": (by_table({1: 85, 2: 255}), 3, FOUR),
    "objects of each mask, numbered": (by_table({1: 2, 2: 1}), 4, TWO),
    "void alone, and one class": (by_table({0: 255, 1: 255}), 2, ONE),
}


@pytest.mark.parametrize("name", EMPTY)
def test_no_map_is_proposed_that_leaves_a_class_empty(name, tmp_path):
    encode, classes, words = EMPTY[name]
    make(tmp_path, encode, classes)
    reports = check(tmp_path, words)
    assert not proposals(reports)
    assert any(report.findings for report in reports.values())


class Items:
    """Three samples whose masks hold 0 and 255."""

    ids = ("a", "b", "c")

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, str]:
        mask = np.zeros((40, 40), np.uint8)
        mask[:9] = 255
        return np.zeros((40, 40, 3), np.uint8), mask, self.ids[index]


@pytest.mark.parametrize("check_data", ["full", "off"])
def test_one_class_is_refused_before_training(check_data, tmp_path):
    config = load_config(
        None, [*TINY, ONE, f"data.check={check_data}", "data.overlap=accept", f"out={tmp_path}/run"]
    )
    splits = [
        own_dataset(Items(), own_labels(Items(), config.data), split) for split in ("train", "val")
    ]
    with refused("data-check-failed") as caught:
        check_splits(config, *splits)
    mapped = {"data.label_map": {0: 0, 255: 1}} if check_data == "full" else {}
    assert caught.value.settings == {"data.classes": ["background", "crack"], **mapped}


def test_a_dataset_that_was_passed_in_is_checked_again_each_time():
    config = load_config(None, [*TINY, TWO])
    dataset = own_dataset(Items(), label_space(config.data), "train")
    assert not dataset.changes_show
    assert not without(dataset, [0]).changes_show


def test_a_split_without_labels_is_refused_though_it_is_not_checked(tmp_path):
    config = load_config(
        None, [*TINY, TWO, "data.check=off", "data.overlap=accept", f"out={tmp_path}/run"]
    )
    labels = label_space(config.data.model_copy(update={"label_map": {0: -1, 255: -1}}))
    with refused("split-void", split="val"):
        check_splits(
            config,
            own_dataset(Items(), label_space(config.data), "train"),
            own_dataset(Items(), labels, "val"),
        )


def test_an_evaluation_without_labels_is_no_evaluation(tmp_path):
    make_run(tmp_path / "run")
    make(tmp_path / "set", by_table({0: 255, 1: 255}), 2)
    words = [
        f"data.root={tmp_path}/set",
        "data.layout=folders",
        "data.classes=[road, sky, car, tree]",
    ]
    with refused("split-void", split="val"):
        segtrain.evaluate(tmp_path / "run", *words)
    assert main(["eval", str(tmp_path / "run"), *words, "train.device=cpu"]) == EXIT_ERROR


def test_masks_beside_images_that_cannot_be_read_are_counted(tmp_path):
    counts = make(tmp_path, by_table({}), 2)
    for path in (tmp_path / "images").rglob("*.png"):
        path.write_bytes(b"no image")
    reports = check(tmp_path, TWO)
    assert all(report.faults and not report.warnings for report in reports.values())
    assert pixels(reports) == counts

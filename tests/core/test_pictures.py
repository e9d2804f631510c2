"""Tests of the contact sheet: colors in their places, errors red, void hatched."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from PIL import Image

from segtrain.data.labels.space import LabelSpace
from segtrain.infer.outputs import legend
from segtrain.observe import pictures
from segtrain.observe.pictures import (
    PAPER,
    VOID,
    WRONG,
    PredictedImage,
    contact_sheet,
    error_panel,
    image_miou,
    save_png,
)

NAMES = ("road", "car", "sky")
PALETTE = ((128, 64, 128), (0, 0, 142), (70, 130, 180))


def sample(height: int = 60, width: int = 80) -> PredictedImage:
    """Left half road, right half car; the lower half of the car is taken for road; the top rows are
    void.
    """
    image = np.full((height, width, 3), 100, np.uint8)
    mask = np.zeros((height, width), np.uint8)
    mask[:, width // 2 :] = 1
    prediction = mask.copy()
    prediction[height // 2 :, width // 2 :] = 0
    mask[: height // 10] = 255
    return PredictedImage("street/0001.png", image, prediction, mask)


def brute_miou(truth: np.ndarray, prediction: np.ndarray) -> float:
    valid = truth != 255
    scores = []
    for index in range(3):
        a, b = (truth == index) & valid, (prediction == index) & valid
        if (a | b).any():
            scores.append((a & b).sum() / (a | b).sum())
    return float(np.mean(scores))


def test_miou_of_an_image():
    rng = np.random.default_rng(0)
    for _ in range(20):
        truth = rng.choice(np.array([0, 1, 2, 255], np.uint8), (8, 9))
        # 255: no class, always wrong
        prediction = rng.choice(np.array([0, 1, 2, 255], np.uint8), (8, 9))
        assert image_miou(truth, prediction, 3) == pytest.approx(
            brute_miou(truth, prediction), abs=1e-12
        )
    assert image_miou(np.zeros((4, 4), np.uint8), np.zeros((4, 4), np.uint8), 3) == 1.0
    assert math.isnan(image_miou(np.full((4, 4), 255, np.uint8), np.zeros((4, 4), np.uint8), 3))


def has(picture: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    return (picture == np.array(color, np.uint8)).all(-1)


def test_error_panel_is_red_exactly_where_the_prediction_is_wrong():
    item = sample()
    panel = error_panel(item, 80, 60)
    assert np.array_equal(has(panel, WRONG), (item.truth != item.prediction) & (item.truth != 255))
    void, valid_right = panel[:6], panel[6:30]
    assert len(np.unique(void.reshape(-1, 3), axis=0)) == 2  # stripes
    assert len(np.unique(valid_right.reshape(-1, 3), axis=0)) == 1  # the image, pale


def test_a_thin_error_is_still_seen_when_the_panel_shrinks():
    truth = np.zeros((400, 400), np.uint8)
    prediction = truth.copy()
    prediction[:, 201] = 1
    panel = error_panel(
        PredictedImage("a", np.full((400, 400, 3), 128, np.uint8), prediction, truth), 100, 100
    ).astype(int)
    redness = panel[..., 0] - panel[..., 1]
    assert (redness[:, 50] > 20).all()
    assert (np.delete(redness, 50, axis=1) == 0).all()


def test_sheet_holds_four_panels_a_row_in_the_colors_of_the_palette():
    item = sample()
    sheet = contact_sheet([item, item], NAMES, PALETTE, title="a run")
    assert sheet.dtype == np.uint8
    assert sheet.ndim == 3
    width, height, left, gap = 160, 120, 16, 6  # twice the image
    assert sheet.shape[1] == 2 * left + 4 * width + 3 * gap
    # The car color: half of the truth panel less its void rows, a quarter of the prediction; two
    # rows; plus a swatch.
    car = has(sheet, PALETTE[1])
    columns = [
        car[:, left + i * (width + gap) : left + i * (width + gap) + width] for i in range(4)
    ]
    body = [c[-(2 * (height + 28) + 16) :].sum() for c in columns]
    assert body == [0, 2 * (width // 2) * height * 9 // 10, 2 * (width // 2) * (height // 2), 0]
    assert (
        has(sheet, WRONG)[:, left + 3 * (width + gap) :].sum()
        >= 2 * (width // 2) * (height // 2) * 0.95
    )
    assert not has(sheet, PALETTE[2]).any()  # sky is nowhere: not in the legend either
    assert has(sheet, VOID).any()


def test_a_long_legend_stays_between_the_margins():
    mask = (np.arange(60 * 80) % 48).astype(np.uint8).reshape(60, 80)
    shown = PredictedImage("a", np.zeros((60, 80, 3), np.uint8), mask, mask)
    sheet = contact_sheet([shown], [f"class {7**k}" for k in range(48)], [(0, 0, 0)] * 48)
    assert has(sheet, PAPER)[:, -16:].all()


def test_names_beyond_ascii_can_be_told_apart(monkeypatch):
    monkeypatch.setattr(pictures, "_FONTS", ())
    pictures._font_of.cache_clear()
    mask = np.zeros((6, 40), np.uint8)
    labels = [LabelSpace((name,), PALETTE[:1]) for name in ("red", "réd", "青", "い")]
    red, accent, blue, other = (legend(mask, space, 200) for space in labels)
    assert np.array_equal(red, accent)
    assert not np.array_equal(blue, other)
    sheets = [
        contact_sheet([replace(sample(), name=name)], ["road", name, "sky"], PALETTE, title=name)
        for name in ("red", "réd")
    ]
    assert np.array_equal(*sheets)


def test_a_font_of_the_machine_is_taken_if_it_has_all_letters(monkeypatch):
    matplotlib = pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    font = str(Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf"))
    monkeypatch.setattr(pictures, "_FONTS", ("absent.ttf", font))
    pictures._font_of.cache_clear()
    with_letters = pictures.font_of(("дорога", "street/é.png"), 12)
    assert getattr(with_letters, "path", "") == font
    assert pictures.drawable("дорога", with_letters) == "дорога"
    for texts, drawn in ((("青", "дорога"), r"\u9752"), (("car",), "car")):
        own = pictures.font_of(texts, 12)
        assert getattr(own, "path", "") != font
        assert pictures.drawable(texts[0], own) == drawn
    pictures._font_of.cache_clear()


def test_png_is_written_whole_or_not_at_all(tmp_path):
    picture = contact_sheet([sample()], NAMES, PALETTE)
    path = save_png(tmp_path / "pictures" / "a.png", picture)
    assert np.array_equal(np.asarray(Image.open(path)), picture)
    assert [item.name for item in path.parent.iterdir()] == ["a.png"]
    with refused("picture-unwritable"):
        save_png(path / "a.png", picture)

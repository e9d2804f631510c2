"""Tests that the score of each image is right, in tables and pictures."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import refused
from PIL import Image
from torch import Tensor, nn

from segtrain.config import Eval
from segtrain.data.generated import GeneratedDataset
from segtrain.data.index.entries import Entry
from segtrain.data.labels.space import plain_space
from segtrain.evaluation.evaluation import evaluate
from segtrain.evaluation.image_scores import ImageScores, counts
from segtrain.insight.report.charts import image_scores
from segtrain.insight.report.gallery import gallery
from segtrain.insight.runs.folder import RunFolder, load
from segtrain.metrics import Scores, confusions
from segtrain.observe import image_table
from segtrain.observe.image_table import ImageRow
from segtrain.observe.pictures import image_miou

CLASSES, LEVEL = 4, 60  # a class c is painted as red = LEVEL * c
SIZES = ((24, 32), (20, 28))


class Painted(nn.Module):
    """Reads the class from the red channel: a model that is right wherever mask and paint agree."""

    def forward(self, images: Tensor) -> Tensor:
        red = (images[:, :1] * 0.229 + 0.485) * 255 / LEVEL
        return -(red - torch.arange(CLASSES).view(1, -1, 1, 1)).abs()


class Mixed(GeneratedDataset):
    def size(self, index: int) -> tuple[int, int]:
        return SIZES[index % 2]


def truth_of(index: int) -> np.ndarray:
    rng = np.random.default_rng(index)
    return np.kron(rng.integers(0, CLASSES, (6, 8)), np.ones((4, 4))).astype(np.uint8)[
        slice(SIZES[index % 2][0])
    ][:, : SIZES[index % 2][1]]


def draw(index: int) -> tuple[np.ndarray, np.ndarray]:
    """Paint and mask; the paint is wrong in ``index`` columns, in 7 and 12 nearly everywhere, and 5
    is all void.
    """
    mask = truth_of(index)
    seen = mask.copy()
    wrong = mask.shape[1] - 2 if index in (7, 12) else index % 11
    seen[:, :wrong] = (mask[:, :wrong] + 1 + index % 3) % CLASSES
    mask = mask.copy()
    mask[:2] = 255
    if index == 5:
        mask[:] = 255
    return np.repeat((seen * LEVEL)[..., None], 3, 2), mask


def planted(count: int = 23) -> Mixed:
    entries = tuple(Entry(f"/data/val/{index:02d}.png", None, {}) for index in range(count))
    return Mixed("planted", "val", plain_space(("road", "sky", "car", "pole")), entries, make=draw)


def plain_score(truth: np.ndarray, guess: np.ndarray) -> tuple[float, float, int, int]:
    """mIoU, accuracy, valid pixels and worst class by sets of pixels."""
    valid = truth != 255
    ious: dict[int, tuple[float, int]] = {}
    for c in range(CLASSES):
        both = int((valid & (truth == c) & (guess == c)).sum())
        either = int((valid & ((truth == c) | (guess == c))).sum())
        if either:
            ious[c] = (both / either, -either)
    right = int((valid & (truth == guess)).sum())
    worst = min(ious, key=lambda c: (*ious[c], c))
    return (
        sum(iou for iou, _ in ious.values()) / len(ious),
        right / int(valid.sum()),
        int(valid.sum()),
        worst,
    )


def test_each_image_has_the_score_of_its_own_pixels():
    dataset = planted()
    found = evaluate(Painted(), dataset, Eval(batch_size=4)).images
    for index in range(len(dataset)):
        image, mask = draw(index)
        guess = (image[..., 0] // LEVEL).astype(np.int64)
        if index == 5:
            assert math.isnan(found.miou[5])
            assert math.isnan(found.accuracy[5])
            assert (found.pixels[5], found.worst[5]) == (0, -1)
            continue
        miou, accuracy, pixels, worst = plain_score(mask, guess)
        assert found.miou[index] == pytest.approx(miou, abs=1e-15)
        assert (found.accuracy[index], found.pixels[index], found.worst[index]) == (
            accuracy,
            pixels,
            worst,
        )
        own = Scores.from_confusion(
            confusions(torch.from_numpy(guess)[None], torch.from_numpy(mask)[None], CLASSES)[0]
        )
        assert found.miou[index] == own.miou  # to the bit
        assert found.accuracy[index] == own.accuracy
        assert found.worst_iou[index] == own.iou[worst]
        # what the pictures say
        assert found.miou[index] == pytest.approx(image_miou(mask, guess, CLASSES))


@pytest.mark.parametrize("classes", [2, 19, 150, 256])
def test_one_count_of_a_batch_is_that_of_single_images(classes):
    rng = np.random.default_rng(classes)
    target = torch.from_numpy(rng.integers(0, min(classes, 255), (5, 9, 14)).astype(np.uint8))
    pred = torch.from_numpy(rng.integers(0, classes, (5, 9, 14)).astype(np.uint8))
    target[2] = 255
    target[0, :3] = 255
    found = confusions(pred, target, classes)
    assert found.shape == (5, classes, classes)
    for table, guess, truth in zip(found, pred, target):
        assert torch.equal(table, confusions(guess[None], truth[None], classes)[0])
    # The layout in memory is no matter.
    turned = [value.permute(0, 2, 1).contiguous().permute(0, 2, 1) for value in (pred, target)]
    assert torch.equal(confusions(*turned, classes), found)


def test_an_unknown_id_is_no_pixel_of_the_next_image():
    pred, target = torch.zeros(3, 4, 4, dtype=torch.uint8), torch.zeros(3, 4, 4, dtype=torch.uint8)
    target[0, 0, :2] = 200
    with refused("unknown-ids", pixels=2, found=[200]):
        confusions(pred, target, CLASSES)
    with refused("prediction-classes", found=(0, 9)):
        confusions(pred.index_fill(0, torch.tensor([1]), 9), torch.zeros_like(target), CLASSES)


def test_the_mean_of_an_image_is_that_of_a_split_to_the_bit():
    tables = torch.from_numpy(np.random.default_rng(3).integers(0, 2**40, (6, CLASSES, CLASSES)))
    tables[4] = 0
    found = ImageScores.from_counts(counts(tables).numpy())
    for table, miou in zip(tables, found.miou):
        expected = Scores.from_confusion(table).miou
        assert miou == expected or (math.isnan(miou) and math.isnan(expected))
    assert math.isnan(found.miou[4])


def test_the_planted_mistakes_are_the_worst():
    dataset = planted()
    result = evaluate(Painted(), dataset, Eval(batch_size=3), pictures=3, extremes=2)
    assert {sample.name for sample in result.worst} == {"/data/val/07.png", "/data/val/12.png"}
    mious = [
        image_miou(s.truth, s.prediction, CLASSES) for s in (*result.worst, *reversed(result.best))
    ]
    assert mious == sorted(mious)
    assert [sample.name for sample in result.best] == ["/data/val/22.png", "/data/val/11.png"]
    assert mious[-1] == 1.0
    assert len(result.pictures) == 3
    ranked = result.images.ranked()
    assert len(ranked) == 22
    assert 5 not in ranked
    rows = result.images.rows(dataset)
    assert [row.image for row in rows[:2]] == [sample.name for sample in result.worst]
    assert rows[-1] == ImageRow("/data/val/05.png", None, None, 0)


@pytest.mark.parametrize(
    ("count", "wanted", "worst", "best"), [(1, 4, 1, 0), (2, 4, 1, 1), (5, 4, 3, 2), (6, 4, 3, 2)]
)
def test_of_few_images_none_is_both_worst_and_best(count, wanted, worst, best):
    # image 5, the sixth, is all void
    result = evaluate(Painted(), planted(count), Eval(), extremes=wanted)
    names = [sample.name for sample in (*result.worst, *result.best)]
    assert (len(result.worst), len(result.best)) == (worst, best)
    assert len(set(names)) == len(names)
    assert "/data/val/05.png" not in names


def test_a_split_that_is_all_void_has_no_worst():
    base = planted(3)

    def void(index: int) -> tuple[np.ndarray, np.ndarray]:
        image, mask = draw(index)
        return image, np.full_like(mask, 255)

    result = evaluate(
        Painted(), Mixed("void", "val", base.labels, base.entries, make=void), Eval(), extremes=2
    )
    assert (result.worst, result.best) == ((), ())
    assert all(row.miou is None for row in result.images.rows(base))


def test_a_table_is_read_as_it_was_written(tmp_path):
    rows = [
        ImageRow('val/a, "b".png', 0.25, 0.5, 10, "car, red", 0.0),
        ImageRow(os.fsdecode(b"val/\xff.png"), 1.0, 1.0, 20, "sky", 1.0),
        ImageRow("val/c.png", None, None, 0),
    ]
    path = tmp_path / "images.csv"
    path.write_bytes(image_table.as_csv(rows))
    assert image_table.read(path) == rows
    assert path.read_text(errors="replace").splitlines()[-1] == "val/c.png,,,0,,,all void: no score"
    for content in (
        b"",
        b"image,miou\na,0.5\n",
        b"\x00\x01",
        path.read_bytes().replace(b"0.250000", b"much"),
    ):
        path.write_bytes(content)
        with refused("not-an-image-table"):
            image_table.read(path)
    with refused("image-table-unreadable"):
        image_table.read(tmp_path / "none.csv")


def test_names_lose_the_folders_that_all_share():
    assert image_table.short_names(["/d/val/a/1.png", "/d/val/b/1.png"]) == ["a/1.png", "b/1.png"]
    assert image_table.short_names(["/d/1.png"]) == ["1.png"]
    assert image_table.short_names(["d/x/1.png", "d/x/1.png"]) == ["1.png", "1.png"]
    assert image_table.short_names(["1.png", "d/2.png"]) == ["1.png", "d/2.png"]
    assert image_table.short_names([]) == []


SMALL = (
    "data.scenes=24",
    "data.scene_size=[48, 64]",
    "data.crop=[32, 48]",
    "data.workers=0",
    "train.duration=4st",
    "train.batch_size=4",
    "eval.every=2st",
    "checkpoint.every=2st",
    "log.tensorboard=false",
    "log.profile_ms=0",
    "out=run",
)


def test_a_run_keeps_its_worst_images_and_eval_finds_them_again(zygote, tmp_path):
    process = zygote.start("train", "parallel.procs=1", "log.pictures=3", *SMALL, cwd=tmp_path)
    assert process.wait() == 0, process.output
    run = tmp_path / "run"
    rows = image_table.read(run / image_table.LAST)
    assert len(rows) == len({row.image for row in rows}) == 6
    assert [row.miou for row in rows] == sorted(row.miou or 0.0 for row in rows)
    assert len(image_table.read(run / image_table.BEST)) == 6
    assert {path.name for path in (run / "pictures").iterdir()} == {
        "val.png",
        "worst.png",
        "best.png",
    }
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}

    process = zygote.start(
        "eval", "run", "--which", "last", "--json", "--images", "found", cwd=tmp_path
    )
    assert process.wait() == 0, process.output
    worst = json.loads(process.output.splitlines()[-1])["worst_images"]
    assert [one["image"] for one in worst] == [row.image for row in rows[:5]]
    assert [round(one["miou"], 6) for one in worst] == [row.miou for row in rows[:5]]
    assert (tmp_path / "found/images.csv").read_bytes() == (run / image_table.LAST).read_bytes()
    assert {path.name for path in (tmp_path / "found").iterdir()} == {
        "images.csv",
        "worst.png",
        "best.png",
    }
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before

    process = zygote.start("eval", "run", "--images", "run/config.yaml", cwd=tmp_path)
    assert process.wait() == 2
    assert "cannot make the folder run/config.yaml" in process.output
    process = zygote.start("eval", "run", "log.pictures=0", "--images", "found", cwd=tmp_path)
    assert process.wait() == 0, process.output
    # no pictures of another evaluation
    assert [path.name for path in (tmp_path / "found").iterdir()] == ["images.csv"]
    assert "the worst images" in process.output


def written(
    folder: Path, rows: list[ImageRow] | None, names: tuple[str, ...] = (), noise: bool = False
) -> RunFolder:
    """A run folder with a table of images and pictures."""
    (folder / "pictures").mkdir(parents=True)
    event = {"event": "eval", "ts": 1.0, "step": 7, "scores": {"miou": 0.5}}
    (folder / "journal.jsonl").write_text(json.dumps(event) + "\n")
    if rows is not None:
        (folder / image_table.LAST).write_bytes(image_table.as_csv(rows))
    for name in names:
        size = (1400, 1800, 3) if noise else (40, 60, 3)
        pixels = np.random.default_rng(len(name)).integers(
            0, 255 if noise else 9, size, dtype=np.uint8
        )
        Image.fromarray(pixels).save(folder / "pictures" / f"{name}.png")
    return load(folder)


def shown(run: RunFolder) -> tuple[str, dict[str, Any]]:
    drawn: dict[str, Any] = {}
    return gallery(drawn, run), drawn


def test_the_page_names_the_worst_and_the_best(tmp_path):
    rows = [
        ImageRow(f"/d/val/{k}<.png", k / 20, 0.9, 50, "car & van", 0.125) for k in range(11)
    ] + [ImageRow("/d/v.png", None, None, 0)]
    html, drawn = shown(written(tmp_path / "run", rows, ("val", "best", "other", "worst")))
    worst, best = (html.index(f"The {what} images") for what in ("worst", "best"))
    names = re.findall(r"<td>(\d+)&lt;\.png</td>", html)
    assert names == ["0", "1", "2", "3", "10", "9", "8", "7"]
    assert (
        worst
        < best
        < html.index("Worst predictions")
        < html.index("Best predictions")
        < html.index(">Predictions<")
    )
    assert html.index(">Predictions<") < html.index("<b>other</b>")
    assert "car &amp; van 12.5 %" in html
    assert (
        "11 images, the last evaluation (step 7), all in images-last.csv; 1 more are all void"
        in html
    )
    chart = drawn["imagescores"]
    assert sum(chart["series"][0]["y"]) == 11
    assert html.count("data:image/jpeg") == 4


@pytest.mark.parametrize(
    "values",
    [[0.0], [1.0], [0.0, 1.0], [0.7, 0.7], [0.701, 0.72, 0.99, 1.0], [k / 99 for k in range(100)]],
)
def test_every_image_is_in_one_bin(values):
    drawn: dict[str, Any] = {}
    image_scores(drawn, values, "")
    chart = drawn["imagescores"]
    for place, count in zip(chart["x"], chart["series"][0]["y"]):
        low, high = place - chart["width"] / 2, place + chart["width"] / 2
        assert count == sum(
            low <= 100 * value < high or 100 * value == high == 100 for value in values
        )
    assert sum(chart["series"][0]["y"]) == len(values)
    assert len(chart["x"]) <= 31


def test_a_run_without_a_table_or_with_a_torn_one_shows_its_pictures(tmp_path):
    html, drawn = shown(written(tmp_path / "none", None, ("val",)))
    assert not drawn
    assert html.startswith('<figure class="picture">')
    run = written(tmp_path / "torn", [ImageRow("a.png", 0.5, 0.5, 1, "car", 0.5)])
    (tmp_path / "torn" / image_table.LAST).write_text("image,miou\n")
    assert shown(run) == ("", {})
    only_void = written(tmp_path / "void", [ImageRow("a.png", None, None, 0)])
    assert shown(only_void) == ("", {})
    html, _ = shown(written(tmp_path / "one", [ImageRow("a.png", 0.5, 0.5, 1, "car", 0.5)]))
    assert "The worst images" in html
    assert "The best images" not in html


def test_a_page_stays_light_and_no_sheet_takes_the_place_of_another(tmp_path):
    html, _ = shown(written(tmp_path / "run", None, ("val", "best", "worst"), noise=True))
    sizes = [len(text) * 3 / 4 for text in re.findall(r"base64,([^\"]+)", html)]
    assert sum(sizes) < 510_000
    assert len(sizes) + html.count("is left out, it would make the page heavy") == 3
    light = written(tmp_path / "light", None, ("best", "worst"))
    heavy = np.random.default_rng(0).integers(0, 255, (430, 900, 3), dtype=np.uint8)
    Image.fromarray(heavy).save(tmp_path / "light/pictures/val.png")
    html, _ = shown(light)
    assert html.count("data:image/jpeg") == 3  # more than a third, yet there is room

"""Tests that the comparison of input pipelines counts all CPU time, and computes its ratios
right.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "data_rivals")]
rivals_data = pytest.importorskip(
    "rivals_data", reason="bench/ is not part of an installed package"
)
from data_rivals import common, measure, pictures  # noqa: E402

linux = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc, which this system lacks"
)

# Burns CPU in a child that stays alive, then says so and waits.
BUSY = """
import subprocess, sys, time
code = "import time\\nwhile time.process_time() < 0.6: pass\\nblock = bytearray(60 << 20)\\nprint('done', flush=True)\\ntime.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def tree():
    """(parent, child) pids: the child has used 0.6 CPU seconds, holds 60 MB and lives."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process.pid, child
    for pid in (process.pid, child):
        os.kill(pid, 9)
    process.wait()
    process.stdout.close()


@linux
def test_a_live_child_counts(tree):
    root, child = tree
    assert measure.tree_cpu(root) >= 0.6
    assert measure.tree_cpu(root) >= measure.tree_cpu(child) >= 0.6
    assert measure.pss(root) >= measure.pss(child) >= 60
    assert measure.quiet(root)


@linux
def test_a_side_reports_one_line(tmp_path):
    """The CPU time of a pipeline whose cost is known: 20 ms a batch of 2."""
    code = f"""
import sys, time
sys.path[:0] = [{str(BENCH / "data_rivals")!r}]
import numpy as np
from common import arguments
from measure import measure
def batches():
    while True:
        end = time.thread_time() + 0.02
        while time.thread_time() < end: pass
        yield np.full((2, 4, 4, 3), 255, np.uint8), np.full((2, 4, 4), 255, np.uint8)
measure(arguments(), batches(), lambda batch: batch, extra=1)
"""
    line = [
        sys.executable,
        "-c",
        code,
        "--data",
        str(tmp_path),
        "--crop",
        "4",
        "4",
        "--batch",
        "2",
        "--samples",
        "40",
    ]
    output = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    found = json.loads(output)
    # the queues are empty, so that waiting for quiet costs a little
    assert 10 <= found["cpu_ms"] < 20
    assert 0 < found["rate"] <= 101
    assert found["gives"] == "uint8 2x4x4x3, uint8 2x4x4"
    assert found["void"] == 1
    assert found["mean"] == pytest.approx(
        np.mean((1 - np.array(common.MEAN)) / common.STD), abs=1e-3
    )
    assert found["extra"] == 1


def test_batches_that_were_ready_are_not_in_the_rate():
    times = [0.001, 0.002, 0.003, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert measure.first_awaited(times) == 3
    assert measure.first_awaited([1.0, 2.0, 3.0, 4.0]) == 1


def result(side: str, number: int, cost: float, workers: int = 1) -> dict:
    return {
        "kind": "k",
        "side": side,
        "round": number,
        "asked": workers,
        "cpu_ms": cost,
        "rate": 1.0,
        "pss_mb": 5.0,
        "others": 0.0,
        "quiet": True,
        "gives": "uint8 8",
    }


def test_ratios_are_formed_within_rounds_and_against_the_same_crops():
    results = [
        *(result("decode", n, cost) for n, cost in ((1, 10.0), (2, 20.0))),
        *(result("segtrain", n, cost) for n, cost in ((1, 5.0), (2, 5.0))),
        *(result("spdl", n, cost) for n, cost in ((1, 50.0), (2, 30.0))),
        *(result("litdata", n, cost) for n, cost in ((1, 40.0), (2, 60.0))),
        *(result("crop-first", n, 1.0) for n in (1, 2)),  # other crops: never the best rival
        result("segtrain", 1, 1.0, workers=2),
        {"kind": "k", "side": "webdataset", "round": 1, "asked": 1, "error": "no"},
    ]
    found = rivals_data.ratios(results, "k", 1)
    assert found["segtrain"] == {"decode": [2.0, 4.0], "best": [8.0, 6.0]}
    assert found["spdl"]["best"] == [0.8, 1.0]
    assert "webdataset" not in found
    lines = rivals_data.table(results, "k", ["decode", "segtrain", "webdataset"], [1, 2])
    row = next(line for line in lines if line.startswith("| segtrain |"))
    assert [cell.strip() for cell in row.split("|")[2:8]] == ["5.0", "1.0", "3.00", "", "7.00", ""]
    assert "- webdataset, 1 workers: no" in lines
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_scale_has_the_areas_that_the_text_says():
    u = (np.arange(100_000) + 0.5) / 100_000
    for uniform, source, scaled in ((False, 1.35, 1.35), (True, 1.0, 1.75)):
        scale = common.draw_scale(u, uniform)
        assert scale.min() == pytest.approx(0.5, abs=1e-3)
        assert scale.max() == pytest.approx(2.0, abs=1e-3)
        assert np.mean(scale**-2.0) == pytest.approx(source, abs=0.01)
        assert np.mean(scale**2.0) == pytest.approx(scaled, abs=0.01)


@pytest.fixture
def frames(tmp_path):
    draw = np.random.default_rng(0)
    for folder in ("train", "trainannot"):
        (tmp_path / "frames" / folder).mkdir(parents=True)
    for index in range(3):
        coarse = draw.integers(0, 255, (9, 12, 3), np.uint8)
        cv2.imwrite(str(tmp_path / f"frames/train/{index}.jpg"), cv2.resize(coarse, (48, 36)))
        cv2.imwrite(
            str(tmp_path / f"frames/trainannot/{index}.png"),
            draw.integers(0, 12, (36, 48), np.uint8),
        )
    return tmp_path / "frames"


@pytest.mark.parametrize(
    ("kind", "real"),
    [("cityscapes-png", True), ("camvid", True), ("720p-jpeg", False)],
    ids=["png", "camvid", "scenes"],
)
def test_pictures_are_as_their_kind_says(tmp_path, frames, monkeypatch, kind, real):
    folder = tmp_path / kind
    monkeypatch.setitem(pictures.KINDS, kind, replace(pictures.KINDS[kind], size=(96, 160)))
    given = real and pictures.KINDS[kind].given
    pictures.make(kind, folder, str(frames) if real else "", count=2)
    images, masks = (sorted((folder / part / "train").iterdir()) for part in ("images", "masks"))
    assert [p.stem for p in images] == [p.stem for p in masks]
    assert len(images) == (3 if given else 2)
    size = (36, 48) if given else pictures.KINDS[kind].size
    image, mask = cv2.imread(str(images[0])), cv2.imread(str(masks[0]), cv2.IMREAD_UNCHANGED)
    assert (image.shape, mask.shape) == ((*size, 3), size)
    assert mask.max() == 255 or mask.max() < 19


def test_an_enlarged_mask_lies_on_its_image():
    image, mask = np.zeros((36, 48, 3), np.uint8), np.zeros((36, 48), np.uint8)
    image[:, 20:], mask[:, 20:] = 200, 3  # road
    large, ids = pictures.enlarge(image, mask, (144, 288), np.random.default_rng(0))
    assert set(np.unique(ids)) == {10, 0}
    bright = cv2.GaussianBlur(large, (0, 0), 3).mean(axis=2) > 100
    assert (bright == (ids == 0)).mean() > 0.98

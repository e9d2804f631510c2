"""Runs with more than 254 classes, from training to predictions: the scores are those of a count by
hand.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_runs import assert_same_weights, command, digests, final

from segtrain.cli import main
from segtrain.data.pixels.decode import decode_mask
from segtrain.metrics import Scores
from segtrain.observe.console import class_table
from segtrain.observe.journal import read_journal


def make(root: Path, classes: int) -> list[str]:
    """A set whose masks have every class and void; returns its settings."""
    rng, void = np.random.default_rng(0), 255 if classes < 256 else 65535
    for split, count in (("train", 6), ("val", 3)):
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True)
        for number in range(count):
            mask = np.resize(rng.permutation(classes), (40, 48)).astype(np.uint16)
            mask[:2] = void
            image = np.stack([mask % 256, mask // 2 % 256, mask * 7 % 256], 2).astype(np.uint8)
            Image.fromarray(image).save(root / f"images/{split}/{number}.png")
            Image.fromarray(mask).save(root / f"masks/{split}/{number}.png")
    (root / "classes.txt").write_text("\n".join(f"class {k}" for k in range(classes)))
    names = f"data.classes={root}/classes.txt"
    return [f"data.root={root}", "data.layout=folders", names, "data.workers=0"]


@pytest.mark.parametrize("classes", [254, 255, 256, 300])
def test_scores_are_those_of_the_predicted_files(tmp_path, classes):
    settings = make(tmp_path / "set", classes)
    run, table, masks = tmp_path / "run", tmp_path / "table.json", tmp_path / "masks"
    assert main(command(run, *settings, "train.duration=3st", "eval.every=3st")) == 0
    assert main(["eval", str(run), "--confusion", str(table)]) == 0
    assert main(["predict", str(run), f"{tmp_path}/set/images/val", "--out", str(masks)]) == 0
    expected = np.zeros((classes, classes), np.int64)
    for file in sorted((masks / "masks").iterdir()):
        guess = decode_mask(str(file))
        assert guess.dtype == (np.uint8 if classes == 254 else np.uint16)
        truth = np.array(Image.open(tmp_path / "set/masks/val" / file.name)).astype(int)
        valid = truth < classes
        np.add.at(expected, (truth[valid], guess[valid]), 1)
    assert expected.sum() == 3 * 38 * 48
    content = json.loads(table.read_text())
    assert content["pixels"] == expected.tolist()
    scores = Scores.from_confusion(expected)
    lines = class_table([f"class {k}" for k in range(classes)], scores.to_dict()).splitlines()
    assert len(lines) == 203


def test_a_run_resumes_with_the_same_weights(tmp_path):
    run = tmp_path / "run"
    train = command(run, *make(tmp_path / "set", 300), "train.duration=6st", "eval.every=6st")
    assert main(train) == 0
    whole, samples = final(run), digests(run)
    for file in (run / "checkpoints").glob("*6.pt"):
        file.unlink()
    (run / "best.json").unlink()
    assert main(train) == 0
    assert_same_weights(final(run), whole)
    assert digests(run) == samples
    steps = [event for event in read_journal(run) if event["event"] == "step"]
    assert len(steps) == 9  # six, and the last three again

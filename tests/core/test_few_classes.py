"""Tests of the warnings about scores over some of the classes or over few pixels."""

from __future__ import annotations

import re

import cv2
import numpy as np
from refusals import TINY

from segtrain.insight.runs.table import read_run, table

# A mean IoU that is not followed by how many classes it is over.
PLAIN = re.compile(r"mIoU:? \d+\.\d+ ?%(?! \(1 of 2 classes\))")


def test_a_run_whose_validation_lacks_a_class(zygote, tmp_path):
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for part in ("images", "masks"):
            (tmp_path / "set" / part / split).mkdir(parents=True)
        for number in range(count):
            mask = np.zeros((40, 48), np.uint8)
            mask[10:30, 10:20] = split == "train"
            cv2.imwrite(
                str(tmp_path / f"set/images/{split}/n{number}.png"),
                rng.integers(0, 255, (40, 48, 3), np.uint8),
            )
            cv2.imwrite(str(tmp_path / f"set/masks/{split}/n{number}.png"), mask)
    data = ["data.layout=folders", f"data.root={tmp_path}/set", "data.classes=[background, cell]"]
    trained = zygote.start("train", *TINY, *data, cwd=tmp_path)
    assert trained.wait() == 0, trained.output
    warning = "warning: set val: no pixel of cell (1 of 2 classes)"
    before, _, after = trained.output.partition("best mIoU")
    assert warning in before
    assert warning in after
    assert "(1 of 2 classes)" in after.splitlines()[0]
    scored = zygote.start("eval", "run", cwd=tmp_path)
    assert scored.wait() == 0
    assert "warning: val: no pixel of cell (1 of 2 classes)" in scored.output
    row = read_run(tmp_path / "run")
    assert (row["classes_present"], row["classes"]) == (1, 2)
    listed = table([row])
    assert listed.splitlines()[1].count("% (1 of 2 classes)") == 2
    assert "set val: no pixel of cell" in listed
    for text in (trained.output, scored.output):
        assert not PLAIN.search(text), PLAIN.search(text)

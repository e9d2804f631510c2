"""Recorded decisions: limits, hangs, workers, owners of a folder, changed data, proofs, words."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pytest
from PIL import Image

from segtrain.base import units
from segtrain.config import load_config
from segtrain.data.labels.space import plain_space
from segtrain.errors import SegtrainError
from segtrain.infer import outputs
from segtrain.observe import console, hang, pictures
from segtrain.observe.counters import Counters, rates
from segtrain.observe.hang import RankNotice
from segtrain.observe.spans import WorkerTotals
from segtrain.observe.spent import Spent, spent
from segtrain.parallel.cluster import Cluster
from segtrain.platforms.outcome import shortened as shortened_text
from segtrain.prove import gradient, plant, resume, short
from segtrain.prove.table import ONE_RANK, listed, live, row, table
from segtrain.runfolder.holder import Holder
from segtrain.runfolder.ownership import Claim, Ownership
from segtrain.training.limits import LimitGuard, limit_of
from segtrain.training.start.derived import make_plan
from segtrain.training.start.same_data import SplitRecord, differences


def limits(words: list[str], seconds: float, save_s: float) -> dict[str, Any]:
    """A run whose steps take 2 s in the first half and 5 s later, with evaluations of 11 s."""
    config = load_config(
        None,
        [
            "data.scenes=90",
            "data.crop=[64,64]",
            "train.duration=60st",
            "train.progressive=[[0.5,0.5]]",
            "eval.every=14st",
            "checkpoint.every=9st",
            "train.price=36",
            *words,
        ],
    )
    limit = limit_of(config, Cluster(hosts=3), Spent(seconds, 3.5))
    assert limit is not None
    clock, said, noted = [100.0], list[str](), list[Any]()
    plan = make_plan(config, 83, Cluster(), True)
    guard = LimitGuard(
        limit,
        plan,
        7,
        13.0,
        lambda: 0.75,
        said.append,
        lambda **f: noted.append(f),
        lambda: clock[0],
    )
    ends, step = [], 0
    while step < plan.steps and not guard.over(step, 1):
        clock[0] += 2.0 if step < 30 else 5.0
        step += 1
        if step % 4 == 0:
            guard.logged(step)
            ends.append(guard.ends_at(step))
        if step % 14 == 0:
            clock[0] += 11.0
            guard.evaluated(11.0)
        if step % 9 == 0:
            clock[0] += save_s
            guard.saved(save_s)
    return {
        "line": limit.line(),
        "end": [step, guard.reached, guard.reserve_s, *guard.took()],
        "predicted": ends,
        "said": said,
        "noted": [list(fields.values())[:-1] for fields in noted],
    }


def test_limits():
    events = [
        {"event": "run_start", "ts": 110.0, "begun": 100.0, "hosts": 2, "price": 36.0},
        {"event": "step", "ts": 203.0},
        {"event": "run_start", "ts": 1000.0, "begun": 1007.0, "hosts": 1, "price": None},
        {"event": "run_end", "ts": 1101.0},
    ]
    found: dict[str, Any] = {
        "deadline": limits(["train.deadline=3m"], 17.0, 3.0),
        "budget": limits(["train.budget=20$", "train.deadline=1h"], 0.0, 1.0),
        "enough": limits(["train.deadline=2h"], 61.0, 1.0),
        "spent": [spent(events), spent(events, 7.2), spent(events[:2])],
    }
    golden.check("core/limits.txt", golden.data(found))


def test_hangs(monkeypatch):
    notices = [
        RankNotice(17, "forward", 41, False, 0, "node0", 33.4, "step (step.py:71)"),
        RankNotice(17, "sync", 43, True, 1, "node0", 31.2, "reduce (strategy.py:9)"),
        RankNotice(16, "wait", 39, False, 2, "node1", 35.9, "next (loader.py:5)"),
        RankNotice(16, "wait", 39, False, 5, "node1", 35.1, "next (loader.py:5)"),
    ]
    same = [replace(notice, passed=40) for notice in notices]
    entry = {"collective_seq_id": 12, "profiling_name": "gloo:all_reduce", "input_sizes": [[3]]}
    monkeypatch.setattr(time, "time", lambda: 1_795_000_012.5)
    monkeypatch.setattr(time, "gmtime", lambda: (2026, 11, 18, 4, 26, 52, 2, 322, 0))
    monkeypatch.setattr("os.getpid", lambda: 4711)
    spans = [("wait", 10.0, 11.25), ("forward", 11.25, 15.0)]
    run = Path("run/hang")
    texts = [
        hang.sentence(notices, 6, 600.0, run),
        hang.sentence(notices, 6, 600.0, run, has_board=False),
        hang.sentence([*notices, replace(same[0], rank=3), replace(same[0], rank=4)], 6, 90.5, run),
        hang.sentence(same, 4, 600.0, run, has_board=False),
        hang.sentence([replace(notice, rank=k) for k, notice in enumerate(same)], 4, 30, run),
        hang.sentence(notices[:1], 1, 600.0, run),
        hang._head(notices[1], spans),
        hang._head(notices[0], spans[:1]),
        hang._last_collectives(
            [
                {**entry, "time_created_ns": 1_795_000_010_250_000_000, "state": "started"},
                {**entry, "retired": True, "time_created_ns": 1_795_000_009_000_000_000},
            ]
        ),
    ]
    golden.check("core/hangs.txt", "\n\n".join(texts))


class Place(Ownership):
    """A claim that is read from a list, the last one again and again."""

    def __init__(self, claims: list[Claim | None]) -> None:
        super().__init__("gs://b/run", 1000.0, 0.2)
        self._claims = claims

    def _find(self) -> Claim | None:
        return self._claims.pop(0) if len(self._claims) > 1 else self._claims[0]

    def _take(self, me: Holder, claim: Claim | None) -> bool:
        return True

    def _renew(self, me: Holder, outage_s: float) -> Holder | None:
        return self.winner

    def _remove(self, me: Holder) -> None:
        self.removed = True

    winner: Holder | None = None
    removed = False


def test_owners():
    holder = Holder("a" * 32, "node3", 812, "2026-11-18 04:26:52 UTC")
    other = replace(holder, token="b" * 32)
    claims: dict[str, list[Claim | None]] = {
        "free": [None],
        "alive": [Claim(holder, b"1", True)],
        "ended": [Claim(holder, b"1", False)],
        "copied": [Claim(holder, b"1", True, copied=True)],
        "silent": [Claim(holder, b"1", None)],
        "beats": [Claim(holder, b"1", None), Claim(holder, b"1", None), Claim(holder, b"2", None)],
        "released meanwhile": [Claim(holder, b"1", None), None],
        "taken meanwhile": [
            Claim(holder, b"1", None),
            Claim(other, b"3", None),
            Claim(other, b"3", True),
        ],
        "unknown": [Claim(Holder(), b"", None)],
    }
    found: dict[str, Any] = {}
    for name, states in claims.items():
        place, said = Place(states), list[str]()
        try:
            remarks = place.acquire(said.append)
            place.winner = other if name == "ended" else None
            place.renew(1.0)
            place.release()
            found[name] = [said, remarks, place.lost, place.removed, place.acquire()]
            place.check()
        except SegtrainError as error:
            found[name] = [said, *found.get(name, []), error.code, str(error), error.values]
        place.release()
    golden.check("core/owners.txt", golden.data(found))


def test_changed_data():
    digests = dict(zip(SplitRecord.__dataclass_fields__, ["train", 30, *"abcdefghijk"]))
    then: Any = SplitRecord(**{**digests, "packed": "", "files": ""})  # type: ignore[arg-type]
    changes: dict[str, dict[str, Any]] = {
        "nothing": {},
        "split": {"split": "val"},
        "classes": {"classes": "x"},
        "names": {"names": "x", "classes": "y"},
        "count": {"images": 29},
        "sizes": {"image_sizes": "x"},
        "some sizes": {"image_sizes": "", "image_some": "x"},
        "other sizes in shards": {"image_sizes": "x", "packed": "i"},
        "ends": {"image_ends": "x"},
        "labels": {"masks": "x", "mask_sizes": "y"},
        "mapping": {"masks": "", "mapping": "x"},
        "size of masks": {"masks": "", "mask_sizes": "x"},
        "some masks": {"masks": "", "mask_sizes": "", "mask_some": "x"},
    }
    found = {name: differences(then, replace(then, **values)) for name, values in changes.items()}
    found["read"] = [
        SplitRecord.read({"train": value}, "train") for value in (None, {}, vars(then))
    ]
    golden.check("core/changed-data.txt", golden.data(found))


def test_workers():
    found: dict[str, Any] = {}
    before = WorkerTotals(
        2, "process", 100, *(0.5 * k for k in range(1, 6)), 900, 30, 7.5, 2.25, 0.125, 10, 4
    )
    after = WorkerTotals(
        3,
        "process",
        160,
        *(0.75 * k for k in range(1, 6)),
        1700,
        50,
        9.5,
        3.25,
        0.25,
        18,
        9,
        1.5,
        {"node2": 8},
        0.5,
    )
    found["window"] = after.since(before)
    found["threads"] = replace(before, kind="thread").since(WorkerTotals())
    first = Counters(
        10.0,
        {"cpu0": (1.0, 2.0, 10.0), "cpu1": (3.0, 1.0, 9.0)},
        31.0,
        7.0,
        (10, 20),
        (30, 40, 50),
        (60, 70),
    )
    later = Counters(
        14.0,
        {"cpu0": (3.0, 3.5, 18.0), "cpu1": (3.0, 1.0, 9.0), "cpu2": (1.0, 1.0, 4.0)},
        33.0,
        9.0,
        (18, 40),
        (42, 56, 70),
        (50, 98),
    )
    found["rates"] = [[*value] for value in rates(first, later)]
    golden.check("core/workers.txt", golden.data(found))


def test_proofs():
    measured = [gradient.Measured(difference, 8, 3, 0) for difference in (1e-9, 2.3e-6, 4e-8)]
    seen = short.Survey(
        "camvid", {"train": 30, "val": 7}, (), ("a class is rare",), (3, 4), (90, 120)
    )
    rows = [
        gradient._row("gradient on 2 ranks", measured[::2], "batch norm is frozen"),
        gradient._row("gradient on 4 ranks", measured),
        gradient._row("gradient of NaN", [gradient.Measured(float("nan"), 8, 3, 0), measured[0]]),
        plant.prove_audit(seen),
        plant.prove_audit(replace(seen, faults=("b.png is torn", "c.png too"))),
        plant._judge("unknown id", ("b.png", "7 pixels"), "b.png: 7 pixels have id 9", False),
        plant._judge("unknown id", ("b.png", "7 pixels"), "b.png: 77 pixels have id 9", False),
        plant._judge("unknown id", ("b.png",), "", True),
        row("4 workers", "samples", ONE_RANK),
    ]
    digests = {1: {11}, 2: {12}, 3: {13}}
    for found, tensors in ((digests, (0, 40)), ({1: {11}, 2: {12, 22}}, (2, 40))):
        with pytest.MonkeyPatch.context() as patch:
            steps = {"whole": digests, "resumed": found}
            patch.setattr(resume, "_digests", steps.__getitem__)
            patch.setattr(resume, "on_ranks", lambda *_, tensors=tensors: [tensors])
            for weights in (True, False):
                configs: Any = Name("whole"), Name("resumed")
                rows.append(resume._judge(Path("f"), "resumed", 5, *configs, weights))
    changes = [
        "train.precision=fp16",
        "train.device=cuda",
        "parallel.strategy=smddp",
        "parallel.compress=fp16",
        "data.crop=[512,768]",
        "optim.warmup=2ep",
        "loss.class_weights=auto",
    ]
    shrunk, remarks = short.shortened(load_config(None, changes), [0.5] * 3)
    remarks_gpu = short.shortened(load_config(None, changes), [0.5] * 3, 1, 4)[1]
    text = [*(live(each, 1.25) for each in rows), table(rows), *remarks, *remarks_gpu]
    text += [str(short._fewer_pixels(size)) for size in ((96, 128), (97, 128), (40, 2000), (31, 9))]
    smaller = short.smaller_images(
        load_config(None, ["eval.tile=[64,500]", "eval.scales=[0.7,2]"]), (700, 900)
    )
    text += [
        listed([3]),
        listed([1, 2, 4]),
        shrunk.hash,
        str(smaller.eval.tile),
        str([round(s, 4) for s in smaller.eval.scales]),
    ]
    golden.check("core/proofs.txt", "\n".join(text))


class Name(str):
    """A config that is only a name."""

    out = "run"


def test_words(tmp_path):
    numbers = (0.0004, 0.42, 0.99949, 0.9995, 9.996, 59.6, 999.5, 3599.6, 86399.6, 1e6, 2.5e9)
    found: dict[str, Any] = {
        name: [function(number) for number in numbers]
        for name, function in {
            "duration": units.duration,
            "percent": units.percent,
            "rounded": units.rounded,
            "ms": units.ms,
            "short_seconds": units.short_seconds,
            "size": units.size,
            "count": console.count,
            "epochs": console.epochs_text,
        }.items()
    }
    found["bars"] = [console.bar(share) for share in (0.02, 0.37, 0.501, 1.0)]
    found["lines"] = [
        console.step_line(7, 120, 0.5, 8.25, 2.34567, 1.5e-3, 87.04, 0.256, 3725.0, width)
        for width in (None, 90, 80, 60, 30)
    ]
    scores = {
        "classes": 2,
        "classes_present": 1,
        "miou": 0.375,
        "iou": [0.375, None],
        "pixels": [8, 0],
    }
    found["table"] = console.class_table(["sky", "a pole"], scores).split("\n")
    found["long"] = [shortened_text("abcdefghij" * 4, most) for most in (40, 39, 20)]
    labels = plain_space(("background", "car", "pole"))
    ids = (np.arange(24 * 30).reshape(24, 30) ** 2 // 50 % 4).astype(np.uint8)
    ids[ids == 3] = 255
    image = (np.arange(24 * 30 * 3).reshape(24, 30, 3) * 7 % 251).astype(np.uint8)
    outputs.write_overlay(tmp_path / "a.png", image, ids, labels)
    with Image.open(tmp_path / "a.png") as overlay:
        pixels = np.asarray(overlay)
    keys = pixels[24:]
    found["overlay"] = [
        pixels[:24].mean((0, 1)),
        pixels[5, 3:9],
        [keys[9 + 18 * k, 11] for k in range(3)],
    ]
    truth = np.roll(ids, 3, 1)
    sample = pictures.PredictedImage("a.png", image, np.minimum(ids, 2), truth)
    panel = pictures.error_panel(sample, 20, 16)
    found["errors"] = [panel.mean((0, 1)), panel[4, :4], pictures.image_miou(truth, ids, 3)]
    found["colors"] = pictures.colorize(ids[:2, ::3], labels.palette)
    golden.check("core/words.txt", golden.data(found))

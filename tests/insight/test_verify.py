"""A fix is recognized by its settings, its gain is compared with the prediction, and what went
differently is named.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden
import pytest
import yaml
from conftest import refused
from records import moments, rank_records, starved, write_run

from segtrain.cli import main
from segtrain.config import parse_overrides
from segtrain.insight.diagnose.differences import changes, differing, fit
from segtrain.insight.diagnose.judge import diagnose
from segtrain.insight.diagnose.live import closing_line
from segtrain.insight.diagnose.verdict import Fix
from segtrain.insight.diagnose.verify import Verification, earlier_prediction, verify
from segtrain.insight.diagnose.verify_words import page, sentences
from segtrain.insight.runs.folder import flat
from segtrain.observe.spans import Records

# a sample takes 121 ms, 2 workers: 10 of them are proposed, and a gain of 4.98 / 0.99
FIGURES = ("predicted", "measured", "off", "held", "fit", "swapped", "incomparable")
LATENCY = moments(0, 0.0575)


def make(
    folder: Path,
    records: Records,
    settings: dict[str, Any] | None = None,
    later: float = 0.0,
    **start: Any,
) -> Path:
    """A finished run of one rank whose processes began ``later`` seconds after others."""
    moved = replace(
        records,
        begins=tuple({**begin, "ts": begin["ts"] + later} for begin in records.begins),
        windows=tuple({**window, "ts": window["ts"] + later} for window in records.windows),
    )
    write_run(folder, moved)
    (folder / "config.yaml").write_text(yaml.safe_dump({"out": str(folder), **(settings or {})}))
    ts = records.begins[0]["ts"] + later
    events = [
        {"event": "run_start", "ts": ts, **start},
        {"event": "run_end", "ts": ts + 9, "status": "done", "step": 40},
    ]
    (folder / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    os.utime(folder / "config.yaml", (ts, ts))
    return folder


def data(**settings: Any) -> dict[str, Any]:
    return {"data": {"workers": 2, **settings}, "log": {"every": 10}}


def slow(
    place: Path, name: str = "slow", settings: dict[str, Any] | None = None, **start: Any
) -> Path:
    return make(place / name, starved(**LATENCY), settings or data(), **start)


def cured(
    place: Path, settings: dict[str, Any] | None = None, name: str = "cured", **more: Any
) -> Path:
    records = more.pop("records", None) or rank_records(workers=10, **LATENCY)
    return make(place / name, records, settings or data(workers=10), later=100, **more)


def check(place: Path, settings: dict[str, Any] | None = None, **more: Any) -> Verification:
    return verify(slow(place), cured(place, settings, **more), say=lambda text: None)


@pytest.mark.parametrize(
    ("fix", "words", "text"),
    [
        (
            Fix({"checkpoint.every": "1000st", "checkpoint.background": True}),
            ("checkpoint.every=1000st", "checkpoint.background=true"),
            "checkpoint.every=1000st checkpoint.background=true",
        ),
        (
            Fix({"data.cache": "ram"}, "where it fits"),
            ("data.cache=ram",),
            "data.cache=ram (where it fits)",
        ),
        (
            Fix({"data.crop": [64, 64], "data.transforms": ""}),
            ("data.crop=[64,64]", "data.transforms="),
            None,
        ),
        (
            Fix({"data.color_jitter_prob": 0.5, "train.batch_size": 1e6}),
            ("data.color_jitter_prob=0.5", "train.batch_size=1000000"),
            None,
        ),
        (Fix(advice="look at data.workers=2 there"), (), "look at data.workers=2 there"),
    ],
)
def test_a_fix_is_settings_for_the_command_line_and_words_for_a_person(fix, words, text):
    assert fix.words == words
    assert text is None or fix.text == text
    assert {
        k: v for k, v in flat(parse_overrides(list(words))).items() if k in fix.settings
    } == dict(fix.settings)


def test_each_choice_has_a_command_and_is_enough(tmp_path, capsys):
    """A run that ended for lack of shared memory, but has steady windows: three ways out, any of
    which is the cure.
    """
    before = slow(tmp_path, settings=data(worker_kind="process"))
    (tmp_path / "slow-fixed").mkdir()
    end = {"event": "run_end", "ts": 0, "status": "failed", "error": "/dev/shm has 1.0 MiB left"}
    (before / "journal.jsonl").write_text(json.dumps(end) + "\n")
    assert main(["diagnose", str(before)]) == 0
    said = capsys.readouterr().out
    place = f"segtrain train {before}/config.yaml"
    assert f"try   {place} data.worker_kind=thread out={tmp_path}/slow-fixed2\n" in said
    assert f"or    {place} data.prefetch=1 out={tmp_path}/slow-fixed3\n" in said
    assert f"--against {tmp_path}/slow-fixed3" in said
    for name, settings in (
        ("a", {"worker_kind": "thread"}),
        ("b", {"worker_kind": "process", "prefetch": 1}),
    ):
        found = verify(before, cured(tmp_path, data(**settings), name), say=lambda text: None)
        assert found.fit == "exact", name
        assert found.before.run == before
    assert (
        verify(before, cured(tmp_path, data(worker_kind="process", prefetch=2), "c")).fit == "other"
    )


@pytest.mark.parametrize(
    ("cure", "after", "kind"),
    [
        ({}, data(workers=8), "words"),
        ({"data.workers": 8}, data(workers=8), "exact"),
        ({"data.workers": 8}, data(workers=8, crop=[64, 64]), "more"),
        ({"data.workers": 8}, data(workers=6), "other"),
        ({"data.workers": 2}, data(), "other"),  # it was so before
        ({"data.workers": 8, "data.cache": "ram"}, data(workers=8), "other"),
        # rotate is 0 by default
        ({"data.cache": "ram", "data.rotate": 0}, data(cache="ram", rotate=0.0), "other"),
    ],
)
def test_settings_are_held_against_the_cure(cure, after, kind):
    assert fit(changes(data(), after, cure)) == kind


def test_what_cannot_matter_for_speed_is_no_difference():
    more = {
        "out": "there",
        "name": "b",
        "train": {"seed": 3, "duration": "9ep"},
        "optim": {"lr": 0.5},
        **data(cache=False),
    }
    # a key that one lacks has its default; a bare off is false
    assert differing(data(), more) == {}
    assert differing(data(), {**more, **data(prefetch=9)}) == {"data.prefetch": (4, 9)}


def test_the_order_is_found_by_the_settings_then_by_the_time(tmp_path):
    before, after = slow(tmp_path), cured(tmp_path)
    there, back = verify(before, after), verify(after, before)
    assert (there.before.run, back.before.run, back.swapped) == (before, before, True)
    assert "was named first, but is taken as the run after the fix: it has the fix" in " ".join(
        page(back).split()
    )
    assert "was named first" not in page(there)
    # The cured one was made first: its settings count.
    old = make(tmp_path / "old", rank_records(workers=10, **LATENCY), data(workers=10), later=-100)
    assert verify(old, before).before.run == before
    # No setting tells: the later one is the one after.
    first, second = (
        make(tmp_path / n, rank_records(), data(), later=t)
        for n, t in (("first", 0), ("second", 50))
    )
    assert verify(second, first).before.run == first
    assert "it began later" in " ".join(page(verify(second, first)).split())


def test_the_same_images_elsewhere_are_the_same_data_set(tmp_path):
    def derived(name: str, count: int) -> dict[str, Any]:
        return {"derived": {"data": f"{name}: {count} images to train, 4 to score, 10 classes"}}

    before = slow(tmp_path, settings=data(layout="folders", root="there"), **derived("there", 16))
    for count, apart in (
        (16, ()),
        (17, ("another data set (16 images to train, 4 to score, 10 classes before, 17",)),
    ):
        after = cured(
            tmp_path,
            data(workers=10, layout="folders", root="here"),
            f"to{count}",
            **derived("here", count),
        )
        found = verify(before, after)
        assert len(found.incomparable) == len(apart)
        assert all(text.startswith(start) for text, start in zip(found.incomparable, apart))
        assert found.fit == "more"


def test_nonsense_names_the_folder(tmp_path):
    before = slow(tmp_path)
    (tmp_path / "nothing").mkdir()
    with refused("no-spans", file=str(tmp_path / "nothing")):
        verify(before, tmp_path / "nothing")
    with refused("same-run", run=str(before)):
        verify(before, tmp_path / "." / "slow")
    make(tmp_path / "empty", replace(rank_records(), windows=()))
    with refused("no-steps-yet", run=str(tmp_path / "empty")):
        verify(before, tmp_path / "empty")


def test_an_earlier_run_beside_has_predicted_it(tmp_path):
    before, after = slow(tmp_path), cured(tmp_path)
    make(tmp_path / "stranger", rank_records(), data(workers=3), later=50)
    line = earlier_prediction(after)
    assert line is not None
    gain = diagnose(before).verdicts[0].gain
    assert line.startswith(
        f"predicted by {before}: {gain:.2f}x faster with data.workers=10; measured 4.98x"
    )
    assert "why" not in line
    # a run does not read the folders beside it
    assert "predicted by" not in str(closing_line(after))
    assert earlier_prediction(before) is None  # only an earlier one predicts
    old = make(tmp_path / "old", rank_records(workers=10, **LATENCY), data(workers=10), later=-100)
    assert earlier_prediction(old) is None
    assert earlier_prediction(cured(tmp_path, data(workers=10, prefetch=9), "more")) is None
    (before / "journal.jsonl").write_text('{"event": "run_end", "status": "failed"}\n')
    assert earlier_prediction(after) is None


def test_nothing_beside_a_run_makes_it_fail(tmp_path, monkeypatch):
    before, after = slow(tmp_path), cured(tmp_path)
    for content in ("[1, 2", "7", "data: 8\nlog: [1]", "data: {workers: 2, unknown: {a: b}}"):
        (before / "config.yaml").write_text(content)
        assert earlier_prediction(after) is None
    (before / "config.yaml").write_text("data: {workers: 2}")
    assert earlier_prediction(after) is not None
    for content in ("[]", "{}", ""):
        (before / "journal.jsonl").write_text(content)
        assert earlier_prediction(after) is None
    monkeypatch.chdir(after)
    slow(tmp_path, "again")
    assert "data.workers=10" in str(earlier_prediction(Path(".")))
    (tmp_path / "again/spans/rank-00000.jsonl").write_bytes(
        b'{"rank": 0, "first": 1, "phases": {}}\n\xff'
    )
    assert earlier_prediction(Path(".")) is None


def test_pairs_in_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    worse = rank_records({"wait": 3.0}, workers=10, host="elsewhere", **moments(0, 0.213))
    scenes, blocked = data(layout="scenes"), rank_records({"other": 1.0}, other_cpu=0.2)
    new: dict[str, Any] = {"versions": {"torch": "9.9"}}
    ranks = [rank_records(workers=10, rank=rank, world=2, **LATENCY) for rank in range(2)]
    pairs: dict[str, tuple[Path, Path]] = {
        name: (slow(Path(name), settings=before), cured(Path(name), after, **more))
        for name, before, after, more in (
            ("held", None, None, {}),
            ("worse", None, data(workers=10, crop=[64, 64]), {"records": worse, **new}),
            ("next", None, None, {"records": rank_records({"log": 9.0}, workers=10, **LATENCY)}),
            ("other", None, data(workers=6, cache="ram"), {}),
            ("model", None, {**data(workers=10), "model": {"arch": "unet"}}, {}),
            ("scenes", scenes, data(workers=10, layout="scenes", scene_size=[64, 64]), {}),
            ("ranks", None, None, {"records": ranks[0]}),
            ("unknown", None, None, {}),
        )
    }
    (Path("ranks/cured/spans/rank-00001.jsonl")).write_text(
        "".join(json.dumps(x) + "\n" for x in (*ranks[1].begins, *ranks[1].windows))
    )
    Path("unknown/slow/config.yaml").unlink()
    pairs["swapped"] = pairs["held"][::-1]
    pairs["advice"] = make(Path("advice/a"), blocked, data()), cured(Path("advice"))
    pairs["healthy"] = tuple(
        make(Path(f"calm/{n}"), rank_records(), data(), later=n) for n in (0, 5)
    )
    texts = []
    for name, (before, after) in pairs.items():
        pair = verify(before, after, say=lambda text: None)
        texts += [f"--- {name}", page(pair), *sentences(pair)]
        figures = pair.to_dict()
        texts.append(golden.data({key: figures[key] for key in sorted(figures) if key in FIGURES}))
    golden.check("insight/verify.txt", "\n".join(texts))

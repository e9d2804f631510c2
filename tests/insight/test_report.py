"""Tests that the report page shows what the run folder holds, in any state, and works in a
browser.
"""

from __future__ import annotations

import json
import os
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import refused
from PIL import Image
from report_pages import (
    BEGIN,
    Checked,
    chromium,
    journal,
    line,
    make,
    start,
    step,
    text_of,
    write_profile,
)

from segtrain import commands
from segtrain.config.mistakes import fields
from segtrain.insight.report import charts, heat, page, quality
from segtrain.insight.report.diff import compare
from segtrain.insight.report.diff_page import diff
from segtrain.insight.report.timeline import axis, laps, merged, speed
from segtrain.insight.runs.folder import RunFolder, load
from segtrain.observe.profile_format import ProfileWriter, Value

__all__ = ["chromium"]  # the fixture

DEEP = "[" * 100_000


def test_markup_in_a_run_stays_text(tmp_path):
    evil = "</script><script>alert(1)</script>"
    text = journal().replace('"street"', json.dumps(evil))
    folder = make(tmp_path / "run", text)
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**saved, "name": evil}))
    checked, data = text_of(folder)
    assert data["clock"]["end"] == pytest.approx(57)
    assert checked.words.count(evil) >= 2
    diff([folder, make(tmp_path / "plain")], tmp_path / "diff.html")
    assert Checked((tmp_path / "diff.html").read_text()).words.count(evil) >= 2


def test_settings_that_differ_are_in_the_order_of_the_page_of_settings(tmp_path):
    changes = {"log": {"every": 7}, "data": {"prefetch": 9}, "optim": {"name": "sgd"}}
    runs = [load(make(tmp_path / "a")), load(make(tmp_path / "b", **changes))]
    for order in (runs, runs[::-1]):
        keys = [row.what for row in compare(order).config]
        assert keys == [key for key in fields() if key in keys]
        assert {"data.prefetch", "optim.name", "optim.betas", "optim.momentum", "log.every"} <= {
            *keys
        }


def test_three_runs_are_compared_in_one_table_and_on_one_page(tmp_path):
    folders = [
        make(
            tmp_path / name,
            journal(miou=miou),
            profile=name != "y",
            train={"seed": seed},
            name=name,
        )
        for seed, (name, miou) in enumerate((("x", 0.5), ("y", 0.7), ("z", 0.6)))
    ]
    text = diff(folders, tmp_path / "diff.html", say=lambda _: None)
    assert re.search("^Best mIoU, highest first: B 70.00 .*, C 60.00 .*, A 50.00 ", text)
    assert (
        "Only the seed differs: the mean is 60.00 %, the standard deviation 10.00 points." in text
    )
    assert re.search(r"\ntrain.seed +0 +1 +2\n", text)
    html = (tmp_path / "diff.html").read_text()
    checked = Checked(html)
    drawn = json.loads(html.split('id="chart-data">')[1].split("</script>")[0])
    maps = {key for key in drawn if key.startswith("heat")}
    assert maps == {"heat0A", "heat0C", "heat1A", "heat1C"}
    assert "B: no readings of GPUs" in checked.words
    assert [item["label"] for item in drawn["loss"]["series"]] == ["A x", "B y", "C z"]
    with refused("too-many-runs", found=27):
        compare([load(folders[0])] * 27)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "No process of this run has written anything yet"),
        (start(), "Ended without a message at step 0 of 40"),
        (
            start() + step(BEGIN + 3, 1, 1) + '{"event": "ste',
            "Ended without a message at step 1 of 40",
        ),
        (
            start() + line("run_end", BEGIN + 3, status="failed", step=0, error="it <broke>"),
            "Failed at step 0 of 40: it <broke>",
        ),
        (
            start()
            + step(BEGIN + 3, 1, 1)
            + line("signal", BEGIN + 3, signal="SIGTERM", step=1)
            + line("run_end", BEGIN + 4, status="stopped", step=1),
            "Stopped by SIGTERM at step 1 of 40",
        ),
        (
            start()
            + line("step", BEGIN + 2, step=1, loss=None, spans={"wait": None}, images_per_s=None)
            + line("eval", BEGIN + 3, step=1, scores={"miou": None}, confusion=[[1, 2]]),
            "at step 1 of 40",
        ),
    ],
)
def test_a_run_in_any_state_has_a_page(tmp_path, text, said):
    folder = make(tmp_path / "run", text)
    os.utime(folder / "journal.jsonl", (BEGIN, BEGIN))  # nothing has been written for a long time
    path = page.report(folder, say=lambda _: None)
    assert said in Checked(path.read_text()).words
    assert diff([folder, folder], tmp_path / "diff.html", say=lambda _: None)
    assert diff([folder] * 3, tmp_path / "diff.html", say=lambda _: None)


def test_a_folder_with_a_torn_config_and_a_broken_picture(tmp_path):
    folder = make(tmp_path / "run")
    (folder / "config.yaml").write_text("data: [")
    (folder / "labels.json").write_text("[]")
    (folder / "pictures/val.png").write_bytes(b"no picture")
    said = list[str]()
    checked, _ = text_of(folder, said.append)
    assert [line.split()[1] for line in said] == [f"{folder}/config.yaml"]
    assert "The folder has no config.yaml" in checked.words
    assert "val.png cannot be read" in checked.words
    assert "class 0" in checked.words


def test_files_that_are_nested_too_deep_or_hold_no_numbers(tmp_path):
    run = make(tmp_path / "run", journal())
    write_profile(run)
    (run / "stacks").mkdir()
    (run / "stacks/rank-00000.txt").write_text(
        "rank-00000;MainThread;train (segtrain/training/loop.py:35) 50\n"
    )
    (run / "stacks/rank-00000.json").write_text('{"seconds": [], "samples": {}}')
    (run / "stacks/rank-00001.json").write_text(DEEP)
    for path in (run / "best.json", run / "labels.json", *(run / "profile").rglob("*.json")):
        path.write_text(DEEP)
    page.report(run)
    assert "0 samples" in (run / "report.html").read_text()


def test_a_followed_page_loads_itself_again_until_the_run_has_ended(tmp_path, monkeypatch):
    folder, pages = make(tmp_path / "run", ""), list[str]()  # it has just been started
    more = iter([start() + step(BEGIN + 1, 1, 1), line("run_end", BEGIN + 9, status="done"), ""])

    def sleep(seconds: float) -> None:
        pages.append((folder / page.FILE).read_text())
        with (folder / "journal.jsonl").open("a") as file:
            file.write(next(more))

    monkeypatch.setattr(commands.time, "sleep", sleep)
    commands.report(Namespace(run=str(folder), open=False, follow=True))
    assert [text.count('http-equiv="refresh" content="30"') for text in pages] == [1, 1, 0]


def test_no_run_is_an_error_with_its_cure(tmp_path):
    with refused("not-a-run-folder", file=str(tmp_path)):
        page.report(tmp_path)
    folder = make(tmp_path / "run")
    (folder / "report.html").mkdir()
    with refused("page-unwritable"):
        page.report(folder)
    assert not list(folder.glob(".*part"))


@pytest.mark.parametrize(
    ("ms", "said"), [(0, "log.profile_ms=500 shows"), (500, "no readings of a system profile")]
)
def test_a_run_without_a_profile_says_how_to_get_one(tmp_path, ms, said):
    folder = make(tmp_path / "run", log={"profile_ms": ms})
    (folder / "profile").mkdir()
    (folder / "profile/algo-1.state.json").write_text("{}")  # a sampler that was never switched on
    checked, data = text_of(folder)
    assert said in checked.words
    assert not any(key.startswith("heat") for key in data)


def test_the_worst_tenth_of_a_run_is_known(tmp_path):
    text = start()
    for place in range(1, 101):
        spans = {"wait": 0.5 if 40 < place <= 50 else 0.0, "forward": 1.0}
        text += line("step", BEGIN + 2 * place, step=place, loss=1.0, spans=spans)
    pace = speed(laps(load(make(tmp_path / "run", text)).events))
    assert pace is not None
    assert (pace.worst_step, pace.worst_wait) == (51, pytest.approx(4.5 / 14.5))


def test_the_axis_leaves_out_the_time_between_two_processes(tmp_path):
    later = BEGIN + 100_000
    text = start() + step(BEGIN + 10, 10, 10) + step(BEGIN + 15, 15, 5) + start(later)
    text += (
        line("resume", later + 1, step=10, world_size=2)
        + step(later + 9, 18, 8)
        + step(later + 11, 20, 2)
    )
    run = load(make(tmp_path / "run", text))
    time = axis(run.events)
    assert time.length == pytest.approx(15 + 11)
    assert time.at(BEGIN + 50_000) is None
    assert time.at(later + 9) == pytest.approx(15 + 9)
    found = laps(run.events)
    assert [(lap.step, lap.steps, lap.first) for lap in found] == [
        (10, 10, True),
        (15, 5, False),
        (18, 8, True),
        (20, 2, False),
    ]
    clock = charts.clock(run, time)
    assert clock["step"] == [10, 18, 20]  # step 15 was lost and done again
    assert clock["t"] == sorted(clock["t"])


def test_long_runs_are_thinned_without_losing_time(tmp_path):
    text = start() + "".join(step(BEGIN + 5 + number, number, 1) for number in range(1, 3001))
    run = load(make(tmp_path / "run", text))
    found = laps(run.events)
    few = merged(found, 100)
    assert len(few) <= 102
    assert few[0].first
    assert sum(lap.steps for lap in few) == 3000
    assert sum(lap.seconds for lap in few) == pytest.approx(sum(lap.seconds for lap in found))
    assert page.report(run.folder).stat().st_size < 700_000


def test_the_gpus_of_several_hosts_are_in_one_map(tmp_path):
    folder = make(tmp_path / "run")
    for node in ("algo-1", "algo-2", "algo-10"):
        writer = ProfileWriter(folder / "profile", node)
        for tick in range(50):
            values = [
                Value("gpu", "gpu0", f"GPU{kind}Utilization", value)
                for kind, value in (("", 40.0), ("Memory", 9.0))
            ]
            writer.write(BEGIN + tick, [*values, Value("cpu", "cpu0", "CPUUtilization", 7.0)])
        writer.close()
    run = load(folder)
    use, memory, *cores = heat.read_maps(run, axis(run.events))
    assert use.rows == memory.rows == ("1: gpu0", "2: gpu0", "10: gpu0")
    assert (use.means(), memory.means()) == ([40.0] * 3, [9.0] * 3)
    assert [found.title for found in cores] == [
        "Cores of algo-1",
        "Cores of algo-2",
        "Cores of algo-10",
    ]


def test_a_large_profile_becomes_a_map_of_bounded_size(tmp_path):
    folder = make(tmp_path / "run", start() + step(BEGIN + 3000, 1, 1))
    writer = ProfileWriter(folder / "profile", "algo-1")
    for tick in range(0, 3000, 10):
        writer.write(
            BEGIN + tick,
            [Value("cpu", f"cpu{core}", "CPUUtilization", 50.0) for core in range(300)],
        )
    writer.close()
    run = load(folder)
    (found,) = heat.read_maps(run, axis(run.events))
    assert found.rows[:3] == ("cpu0", "cpu1", "cpu2")
    assert found.cells.size <= 301_000
    assert found.means() == pytest.approx([50.0] * 300)


def test_a_real_run_journals_its_confusion(zygote, tmp_path):
    tiny = (
        "data.scenes=9",
        "data.scene_size=[48,64]",
        "data.crop=[32,48]",
        "train.duration=2st",
        "train.batch_size=4",
        "parallel.procs=1",
        "data.workers=0",
        "log.tensorboard=false",
        "out=run",
    )
    process = zygote.start("train", *tiny, cwd=tmp_path)
    assert process.wait() == 0, process.output
    assert "segtrain report run" in process.output
    run = load(tmp_path / "run")
    counts = np.array(run.best["confusion"])
    assert counts.sum(1).tolist() == run.best["scores"]["pixels"]
    assert counts.sum(0).tolist() == run.best["scores"]["predicted"]
    assert run.best["scores"]["accuracy"] == pytest.approx(np.diagonal(counts).sum() / counts.sum())
    assert "Finished: step 2 of 2" in text_of(tmp_path / "run")[0].words


# In a browser.


def colors(picture: Path) -> np.ndarray:
    return np.asarray(Image.open(picture).convert("RGB")).reshape(-1, 3)


def test_the_page_zooms_and_changes_its_theme(chromium, tmp_path):
    folder = make(tmp_path / "run", profile=True)
    path = page.report(folder)
    chromium.errors.clear()
    chromium.requests.clear()
    chromium.prefer("light")
    chromium.open(path)
    label = "document.getElementById('range').textContent"
    assert chromium.run("document.querySelectorAll('.u-wrap').length") == 8
    assert chromium.run(label) == ""
    assert chromium.run("document.documentElement.scrollWidth") <= 1280
    shown = (
        "[...document.querySelectorAll('#loss .u-value')].map(cell => cell.textContent).join('')"
    )
    assert chromium.run(shown) == ""
    light = chromium.screenshot(tmp_path / "light.png")

    chromium.drag("#heat1 .u-over", 0.25, 0.75)
    begin, end = (int(text.split("s")[0]) for text in chromium.run(label).split(" to "))
    assert (begin, end) == (pytest.approx(57 * 0.25, abs=2), pytest.approx(57 * 0.75, abs=2))
    assert not chromium.run("document.getElementById('whole').hidden")
    zoomed = chromium.screenshot(tmp_path / "zoomed.png")
    assert zoomed.read_bytes() != light.read_bytes()
    chromium.click("#loss .u-over", clicks=2)
    assert chromium.run(label) == ""

    # over steps: 20 to 40, which is from second 26 to the end
    chromium.drag("#loss .u-over", 0.5, 1.0)
    begin = int(chromium.run(label).split("s")[0])
    assert begin == pytest.approx(26, abs=2)
    chromium.run("document.querySelector('#loss .plot').focus()")
    for kind in ("keyDown", "keyUp"):
        chromium.call("Input.dispatchKeyEvent", type=kind, key="Escape")
    assert chromium.run(label) == ""

    chromium.run("scrollTo(0, 0)")
    chromium.prefer("dark")
    dark = chromium.screenshot(tmp_path / "dark.png")
    assert np.median(colors(light)) > 230
    assert np.median(colors(dark)) < 60
    chromium.click("#theme")
    chromium.run("scrollTo(0, 0)")
    assert np.median(colors(chromium.screenshot(tmp_path / "forced.png"))) > 230
    assert chromium.errors == []
    assert {url.split(":")[0] for url in chromium.requests} <= {"file", "data"}


def test_maps_side_by_side_zoom_to_the_same_steps(chromium, tmp_path):
    """Run b takes twice as long. Step 20 is at second 26 of a and 45 of b, the axis ends at 96."""
    folders = [
        make(tmp_path / name, journal(scale), profile=True, name=name)
        for name, scale in (("a", 1.0), ("b", 2.0))
    ]
    diff(folders, tmp_path / "diff.html")
    chromium.errors.clear()
    chromium.open(tmp_path / "diff.html")
    label = "document.getElementById('range').textContent"
    end = max(axis(load(folder).events).length for folder in folders)
    for letter, second in (("A", 26), ("B", 45)):
        chromium.drag(f"#heat1{letter} .u-over", 0.0, second / end)
        assert int(chromium.run(label).split(" to ")[1]) == pytest.approx(20, abs=1)
        chromium.click("#loss .u-over", clicks=2)
    assert chromium.errors == []


def test_the_classes_are_judged_by_the_best_evaluation(tmp_path):
    names = ("road", "sky", "pole", "car", "void-like")
    counts = [
        [900, 50, 0, 0, 0],
        [0, 800, 0, 0, 0],
        [6, 1, 0, 2, 0],
        [55, 0, 0, 45, 0],
        [0, 0, 0, 0, 0],
    ]
    scores = {"miou": 0.5, "iou": [0.9, 0.94, 0.0, 0.44, None], "pixels": [950, 800, 9, 100, 0]}

    def rows(best: int, *classes: Any, **loss: Any) -> dict[str, str]:
        events = [
            {"event": "eval", "step": step, "epoch": 2.4, "best": step == best, "scores": scores}
            | ({"confusion": counts} if classes else {})
            for step in (5, 9)
        ]
        end = {"event": "run_end", "status": "done"}
        run = RunFolder(tmp_path, tmp_path, {"loss": loss}, names, (*events, end))
        return dict(quality.judged(run))

    found = rows(9, "classes", terms=[{"name": "ce"}], class_weights="none")
    assert found["never predicted"] == "pole (67 % taken for road)"
    assert found["often wrong"] == "car 44.0 % (55 % taken for road)"
    assert found["few pixels"] == "pole 0.48 %"
    assert re.findall(r"\S+=\S+", found["usually helps"]) == [
        "loss.class_weights=auto;",
        "train.extend=391st;",
        "data.class_balanced_crop_prob=0.3;",
        "'loss.terms=[ce,",
    ]
    found = rows(5, terms=[{"name": "ohem"}], class_weights="auto")
    assert found["never predicted"] == "pole"
    assert found["usually helps"].startswith("longer training, as 9 steps are few")
    assert "dice" not in found["usually helps"]
    scores["iou"][2] = 0.01
    assert "train.extend=2ep" in rows(9)["usually helps"]
    assert "extend" not in rows(5)["usually helps"]
    scores["iou"] = [0.9, 0.94, 0.6, 0.7, None]
    assert rows(5) == {}

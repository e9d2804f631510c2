"""Tests that a hot function is found in the stacks of ranks, threads, and workers, and shown in the
report.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import browser
import pytest
from conftest import refused

from segtrain.base import stacks
from segtrain.base.json_text import write_json
from segtrain.data.workers.child import _Worker
from segtrain.insight.report import flame
from segtrain.insight.report.html import page
from segtrain.observe import trace as request
from segtrain.training import on_demand
from segtrain.training.on_demand import Stacker

HOT = """
import time

def planted_hot_function(image, mask, seed):
    end = time.perf_counter() + 0.05
    while time.perf_counter() < end:
        sum(range(100))
    return image, mask
"""
HOSTILE = "</script><img src=x onerror=alert(1)>"


def planted_wait(until: Any) -> None:
    """Stands in one place from its first line on: a lock's method is no Python function."""
    until.acquire()


def order(run: Path, asked: float = 1.0, seconds: float = 0.2, hz: float = 100) -> None:
    (run / stacks.FOLDER).mkdir(exist_ok=True)
    write_json(run / stacks.FOLDER / stacks.CONTROL, {"asked": asked, "seconds": seconds, "hz": hz})


@pytest.fixture
def waiting() -> Iterator[threading.Thread]:
    """A thread that stands in ``planted_wait``."""
    until = threading.Lock()
    until.acquire()
    thread = threading.Thread(target=planted_wait, args=(until,), name="planted;thread")
    thread.start()
    while "planted_wait" not in str(
        stacks.stack(stacks.sys._current_frames().get(thread.ident or 0), {})
    ):
        time.sleep(0.001)
    yield thread
    until.release()
    thread.join()


def test_a_thread_that_stands_still_has_all_the_time(waiting):
    """Each sample counts for the time since the one before: the sum is the time of the sampling,
    however late samples come.
    """
    found, count, seconds = stacks.sample(0.2, 200, threading.Event())
    assert count > 0
    mine = {frames: s for frames, s in found.items() if frames[0] == "planted;thread"}
    (frames,) = mine
    assert mine[frames] == pytest.approx(seconds)
    line = planted_wait.__code__.co_firstlineno
    assert frames[-1] == f"planted_wait (./core/test_stacks.py:{line})"
    assert frames[-2].startswith(("Thread.run (threading.py:", "run (threading.py:"))
    # not the one that looks
    assert not any(threading.current_thread().name == names[0] for names in found)


def test_collapsed_files_are_read_as_they_were_written(tmp_path):
    found: stacks.Stacks = {
        (
            "MainThread",
            "run (segtrain/training/loop.py:93)",
            "Module._call_impl (torch/nn/modules/module.py:1)",
            "f (a.py:1)",
        ): 1.5,
        ("odd;name\n", f"{HOSTILE}; g (b.py:2)"): 0.25,
        ("short", "h (c.py:3)"): 0.0001,
    }
    stacks.write(tmp_path / stacks.FOLDER, "rank-00000", found, {"asked": 1.0})
    text = (tmp_path / "stacks/rank-00000.txt").read_text()
    assert len(text.splitlines()) == 2  # below half a millisecond: nothing
    loop, odd = sorted(flame.read(tmp_path), key=lambda one: -one.seconds)
    assert (loop.thread, loop.frames, loop.seconds) == (
        "MainThread",
        ("run (segtrain/training/loop.py:93)", "f (a.py:1)"),
        1.5,
    )
    assert (odd.thread, odd.frames) == ("odd:name ", (f"{HOSTILE}: g (b.py:2)",))
    assert json.loads((tmp_path / "stacks/rank-00000.json").read_text()) == {"asked": 1.0}


def test_a_rank_samples_only_when_it_is_asked(tmp_path, monkeypatch):
    asked: list[Any] = []
    pool: Any = SimpleNamespace(
        sample_stacks=lambda run, name, order: asked.append((run, name, order.asked)) or 2
    )
    reads: list[Path] = []
    monkeypatch.setattr(
        on_demand, "read_order", lambda run: reads.append(run) or stacks.read_order(run)
    )
    now = [100.0]
    monkeypatch.setattr(on_demand.time, "perf_counter", lambda: now[0])
    order(tmp_path, asked=1.0)  # of an earlier process
    before = threading.active_count()
    stacker = Stacker(tmp_path, 3, pool)
    for _ in range(1000):  # steps within half a second: one look
        stacker.step()
    assert len(reads) == 2
    assert threading.active_count() == before
    assert not asked
    monkeypatch.undo()
    order(tmp_path, asked=2.0)
    stacker._requests._next_check = 0.0
    stacker.step()
    assert asked == [(str(tmp_path), "rank-00003", 2.0)]
    stacker.close()  # the run ends before its time: what there is is written
    facts = json.loads((tmp_path / "stacks/rank-00003.json").read_text())
    assert (facts["asked"], facts["workers"]) == (2.0, 2)
    assert threading.active_count() == before


def test_a_second_request_of_a_worker_ends_the_first(tmp_path):
    worker = _Worker()
    for asked in (1.0, 2.0):
        worker.handle(
            (
                "stacks",
                str(tmp_path),
                "rank-00000-worker-00",
                stacks.StackRequest(asked, 600.0, 100.0),
            )
        )
    first = json.loads((tmp_path / "stacks/rank-00000-worker-00.json").read_text())
    # it is written before the second begins, and cannot write over it later
    assert first["asked"] == 1.0
    worker.sampler.stop()
    assert json.loads((tmp_path / "stacks/rank-00000-worker-00.json").read_text())["asked"] == 2.0


@pytest.mark.parametrize("text", ["[]", '{"asked": 1}', '{"asked": 1, "seconds": 1e9, "hz": 100}'])
def test_what_is_no_request_is_left_alone(tmp_path, text):
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks/control.json").write_text(text)
    assert stacks.read_order(tmp_path) is None


@pytest.mark.parametrize(("seconds", "hz", "key"), [(9999, 100, "--seconds"), (1, 0, "--hz")])
def test_a_request_out_of_range_is_refused(tmp_path, seconds, hz, key):
    with refused("request-out-of-range", key=key):
        request.stacks(tmp_path, seconds, hz)


def test_every_rank_and_worker_process_answers_and_the_report_shows_the_hot_function(
    tmp_path, zygote
):
    run, transform = tmp_path / "run", tmp_path / "mine.py"
    transform.write_text(HOT)
    settings = (
        "data.scenes=9 data.scene_size=[48,64] data.crop=[32,48] train.batch_size=4 parallel.threads=1 data.workers=1 "
        f"data.worker_kind=process train.duration=100000st eval.every=100000st log.profile_ms=0 out={run} "
        f"data.transforms={transform}:planted_hot_function"
    )
    ranks = zygote.start_ranks(2, "train", *settings.split())
    until = time.monotonic() + 240
    files: list[Path] = []
    while time.monotonic() < until and not (
        len(files) == 2 and all(b'"phases"' in file.read_bytes() for file in files)
    ):
        time.sleep(0.1)
        files = list(run.glob("spans/*.jsonl"))
    words = ["profile", "stacks", str(run), "--seconds", "1"]
    patient = (
        "from segtrain.cli import main\nfrom segtrain.observe import trace\ntrace.LATE_S = 300.0\n"
    )
    asked = zygote.start(code=f"{patient}raise SystemExit(main({words!r}))")
    assert asked.wait() == 0, asked.output
    ranks[0].signal(15)
    assert [rank.wait() for rank in ranks] == [75, 75], ranks[0].output
    found = flame.read(run)
    names = {"rank-00000", "rank-00001", "rank-00000-worker-00", "rank-00001-worker-00"}
    assert {stack.process for stack in found} == names
    assert all(f"{name}.txt" in asked.output for name in names)
    hot = [one for one in found if "planted_hot_function" in one.frames[-1]]
    assert {one.process for one in hot} == {name for name in names if "worker" in name}
    html = flame.section(run)
    assert "Data workers: 2 processes" in html
    assert "The loop of 2 ranks" in html
    assert '<i class="user"' in html
    assert "planted_hot_function</i>" in html
    with refused("run-ended", file=str(run)):
        request.stacks(run, 1, 100)


def planted(run: Path) -> Path:
    """A run folder with stacks of a rank and of data threads."""
    loop = "run (segtrain/training/loop.py:93)"
    found: stacks.Stacks = {
        (
            "MainThread",
            "main (segtrain/cli.py:1)",
            loop,
            "gradients (segtrain/training/step.py:1)",
            "backward (torch/x.py:1)",
        ): 6.0,
        ("MainThread", "main (segtrain/cli.py:1)", loop, "wait (threading.py:1)"): 4.0,
        (
            "segtrain-data-0",
            "make (segtrain/data/sample.py:1)",
            f"{HOSTILE} (./mine/own.py:7)",
        ): 9.0,
        (
            "segtrain-data-0",
            "make (segtrain/data/sample.py:1)",
            "crop (segtrain/data/pixels/crop.py:1)",
        ): 1.0,
        ("watchdog", "wait (threading.py:1)"): 10.0,
    }
    stacks.write(
        run / stacks.FOLDER, "rank-00000", found, {"asked": 1.0, "seconds": 10.0, "samples": 1000}
    )
    return run


def test_shares_colors_and_escaped_names(tmp_path):
    html = flame.section(planted(tmp_path))
    assert "1,000 samples of 1 process in 10 s" in html
    assert "<img" not in html
    assert (
        "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt; (./mine/own.py:7): 90.0 %, 9.00 s"
        in html
    )
    for kind, name in (
        ("user", "&lt;/script"),
        ("torch", "backward"),
        ("own", "gradients"),
        ("idle", "wait"),
    ):
        assert re.search(f'<i class="{kind}"[^>]*>{name}', html), name
    assert "Other threads" not in html  # the watchdog only waits
    for graph in html.split("<figure")[1:]:
        bottoms = [int(pixels) for pixels in re.findall(r"bottom:(\d+)px", graph)]
        assert f"height:{max(bottoms) + flame.ROW}px" in graph
    assert flame.section(tmp_path / "elsewhere") == ""


def test_a_click_zooms_into_a_function(tmp_path):
    executable = browser.find()
    if executable is None:
        pytest.skip("no browser here: apt-get install chromium, or set SEGTRAIN_BROWSER")
    path = tmp_path / "page.html"
    path.write_text(
        page("t", [("stacks", "Python stacks", flame.section(planted(tmp_path)))], {}, "")
    )
    opened = browser.Browser(executable, tmp_path / "profile")
    try:
        opened.open(path)
        width = "[...document.querySelectorAll('#stacks0 .flame i')].find(i => i.textContent === 'wait').style.width"
        assert opened.run(width) == "40%"
        opened.click("#stacks0 .flame i.idle")
        assert opened.run(width) == "100%"
        assert opened.run(
            "document.querySelector('#stacks0 .flame i.torch').classList.contains('off')"
        )
        opened.click("#stacks0 .flame i:first-child")
        assert opened.run(width) == "40%"
        assert opened.errors == []
        assert {url.split(":")[0] for url in opened.requests} <= {"file", "data"}
    finally:
        opened.close()
